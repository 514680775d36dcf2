"""Time of a training step against the batch, and the straight line through it.

python benchmarks/batch.py [--encoder conv] [--batches 32 64 128] [--repeats 5] [--steps joint meta]
"""

import argparse
from functools import partial

import jax
import numpy as np
from step import STEPS, medians, our_steps

from metamask_jax.kernels.process import keep_freed_memory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", choices=("resnet18", "conv"), default="conv")
    parser.add_argument("--batches", nargs="+", type=int, default=[32, 64, 128])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=STEPS)
    flags = parser.parse_args()
    keep_freed_memory()
    runs = {}
    for batch in flags.batches:
        steps = our_steps(flags.encoder, batch)
        for name in flags.steps:
            step, *arguments = steps[name]
            compiled = jax.jit(step).lower(*arguments).compile()
            runs[f"{name} {batch}"] = partial(
                lambda run, inputs: jax.block_until_ready(run(*inputs)), compiled, arguments
            )
    seconds = medians(runs, flags.repeats)
    print(f"seconds of a step, {flags.encoder}, medians of {flags.repeats}")
    print(f"{'batch':<12}" + "".join(f"{batch:>9}" for batch in flags.batches) + "   fit")
    for name in flags.steps:
        taken = [seconds[f"{name} {batch}"] for batch in flags.batches]
        slope, constant = np.polyfit(flags.batches, taken, 1)
        error = np.abs(np.polyval((slope, constant), flags.batches) / taken - 1).max()
        print(f"{name:<12}" + "".join(f"{value:9.3f}" for value in taken), end="   ")
        print(f"{constant:.3f} + {1e3 * slope:.2f} ms x batch, off by at most {100 * error:.0f} %")


if __name__ == "__main__":
    main()
