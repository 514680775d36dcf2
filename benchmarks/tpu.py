"""What a training step costs on a TPU, from the TPU's own compiler: nothing is run, and no TPU is needed.

    python benchmarks/tpu.py [--topology v5e:2x4] [--config cifar10_resnet18] [--steps joint exact ...]
        [--dtypes float32 bfloat16] [--effort -1] [--results FILE] [--against FILE]

Needs libtpu (pip install 'metamask_jax[tpu]'). Counts are exact: the same for every run of the same versions. A ResNet
takes minutes per row; --effort -1 compiles faster, with more memory and other counts, so compare rows of one effort
only. --results keeps every row in a file of JSON lines as soon as it is compiled, and does not compile it again;
--against names such a file of another commit, and adds what is left of its bytes and all-reduces.
"""

import argparse
import dataclasses
import json
import os
import subprocess
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"  # a chip of this machine, if it has any, stays free

from metamask_jax.config import apply_overrides, load_config
from metamask_jax.training.compilation import compile_step, picture_shape, topology
from metamask_jax.training.registry import validate

STEPS = {
    "joint": {"mask.learn": "False"},
    "exact": {"meta.estimator": "exact"},
    "exact_recomputed": {"meta.estimator": "exact_recomputed"},
    "lookahead": {"meta.estimator": "lookahead"},
    "head": {"meta.estimator": "exact", "meta.scope": "head"},
}
HEAD = (
    *("step", "dtype", "GFLOP/image", "MB/image", "GiB/chip", "all-reduces", "MB sent"),
    *("compute, ms", "memory, ms", "links, ms", "images/s at best"),
)
Row = dict[str, Any]


def compiled(name: str, dtype: str, flags: argparse.Namespace) -> Row:
    """Compiles one step; everything that the table needs of it, and what it was compiled from."""
    config = validate(apply_overrides(load_config(flags.config), STEPS[name] | {"train.dtype": dtype}))
    pod = topology(flags.topology)
    account = compile_step(config, pod, picture_shape(config), effort=flags.effort)
    values = dataclasses.asdict(account) | {
        "traffic": [entry._asdict() for entry in account.traffic],
        "limits": account.limits and account.limits._asdict(),
    }
    share = config.train.batch_size // len(pod.devices)
    return {"batch_size": config.train.batch_size, "share": share, "sent": _sent(pod, account)} | values


def _sent(pod: Any, account: Any) -> float:
    return account.limits.links * pod.chip.links if account.limits else 0.0


def all_reduces(row: Row) -> int:
    return sum(entry["calls"] for entry in row["traffic"] if entry["kind"] == "all-reduce")


def cells(row: Row, before: Row | None) -> list[str]:
    """The costs of a step; what is not known of one that does not fit stays empty."""
    memory = f"{row['used'] / 2**30:.2f}"
    if row["limits"] is None:
        return ["", "", memory, *[""] * 5, "does not fit"]
    times = row["limits"]
    bound = max(times, key=times.get)
    numbers = [row["flops"] / row["share"] / 1e9, row["bytes_accessed"] / row["share"] / 1e6]
    shown = [f"{number:.1f}" for number in numbers]
    reductions = str(all_reduces(row))
    if before is not None and before["limits"] is not None:
        shown[1] += f" (of {before['bytes_accessed'] / before['share'] / 1e6:.1f})"
        reductions += f" (of {all_reduces(before)})"
    best = f"{row['batch_size'] / times[bound]:,.0f} ({bound})"
    return [*shown, memory, reductions, f"{row['sent'] / 1e6:.0f}", *(f"{1e3 * t:.1f}" for t in times.values()), best]


def read(path: str | None) -> dict[str, Row]:
    """Rows of a file of results by what they are of."""
    if path is None or not Path(path).exists():
        return {}
    return {row["key"]: row for row in map(json.loads, Path(path).read_text().splitlines())}


def commit() -> str:
    """The commit that this is, as far as git knows."""
    found = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topology", default="v5e:2x4")
    parser.add_argument("--config", default="cifar10_resnet18")
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=list(STEPS))
    parser.add_argument("--dtypes", nargs="+", choices=("float32", "bfloat16"), default=["float32", "bfloat16"])
    parser.add_argument("--effort", type=float, default=0.0)
    parser.add_argument("--results")
    parser.add_argument("--against")
    flags = parser.parse_args()
    known, others = read(flags.results), read(flags.against)
    print(f"{flags.config} on {flags.topology}, effort {flags.effort:g}, commit {commit()}\n")
    print("| " + " | ".join(HEAD) + " |")
    print("|" + "---|" * len(HEAD))
    for name in flags.steps:
        for dtype in flags.dtypes:
            key = f"{flags.config} {flags.topology} {name} {dtype} {flags.effort:g}"
            if key not in known:
                known[key] = {"key": key, "commit": commit(), **compiled(name, dtype, flags)}
                if flags.results:
                    with Path(flags.results).open("a") as file:
                        file.write(json.dumps(known[key]) + "\n")
            print("| " + " | ".join([name, dtype, *cells(known[key], others.get(key))]) + " |", flush=True)


if __name__ == "__main__":
    main()
