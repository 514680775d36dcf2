"""Checks a workdir, its data and its caches: what is whole, what is damaged, and what can be done about it.

metamask-doctor --workdir runs/cifar10 [--json]

Nothing in the workdir changes. Exit codes: 0 all is fine; 1 something is damaged; 2 something about the input is wrong.
"""

import itertools
import json
import os
import pathlib
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ml_collections import ConfigDict

from metamask_jax.cli.common import Parser, guarded, path_name
from metamask_jax.core.places import Place, is_url, to_place
from metamask_jax.errors import CheckpointError, ConfigError, one_line

if TYPE_CHECKING:
    from metamask_jax.training.checkpoint import Checkpoints

_RESTART = "`--restart` begins anew and keeps what is there in a folder beside"


class Finding(NamedTuple):
    """What is known of one part of a workdir.

    Attributes:
      part: its name.
      state: `fine`, `absent` (which is no fault: a run may not have come to it yet) or `damaged`.
      detail: what was found.
      remedy: what can be done; empty if nothing need be done.
    """

    part: str
    state: str
    detail: str
    remedy: str = ""

    def __str__(self) -> str:
        mark = {"fine": "ok", "absent": "--", "damaged": "DAMAGED"}[self.state]
        return f"{mark:<9}{self.part}: {self.detail}{f'; {self.remedy}' if self.remedy else ''}"


def examine(workdir: Place) -> list[Finding]:
    """Checks every part of a workdir, and the data and programs its run uses.

    Args:
      workdir: of the run; nothing there is changed, and it may still be training.

    Returns:
      What was found of each part.
    """
    config, first = _config(workdir)
    return [
        first,
        *_checkpoints(workdir, config),
        *(_lines(workdir / name) for name in ("metrics.jsonl", "masks.jsonl")),
        *_numbers(workdir),
        *_arrays(workdir),
        _data(config),
        _programs(),
    ]


def _config(workdir: Place) -> tuple[ConfigDict | None, Finding]:
    from metamask_jax.evaluate.workdir import read_config

    try:
        config = read_config(workdir)
    except ConfigError as error:
        remedy = "every checkpoint holds a copy of it: `config` in checkpoints/STEP/metadata/metadata"
        return None, Finding("config.json", "damaged", one_line(error), remedy)
    what = f"{config.method.name} with {config.encoder.name} on {config.data.name}"
    return config, Finding("config.json", "fine", what)


def _checkpoints(workdir: Place, config: ConfigDict | None) -> Iterator[Finding]:
    """Reads every checkpoint and compares its digest; without a configuration its shapes are not compared."""
    import jax

    from metamask_jax.training.checkpoint import Checkpoints
    from metamask_jax.training.state import init_state

    folder = workdir / "checkpoints"
    if not folder.is_dir():
        yield Finding("checkpoints", "absent", "none was saved yet")
        return
    checkpoints = Checkpoints.for_reading(folder)
    try:
        like = {} if config is None else jax.eval_shape(lambda: init_state(config))
        faults: dict[int, str | None] = dict.fromkeys(checkpoints.steps())
        for step in faults:
            try:
                checkpoints.restore(like, step=step)
            except CheckpointError as error:
                faults[step] = one_line(error)
        yield from _judged(faults, _best(checkpoints))
    finally:
        checkpoints.close()
    for aside in sorted(folder.glob("*.damaged*")):
        yield Finding(f"checkpoints/{aside.name}", "absent", "was found damaged by a run, which went on without it")


def _best(checkpoints: "Checkpoints") -> str:
    """Which checkpoint was rated best, for the eye."""
    try:
        best = checkpoints.best_step()
    except CheckpointError as error:
        return one_line(error)
    return "" if best is None else f"step {best} is the best by kNN"


def _judged(faults: dict[int, str | None], best: str) -> Iterator[Finding]:
    whole = [step for step, fault in faults.items() if fault is None]
    if not faults:
        yield Finding("checkpoints", "absent", "none was saved yet")
    for step, fault in faults.items():
        if fault is None:
            yield Finding(f"checkpoint {step}", "fine", "every array is what was written")
        else:
            earlier = f"the command that started the run goes on from step {whole[-1]}" if whole else _RESTART
            yield Finding(f"checkpoint {step}", "damaged", fault, earlier)
    if best.startswith("checkpoint"):
        yield Finding("checkpoint ratings", "damaged", best, "--step best cannot be asked for; --step last can")
    elif best:
        yield Finding("checkpoint ratings", "fine", best)


def _lines(path: Place) -> Finding:
    """Checks a file of one JSON object per line; a last line without an end is what a kill leaves."""
    if not path.exists():
        return Finding(path.name, "absent", "nothing was logged yet")
    try:
        *lines, _ = path.read_bytes().split(b"\n")
    except OSError as error:
        return Finding(path.name, "damaged", one_line(error))
    steps = [_step(line) for line in lines]
    damaged = [str(number) for number, step in enumerate(steps, start=1) if step is None]
    if damaged:
        few = ", ".join(damaged[:5]) + (", ..." if len(damaged) > 5 else "")
        detail = f"{len(damaged)} of {len(lines)} lines cannot be read: {few}"
        return Finding(path.name, "damaged", detail, "reports leave them out; the others are used")
    whole = [step for step in steps if step is not None]
    if any(late <= early for early, late in itertools.pairwise(whole)):
        return Finding(path.name, "damaged", "its steps are not in order", "two runs may have written it")
    return Finding(path.name, "fine", f"{len(whole)} lines" + (f" up to step {whole[-1]}" if whole else ""))


