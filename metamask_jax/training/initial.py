"""The weights that a run begins with: random ones, or those of another run or an exported encoder (`config.init`)."""

import logging
import os
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from metamask_jax.core.array_files import read_export
from metamask_jax.core.encoder_folders import WEIGHTS, encoder_folder
from metamask_jax.core.places import Place, to_place
from metamask_jax.core.storage import is_file, is_folder
from metamask_jax.core.types import PyTree
from metamask_jax.errors import CheckpointError, ConfigError
from metamask_jax.models.torchvision import from_torchvision
from metamask_jax.training.checkpoint import Checkpoints
from metamask_jax.training.registry import Registry
from metamask_jax.training.state import TrainState, Weights, init_state, init_weights

_log = logging.getLogger(__name__)
_NOT_THE_ENCODER = ("mask", "fc/", "fc.")  # what an exported file may have beside it
Arrays = dict[str, np.ndarray]


def first_state(config: ConfigDict, registry: Registry | None = None) -> TrainState:
    """The state before the first step, with the weights that `config.init` names; the optimisers start afresh.

    Raises:
      ConfigError, CheckpointError: there are no such weights, or they are of other networks; the message names the
        first parameter that does not fit.
    """
    if config.init["from"] is None:
        return init_state(config, registry=registry)
    like: Weights = jax.eval_shape(lambda: init_weights(config, registry=registry))
    found, origin = _read(config, like)
    weights: Weights
    if config.init.parts == "all":
        weights = Weights(*(_filled(config, found, part, tree) for part, tree in like._asdict().items()))
    else:
        parts = {part: {"encoder": like._asdict()[part]["encoder"]} for part in ("params", "batch_stats")}
        encoder = tuple(_filled(config, found, part, tree)["encoder"] for part, tree in parts.items())
        weights = init_weights(config, registry=registry, encoder=(encoder[0], encoder[1]))
    _log.info("begins with %s of %s", "the encoder" if config.init.parts == "encoder" else "all weights", origin)
    return init_state(config, registry=registry, weights=weights)


def _read(config: ConfigDict, like: Weights) -> tuple[Arrays, str]:
    """Arrays by their paths in a state, such as `params.encoder.conv1.kernel`, and where they come from."""
    exported = encoder_folder(os.path.expanduser(config.init["from"]))
    path = exported / WEIGHTS if exported else to_place(config.init["from"]).expanduser()
    if is_folder(path):
        return _read_workdir(config, path)
    if not is_file(path):
        raise ConfigError(
            f"{_named(config)} does not exist; expected the folder of a pretrained run, what metamask-export has "
            "written, or zoo:NAME"
        )
    for key, allowed in (("parts", "encoder"), ("step", None)):
        if config.init[key] != allowed:
            raise ConfigError(
                f"config.init.{key}={config.init[key]!r} with {_named(config)}, an exported file; expected "
                f"{allowed!r}: such a file has one encoder and nothing else"
            )
    return _read_file(path, like), config.init["from"]


def _read_workdir(config: ConfigDict, path: Place) -> tuple[Arrays, str]:
    folder = path / "checkpoints"
    checkpoints = Checkpoints.for_reading(folder) if folder.is_dir() else None
    try:
        steps = checkpoints.steps() if checkpoints is not None else []
        if checkpoints is None or not steps:
            raise ConfigError(f"{_named(config)} has no checkpoint; expected a run that has saved at least one")
        step = steps[-1] if config.init.step is None else config.init.step
        if step not in steps:
            raise ConfigError(
                f"config.init.step={step}; expected None for the newest, or a step that {path} has: "
                f"{', '.join(map(str, steps))}"
            )
        return checkpoints.read(step)[0], f"{path} after step {step}"
    except CheckpointError as error:
        raise CheckpointError(
            f"{_named(config)}: {error}; expected a whole one, or another config.init.step"
        ) from error
    finally:
        if checkpoints is not None:
            checkpoints.close()


def _read_file(path: Place, like: Weights) -> Arrays:
    """The arrays of an exported encoder by their paths in a state."""
    export = read_export(path)
    arrays = {name: array for name, array in export.arrays.items() if not name.startswith(_NOT_THE_ENCODER)}
    if export.metadata.get("layout") == "torchvision":
        params, stats = from_torchvision(arrays, like.params["encoder"], like.batch_stats["encoder"])
        return {f"params.encoder.{name}": array for name, array in params.items()} | {
            f"batch_stats.encoder.{name}": array for name, array in stats.items()
        }
    paths = (name.split("/") for name in arrays)
    return {
        ".".join([part, "encoder", *names]): array for (part, *names), array in zip(paths, arrays.values(), strict=True)
    }


def _filled(config: ConfigDict, found: Mapping[str, np.ndarray], part: str, like: PyTree) -> Any:
    """A pytree like the given one, of the arrays found, which have to be exactly its own.

    Args:
      config: for the message.
      found: arrays by path.
      part: path of the pytree.
      like: the pytree that is needed, of shapes.
    """
    paths, structure = jax.tree_util.tree_flatten_with_path(like)
    names = [f"{part}.{jax.tree_util.keystr(path, simple=True, separator='.')}".rstrip(".") for path, _ in paths]
    leaves = []
    for name, (_, leaf) in zip(names, paths, strict=True):
        shape = found[name].shape if name in found else None
        if shape != leaf.shape:
            raise _misfit(config, f"{'nothing' if shape is None else f'shape {shape}'} for {name}", leaf.shape)
        leaves.append(found[name].astype(leaf.dtype, copy=False))
    roots = {".".join(name.split(".")[:2]) for name in names}
    surplus = sorted(name for name in found if ".".join(name.split(".")[:2]) in roots and name not in names)
    if surplus:
        raise _misfit(config, f"shape {found[surplus[0]].shape} for {surplus[0]}", None)
    return jax.tree.unflatten(structure, leaves)


def _misfit(config: ConfigDict, found: str, expected: tuple[int, ...] | None) -> ConfigError:
    needed = "no such parameter" if expected is None else f"shape {expected}"
    return ConfigError(
        f"{_named(config)} has {found}; expected {needed} for config.encoder.name={config.encoder.name!r} with "
        f"config.encoder.width={config.encoder.width}" + (" and all else" if config.init.parts == "all" else "")
    )


def _named(config: ConfigDict) -> str:
    return f"config.init.from={config.init['from']!r}"
