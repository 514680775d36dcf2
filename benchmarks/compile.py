"""Time to the first step, in seconds of CPU, beside that of another commit: what is compiled anew, and what is kept.

    python benchmarks/compile.py [--against COMMIT] [--programs quickstart:joint ...] [--repeats 3]

Each figure is of a process of its own with nothing kept from before; both versions run in turns, and medians are
compared. `trace` is what Python does, native kernels included, `compile` what XLA does, `weights` (of `CONFIG:init`)
what the first state of a run takes. `start` is the whole command `run_pretrain.py --config quickstart` for one step,
as each version has it, when an earlier start has left its programs: `first` without them, `second` with them. CPU
seconds of all threads, so that a busy machine matters little.
"""

import argparse
import contextlib
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).resolve().parents[1]
PROGRAMS = ("quickstart:joint", "quickstart:exact", "cifar10_resnet18:joint", "cifar10_resnet18:exact")
START = ("run_pretrain.py", "--config", "quickstart", "--config.train.steps=1", "--config.eval.size=100")


def measure(program: str) -> dict[str, float]:
    """CPU seconds of this process for one training step, `CONFIG:joint` or `CONFIG:exact`, or the weights, `:init`."""
    began = time.process_time()
    import jax

    from metamask_jax.cli.common import set_up_process
    from metamask_jax.config import apply_overrides, load_config
    from metamask_jax.training.compilation import lower_step, picture_shape
    from metamask_jax.training.registry import validate
    from metamask_jax.training.state import init_state

    set_up_process()  # as every command does
    name, _, kind = program.partition(":")
    config = load_config(name)
    # The same program in every version: older ones know no other judge, scope or features.
    same = {"meta.outer": "batch", "meta.scope": "all", "encoder.features": "None"}
    known = {key: text for key, text in same.items() if key.split(".")[1] in config[key.split(".")[0]]}
    overrides = {"mask.learn": str(kind == "exact"), "meta.estimator": "exact"} | known
    config = validate(apply_overrides(config, overrides))
    imported = time.process_time()
    if kind == "init":
        jax.block_until_ready(init_state(config))
        return {"import": imported - began, "weights": time.process_time() - imported}
    lowered = lower_step(config, jax.devices(), picture_shape(config))
    traced = time.process_time()
    lowered.compile()
    compiled = time.process_time()
    return {"import": imported - began, "trace": traced - imported, "compile": compiled - traced}


def in_process(tree: pathlib.Path, program: str) -> dict[str, float]:
    """The same in a process of its own, with the package of a source tree."""
    command = [sys.executable, str(pathlib.Path(__file__).resolve()), "--measure", program]
    with tempfile.TemporaryDirectory() as home:  # where programs would be kept
        environment = _environment(tree) | {"HOME": home}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def starts(tree: pathlib.Path) -> dict[str, float]:
    """CPU seconds of the command itself, without and with the programs that the first start has left."""
    found = {}
    with tempfile.TemporaryDirectory() as home:
        for start in ("first", "second"):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run(
                [sys.executable, str(tree / START[0]), *START[1:], "--workdir", f"{home}/{start}"],
                env=_environment(tree) | {"HOME": home},
                cwd=home,
                capture_output=True,
                check=True,
            )
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            found[start] = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return found


def _environment(tree: pathlib.Path) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if key != "JAX_COMPILATION_CACHE_DIR"}
    return kept | {"PYTHONPATH": str(tree), "JAX_PLATFORMS": "cpu"}


@contextlib.contextmanager
def checked_out(commit: str | None) -> Iterator[pathlib.Path | None]:
    """The files of a commit in a temporary folder."""
    if commit is None:
        yield None
        return
    with tempfile.TemporaryDirectory() as folder:
        tree = pathlib.Path(folder) / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--detach", str(tree), commit], check=True, capture_output=True)
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True, capture_output=True)


def compare(trees: dict[str, pathlib.Path], programs: list[str], repeats: int) -> dict[str, dict[str, list[float]]]:
    """CPU seconds by what is measured, and by version."""
    found: dict[str, dict[str, list[float]]] = {}
    for _ in range(repeats):
        for program in programs:
            for version, tree in trees.items():
                seconds = starts(tree) if program == "start" else in_process(tree, program)
                if "trace" in seconds:
                    seconds["trace + compile"] = seconds["trace"] + seconds["compile"]
                for part, value in seconds.items():
                    found.setdefault(f"{program} {part}", {}).setdefault(version, []).append(value)
    return found


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", metavar="COMMIT", help="a commit to compare with")
    parser.add_argument(
        "--programs", nargs="+", default=[*PROGRAMS, "start"], help="CONFIG:joint, CONFIG:exact, CONFIG:init, start"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="all figures instead of a table")
    parser.add_argument("--measure", metavar="PROGRAM", help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.measure:
        print(json.dumps(measure(flags.measure)))
        return
    with checked_out(flags.against) as other:
        trees = {"here": ROOT} | ({flags.against: other} if other else {})
        found = compare(trees, flags.programs, flags.repeats)
    if flags.json:
        print(json.dumps(found, indent=2))
        return
    print(f"{'CPU seconds':42}" + "".join(f"{version:>12}" for version in trees) + f"{'ratio':>8}")
    for name, by_version in found.items():
        medians = [statistics.median(values) for values in by_version.values()]
        ratio = f"{medians[0] / medians[1]:8.2f}" if len(medians) > 1 else ""
        print(f"{name:42}" + "".join(f"{median:12.2f}" for median in medians) + ratio)


if __name__ == "__main__":
    main()