def _step(line: bytes) -> int | None:
    try:
        return int(json.loads(line)["step"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def _numbers(workdir: Place) -> Iterator[Finding]:
    """Checks what is written in one piece as JSON."""
    remedies = {
        "result.json": "the command that started the run writes it again from the last checkpoint",
        "evaluation.json": "`metamask-evaluate` writes it again",
    }
    more = [*workdir.glob("diagnostics/*.json"), *workdir.glob("measures/*.json")]
    for path in [*(workdir / name for name in remedies), *sorted(more)]:
        part = str(path.relative_to(workdir))
        try:
            found = json.loads(path.read_bytes())
        except FileNotFoundError:
            yield Finding(part, "absent", "was not written yet")
            continue
        except (OSError, ValueError, RecursionError) as error:
            yield Finding(part, "damaged", one_line(error), remedies.get(part, "delete it to have it made again"))
            continue
        state = "fine" if isinstance(found, dict) else "damaged"
        yield Finding(part, state, f"{len(found)} entries" if state == "fine" else "it holds no object")


def _arrays(workdir: Place) -> Iterator[Finding]:
    """Reads every array; the files have a checksum of each."""
    import numpy as np

    from metamask_jax.core.storage import local_copy

    features: list[Place] = sorted(workdir.glob("features/*.npz"))
    for path in [workdir / "report.npz", *features]:
        part = str(path.relative_to(workdir))
        again = (
            "features are extracted again by themselves" if path in features else "`metamask-report` does without it"
        )
        try:
            with local_copy(path) as copy, np.load(copy, allow_pickle=False) as file:
                arrays = dict(file)
        except FileNotFoundError:
            yield Finding(part, "absent", "was not written yet")
        except Exception as error:  # zipfile, zlib and NumPy raise many kinds
            yield Finding(part, "damaged", one_line(error), again)
        else:
            shapes = ", ".join(f"{name} {list(values.shape)}" for name, values in sorted(arrays.items()))
            yield Finding(part, "fine", shapes or "empty")


def _data(config: ConfigDict | None) -> Finding:
    """Opens the data if they are prepared already: a check-up downloads nothing."""
    import numpy as np

    from metamask_jax.data.sources import open_configured

    if config is None:
        return Finding("data", "absent", "which they are is in config.json")
    part = f"data {config.data.name}"
    try:
        if not _is_prepared(config):
            return Finding(part, "absent", f"not prepared in {config.data.dir}; training does so")
        source = open_configured(config.data, split="pretrain")
        images, _ = source.gather(np.array([0, len(source) - 1]))
    except Exception as error:  # of files in any condition
        return Finding(part, "damaged", one_line(error), "move that folder away, and it is prepared again")
    return Finding(part, "fine", f"{len(source)} pictures, the first and the last of shape {list(images.shape[1:])}")


def _is_prepared(config: ConfigDict) -> bool:
    import dataclasses

    from metamask_jax.data import builders, prepared

    folder, name = os.path.abspath(os.path.expanduser(config.data.dir)), config.data.name
    if name in builders.OPTIONS:
        kind = builders.OPTIONS[name]
        known = {field.name for field in dataclasses.fields(kind)}
        options = {key: value for key, value in config.data.options.items() if key in known}
        if options.get("path"):
            options["path"] = os.path.expanduser(options["path"])
        name = f"{name}/{kind(**options).config_name}"
    return prepared.find(name, folder) is not None


def _programs() -> Finding:
    """Checks the compiled programs that commands keep; a damaged one is never run."""
    from metamask_jax.cli.common import PROGRAMS
    from metamask_jax.kernels.programs import is_whole
    from metamask_jax.training.kept import SUFFIX

    name = os.environ.get("JAX_COMPILATION_CACHE_DIR") or PROGRAMS
    if is_url(name):
        return Finding("compiled programs", "absent", f"none on this machine; JAX keeps them in {name}")
    folder = pathlib.Path(name).expanduser()
    ours = (".o", SUFFIX)
    suffixes = ("-cache", *ours) if str(folder) == str(pathlib.Path(PROGRAMS).expanduser()) else ours
    paths = [path for path in folder.glob("*") if path.name.endswith(suffixes)]
    damaged = [path for path in paths if not is_whole(path)]
    if damaged:
        detail = f"{len(damaged)} of {len(paths)} files in {folder}, such as {damaged[0].name}"
        return Finding("compiled programs", "damaged", detail, "they are found out, removed and compiled again")
    return Finding("compiled programs", "fine" if paths else "absent", f"{len(paths)} files in {folder}")


def _doctor(arguments: Sequence[str]) -> int:
    parser = Parser("Checks a workdir, its data and its caches: what is whole, what is damaged, and what can be done.")
    parser.add_argument("--workdir", type=path_name, required=True, help="of the run, finished or not")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
    flags = parser.read(arguments)
    workdir = to_place(flags.workdir)
    if not (workdir / "config.json").exists():
        raise ConfigError(f"--workdir {workdir} has no config.json; expected the folder of a run")
    findings = examine(workdir)
    damaged = [finding for finding in findings if finding.state == "damaged"]
    if flags.json:
        report = {"workdir": str(workdir), "fine": not damaged, "findings": [f._asdict() for f in findings]}
        print(json.dumps(report, indent=2))
    else:
        print(*findings, sep="\n")
        print(f"{len(damaged)} of {len(findings)} parts are damaged" if damaged else "nothing is damaged")
    return 1 if damaged else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    return guarded(_doctor, arguments)


if __name__ == "__main__":
    sys.exit(main())
