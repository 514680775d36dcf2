"""Making a working directory a run's own: what may go on there, and what is refused."""

from collections.abc import Iterator
from contextlib import contextmanager

from ml_collections import ConfigDict

from metamask_jax.config import differences, from_json, to_json
from metamask_jax.core.places import Place
from metamask_jax.core.storage import read_json_lines, write_atomically
from metamask_jax.data.sources import DATA_UNCHANGED_BY
from metamask_jax.errors import CheckpointError, ConfigError
from metamask_jax.training.checkpoint import RESTART
from metamask_jax.training.lock import WorkdirLock, check_free
from metamask_jax.training.saved_steps import has_checkpoints

# What may change between a run's start and its continuation without changing the trajectory.
_FREE_TO_CHANGE = ("log.", "checkpoint.", "eval.", "guard.", *DATA_UNCHANGED_BY)
# What a run and its evaluation leave. Features on disk are not among it: their names tell which encoder gave them.
_OF_A_RUN = (
    *("checkpoints", "config.json", "metrics.jsonl", "masks.jsonl", "tensorboard", "profile", "wandb", "wandb_id"),
    *("result.json", "report.npz", "report.html", "evaluation.json", "evaluation.md", "diagnostics", "measures"),
)


def check_workdir(workdir: Place, config: ConfigDict, *, accept_changes: bool, restart: bool) -> None:
    """Refuses a working directory that cannot be this run's; changes nothing.

    Args:
      workdir: a folder; it need not exist.
      config: the configuration to run there.
      accept_changes: go on even though the configuration is not the one the run was started with.
      restart: begin anew, whatever is there.

    Raises:
      ConfigError: another run's, in use, or its `config.json` cannot be read.
      CheckpointError: a run was there that has no checkpoint left.
    """
    if workdir.exists() and not workdir.is_dir():
        raise ConfigError(f"--workdir {workdir} is a file; expected a folder, or the name of one to be made")
    check_free(workdir)
    if not restart:
        _check_contents(workdir, config, accept_changes)


@contextmanager
def claimed_workdir(
    workdir: Place, config: ConfigDict, *, accept_changes: bool, restart: bool
) -> Iterator[WorkdirLock]:
    """Makes the working directory this run's while the block lasts; the arguments are those of `check_workdir`."""
    with _writing(workdir):
        workdir.mkdir(parents=True, exist_ok=True)
        lock = WorkdirLock(workdir)
    with lock:
        if not restart:
            _check_contents(workdir, config, accept_changes)  # once more: now nobody else can change them
        with _writing(workdir):
            if restart:
                _set_aside(workdir)
            write_atomically(workdir / "config.json", to_json(config))
        yield lock


def read_config_json(workdir: Place) -> ConfigDict:
    """The configuration in a working directory, not validated."""
    try:
        return from_json((workdir / "config.json").read_bytes())
    except (OSError, ConfigError) as error:
        raise ConfigError(f"--workdir {workdir}: config.json cannot be used, {error}") from error


def _check_contents(workdir: Place, config: ConfigDict, accept_changes: bool) -> None:
    old = read_config_json(workdir) if (workdir / "config.json").exists() else config
    changed = [d for d in differences(old, config) if not d.startswith(_FREE_TO_CHANGE)]
    # What was never trained binds nobody: it may have failed for the very reason that was changed.
    if _has_trained(workdir, old) and changed and not accept_changes:
        raise ConfigError(
            f"--workdir {workdir} was started with another configuration ({'; '.join(changed)}); "
            "expected the same one, another workdir, or --accept-changes"
        )


def _has_trained(workdir: Place, old: ConfigDict) -> bool:
    """Whether a run has taken steps here; refuses if it has and its checkpoints are gone."""
    if has_checkpoints(workdir / "checkpoints"):
        return True
    if damaged := sorted(path.name for path in (workdir / "checkpoints").glob("*.damaged*")):
        raise CheckpointError(
            f"--workdir {workdir} has only damaged checkpoints ({', '.join(damaged)}); expected a whole one, {RESTART}"
        )
    logged = max((line["step"] for line in read_json_lines(workdir / "metrics.jsonl")), default=0)
    # The second save begins when the first has ended; a run that was killed earlier may have no checkpoint.
    if logged > 2 * old.checkpoint.every_steps:
        raise CheckpointError(
            f"--workdir {workdir} has metrics up to step {logged}, no checkpoint; expected its checkpoints, {RESTART}"
        )
    return logged > 0


def _set_aside(workdir: Place) -> None:
    """Moves what a run has left into a folder of its own."""
    present = [workdir / name for name in _OF_A_RUN if (workdir / name).exists()]
    if present:
        number = 1
        while (folder := workdir / f"previous-{number}").exists():
            number += 1
        folder.mkdir()
        for path in present:
            path.rename(folder / path.name)


@contextmanager
def _writing(workdir: Place) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"--workdir {workdir}; expected a folder that can be written, but: {error}") from error
