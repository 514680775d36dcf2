"""Runs of which only an encoder with random weights and a mask exist: nothing has to be compiled for them."""

import pathlib
import types
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from metamask_jax.config import default_config
from metamask_jax.evaluate.workdir import Run
from metamask_jax.training.registry import REGISTRY, validate
from metamask_jax.training.state import build_encoder


def config_of(name: str = "resnet18", width: float = 0.125, stem: str = "cifar", image_size: int = 32) -> ConfigDict:
    config = default_config()
    config.encoder.update(name=name, width=width, stem=stem)
    config.data.image_size = image_size
    config.method.head = (8, 4)
    config.loss.drr_head = (8,)
    return validate(config)


def fill(shapes: Any) -> Any:
    """Random weights and BatchNorm statistics of an encoder; nothing has to be compiled for them."""
    random = np.random.default_rng(0)

    def one(path: tuple, leaf: jax.ShapeDtypeStruct) -> np.ndarray:
        values = random.normal(size=leaf.shape).astype(np.float32)
        if path[-1].key in ("scale", "var"):
            return np.abs(values) * 0.2 + 0.9
        return values * (2 / max(1, np.prod(leaf.shape[:-1]))) ** 0.5 if values.ndim > 1 else 0.1 * values

    return jax.tree_util.tree_map_with_path(one, shapes)


def run_of(config: ConfigDict) -> Run:
    """A run of which only the encoder and the mask exist."""
    encoder = build_encoder(config, axis_name=None)
    image = jnp.zeros((2, config.data.image_size, config.data.image_size, 3))
    variables = fill(jax.eval_shape(partial(encoder.init, train=True), jax.random.key(0), image))
    mask = np.random.default_rng(1).normal(size=encoder.features).astype(np.float32)
    state = types.SimpleNamespace(
        params={"encoder": variables["params"]}, batch_stats={"encoder": variables["batch_stats"]}, mask=mask
    )
    return Run(pathlib.Path("nowhere"), config, state, 7, REGISTRY)  # type: ignore[arg-type]


def inputs_of(run: Run, count: int = 5) -> np.ndarray:
    size = run.config.data.image_size
    return np.random.default_rng(2).normal(size=(count, size, size, 3)).astype(np.float32)


def features_of(run: Run, x: np.ndarray) -> np.ndarray:
    variables = {"params": run.state.params["encoder"], "batch_stats": run.state.batch_stats["encoder"]}
    encoder = build_encoder(run.config, axis_name=None)
    # One program is compiled sooner than every layer alone.
    return np.asarray(jax.jit(partial(encoder.apply, train=False))(variables, x))
