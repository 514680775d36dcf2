"""Reading folders of exported encoders, those in the box included, as runs that can be evaluated."""

import json
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from metamask_jax.config import from_json
from metamask_jax.core.array_files import read_export
from metamask_jax.core.encoder_folders import CONFIG, MASK, WEIGHTS
from metamask_jax.core.types import PyTree
from metamask_jax.errors import ExportError
from metamask_jax.evaluate.workdir import Run
from metamask_jax.methods.base import init_module
from metamask_jax.models.torchvision import from_torchvision
from metamask_jax.training.registry import Registry, resolve_registry, validate
from metamask_jax.training.state import TrainState, build_encoder

OURS = "metamask_jax"  # the part of config.json that other programs leave alone


def exported_run(folder: pathlib.Path, registry: Registry | None = None) -> Run:
    """What evaluation needs of an encoder, from its folder alone.

    Args:
      folder: of `encoder_folder`.
      registry: what the configuration's names stand for; None is ours and `config.plugins`.

    Returns:
      A run whose state has an encoder and a mask and nothing else. The mask's weights are kept as they are, so its
      activation is the identity.

    Raises:
      ExportError: the folder is damaged, or its weights are of another network than its configuration.
    """
    try:
        ours: dict[str, Any] = json.loads((folder / CONFIG).read_text(encoding="utf-8"))[OURS]
        config = from_json(json.dumps(ours["config"]))
        step = int(ours["step"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ExportError(
            f"{folder / CONFIG} cannot be used ({str(error)[:100]}); expected one that metamask-export has written"
        ) from error
    config.mask.activation = "identity"
    config = validate(config, registry)
    registry = resolve_registry(registry, config)
    size = config.data.image_size
    encoder = build_encoder(config, axis_name=None, registry=registry)
    like = jax.eval_shape(lambda: init_module(encoder, jax.random.key(0), 2, size, size, 3))
    export = read_export(folder / WEIGHTS)
    if export.metadata.get("layout") == "torchvision":
        found = from_torchvision(export.arrays, *like)
    else:
        found = _below(export.arrays, "params/"), _below(export.arrays, "batch_stats/")
    params, stats = (_filled(tree, arrays, folder) for tree, arrays in zip(like, found, strict=True))
    mask = read_export(folder / MASK).arrays.get("mask")
    if mask is None or mask.shape != (encoder.features,):
        raise ExportError(f"{folder / MASK} has no mask of {encoder.features} weights; expected one for each feature")
    return Run(folder, config, _state(params, stats, mask, step), step, registry)


def _below(arrays: Mapping[str, np.ndarray], part: str) -> dict[str, np.ndarray]:
    """The arrays whose names begin so, by the rest of their names, with dots."""
    named = ((name.removeprefix(part), array) for name, array in arrays.items() if name.startswith(part))
    return {name.replace("/", "."): array for name, array in named}


def _filled(like: PyTree, arrays: Mapping[str, np.ndarray], folder: pathlib.Path) -> PyTree:
    """A tree with the arrays of a file by dotted names, which are to be of the same names and shapes."""
    expected = {".".join(path): leaf.shape for path, leaf in flatten_dict(dict(like)).items()}
    for name in sorted(expected.keys() | arrays.keys()):
        found = arrays[name].shape if name in arrays else "nothing"
        if found != expected.get(name, "nothing"):
            raise ExportError(
                f"{folder / WEIGHTS} has {found} for {name}; expected {expected.get(name, 'nothing')}, by the encoder "
                f"in {CONFIG}"
            )
    return unflatten_dict({tuple(name.split(".")): array for name, array in arrays.items()})


def _state(params: PyTree, stats: PyTree, mask: np.ndarray, step: int) -> TrainState:
    zero = jnp.zeros((), jnp.int32)
    return TrainState(
        step=jnp.asarray(step, jnp.int32),
        seed=zero,
        params={"encoder": params},
        batch_stats={"encoder": stats},
        method_state=(),
        mask=jnp.asarray(mask),
        opt_state=(),
        mask_opt_state=(),
        skipped=zero,
        skipped_in_a_row=zero,
    )
