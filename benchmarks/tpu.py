"""What a training step costs on a TPU, from the TPU's own compiler: nothing is run, and no TPU is needed.

    python benchmarks/tpu.py [--topology v5e:2x4] [--config cifar10_resnet18] [--steps joint exact lookahead head]
        [--dtypes float32 bfloat16] [--effort -1]

Needs libtpu (pip install 'metamask_jax[tpu]'). Counts are exact: the same for every run of the same versions. A
ResNet takes minutes per row; --effort -1 compiles faster, with more memory and other counts, so compare rows of one
effort only.
"""

import argparse
import os

os.environ["JAX_PLATFORMS"] = "cpu"  # a chip of this machine, if it has any, stays free

import jax

from metamask_jax.config import apply_overrides, load_config
from metamask_jax.training.compilation import Account, Topology, compile_step, picture_shape, topology
from metamask_jax.training.registry import validate
from metamask_jax.version import __version__

STEPS = {
    "joint": {"mask.learn": "False"},
    "exact": {"meta.estimator": "exact"},
    "lookahead": {"meta.estimator": "lookahead"},
    "head": {"meta.estimator": "exact", "meta.scope": "head"},
}
HEAD = ("step", "dtype", "GFLOP/image", "MB/image", "GiB/chip", "all-reduces", "MB sent", "gathers", "images/s at best")


def row(pod: Topology, account: Account, batch_size: int) -> list[str]:
    """The costs of a step; what is not known of one that does not fit stays empty."""
    memory = f"{account.used / 2**30:.2f}"
    if account.limits is None:
        return ["", "", f"{memory} of {pod.chip.memory / 2**30:.2f}", "", "", "", "does not fit"]
    share = batch_size // len(pod.devices)
    return [
        f"{account.flops / share / 1e9:.2f}",
        f"{account.bytes_accessed / share / 1e6:.1f}",
        memory,
        str(sum(entry.calls for entry in account.traffic if entry.kind == "all-reduce")),
        f"{account.limits.links * pod.chip.links / 1e6:.1f}",
        str(account.gathers),
        f"{batch_size / account.limits.seconds:,.0f} ({account.limits.bound})",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topology", default="v5e:2x4")
    parser.add_argument("--config", default="cifar10_resnet18")
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=list(STEPS))
    parser.add_argument("--dtypes", nargs="+", choices=("float32", "bfloat16"), default=["float32", "bfloat16"])
    parser.add_argument("--effort", type=float, default=0.0)
    flags = parser.parse_args()
    pod = topology(flags.topology)
    print(
        f"{flags.config} on {pod.name}, {len(pod.devices)} chips, effort {flags.effort:g}; "
        f"metamask_jax {__version__}, jax {jax.__version__}\n"
    )
    print("| " + " | ".join(HEAD) + " |")
    print("|" + "---|" * len(HEAD))
    for name in flags.steps:
        for dtype in flags.dtypes:
            config = validate(apply_overrides(load_config(flags.config), STEPS[name] | {"train.dtype": dtype}))
            account = compile_step(config, pod, picture_shape(config), effort=flags.effort)
            print("| " + " | ".join([name, dtype, *row(pod, account, config.train.batch_size)]) + " |", flush=True)


if __name__ == "__main__":
    main()
