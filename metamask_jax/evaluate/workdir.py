"""What evaluation needs of a run, from its working directory alone."""

import os
from typing import NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from metamask_jax.config import from_json
from metamask_jax.core.mask import mask_weights
from metamask_jax.core.places import Place, to_place
from metamask_jax.core.storage import is_folder
from metamask_jax.data.sources import Source
from metamask_jax.errors import CheckpointError, ConfigError
from metamask_jax.evaluate.cache import cached_features
from metamask_jax.evaluate.features import Allocate, extract_source, make_extractor
from metamask_jax.training.checkpoint import Checkpoints, DamagedError
from metamask_jax.training.registry import Registry, resolve_registry, validate
from metamask_jax.training.state import TrainState, init_state


class Run(NamedTuple):
    """A pretrained run at one of its checkpoints.

    Attributes:
      workdir: where it is.
      config: its validated configuration.
      state: its state, of NumPy arrays.
      step: the training step after which the state was saved.
      registry: what the configuration's names stand for; None is ours and `config.plugins`.
    """

    workdir: Place
    config: ConfigDict
    state: TrainState
    step: int
    registry: Registry

    @property
    def mask_weights(self) -> np.ndarray:
        """The mask's weights float32 [dim]."""
        return np.asarray(mask_weights(self.state.mask, activation=self.config.mask.activation))


def load_run(workdir: str | os.PathLike[str], *, step: int | str = "last", registry: Registry | None = None) -> Run:
    """Reads a run; nothing in its working directory changes, and it may still be training.

    Args:
      workdir: of the run.
      step: a step that was saved, `last` for the newest, or `best` for the one with the highest online kNN accuracy.
      registry: what the configuration's names stand for; None is ours and `config.plugins`.

    Raises:
      ConfigError: there is no run, or no such step; the message names those that exist.
      CheckpointError: the checkpoint is damaged or another model's.
    """
    place = to_place(workdir)
    config = read_config(place, registry)
    folder = place / "checkpoints"
    checkpoints = Checkpoints.for_reading(folder) if folder.is_dir() else None
    steps = checkpoints.steps() if checkpoints is not None else []
    if checkpoints is None or not steps:
        raise ConfigError(f"--workdir {workdir} has no checkpoint; expected a run that has saved at least one")
    try:
        found = _resolve(step, checkpoints, steps)
        restored = checkpoints.restore(jax.eval_shape(lambda: init_state(config, registry=registry)), step=found)
    except DamagedError as error:
        raise DamagedError(f"--workdir {workdir}: {error}; the steps saved there are {_listed(steps)}") from error
    except CheckpointError as error:
        raise CheckpointError(f"--workdir {workdir}: {error}") from error
    finally:
        checkpoints.close()
    return Run(place, config, restored.state, found, resolve_registry(registry, config))


def features(run: Run, source: Source) -> tuple[np.ndarray, np.ndarray]:
    """Features of a whole source from the frozen encoder, on all local devices, kept on disk under the workdir.

    Args:
      run: of `load_run`.
      source: the pictures, such as `open_configured(run.config.data, split="test")`.

    Returns:
      Features h float32 [size, dim], not multiplied by the mask, and labels int32 [size], -1 where there is none. Those
      of a large set are memory-mapped. In a run of several processes both are of this process's rows, `own_rows`.
    """

    def extract(allocate: Allocate) -> tuple[np.ndarray, np.ndarray]:
        extractor, state = make_extractor(run.config, registry=run.registry), run.state
        return extract_source(extractor, state.params, state.batch_stats, source, allocate=allocate)

    return cached_features(
        run.workdir / "features",
        extract,
        config=run.config,
        encoder=(run.state.params["encoder"], run.state.batch_stats["encoder"]),
        step=run.step,
        source=source,
    )


def read_config(workdir: Place, registry: Registry | None = None) -> ConfigDict:
    """The configuration of the run in a working directory."""
    if not is_folder(workdir):
        raise ConfigError(f"--workdir {workdir} does not exist; expected the folder of a pretrained run")
    path = workdir / "config.json"
    if not path.is_file():
        raise ConfigError(f"--workdir {workdir} has no config.json; expected a folder that run_pretrain.py has written")
    try:
        return validate(from_json(path.read_bytes()), registry)
    except (ValueError, OSError, AttributeError) as error:  # no JSON, no object, or a key of another version
        raise ConfigError(f"--workdir {workdir}: config.json cannot be used, {error}") from error


def _resolve(step: int | str, checkpoints: Checkpoints, steps: list[int]) -> int:
    if step == "last":
        return steps[-1]
    if step == "best":
        best = checkpoints.best_step()
        if best is None:
            raise ConfigError(f"--step best; no checkpoint has a kNN accuracy; expected 'last' or {_listed(steps)}")
        return best
    if step not in steps:
        raise ConfigError(f"--step {step}; expected 'last', 'best' or a step that was saved: {_listed(steps)}")
    return int(step)


def _listed(steps: list[int]) -> str:
    return ", ".join(map(str, steps))
