"""Memory of a training step and of the losses, from the compiler's own account: nothing is run.

    python benchmarks/memory.py [--encoder conv] [--batches 32 64 128] [--part steps losses]

A step's memory is its arguments, results and temporary buffers together. The losses are differentiated at batch 8,192,
whole and in chunks. Memory is decided before code is generated, so code is generated in a hurry.
"""

import argparse
import os
from collections.abc import Callable
from functools import partial
from typing import Any

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_backend_optimization_level=0"

import jax
import jax.numpy as jnp
import numpy as np
from step import STEPS, our_steps

from metamask_jax.core.losses import nt_xent, redundancy_reduction

LOSSES: list[tuple[str, Callable[..., jax.Array], tuple[int, int, int], int | None]] = [
    ("nt_xent", partial(nt_xent, temperature=0.07), (2, 8192, 256), None),
    ("nt_xent", partial(nt_xent, temperature=0.07), (2, 8192, 256), 512),
    *(
        (
            "redundancy_reduction",
            partial(redundancy_reduction, off_diagonal_weight=0.005, centered=True),
            (2, 8192, dim),
            chunk_size,
        )
        for dim in (8192, 16384)
        for chunk_size in (None, 512)
    ),
]


def megabytes(function: Callable, *arguments: Any) -> float:
    """Arguments, results and temporary buffers of a compiled function."""
    analysis = jax.jit(function).lower(*arguments).compile().memory_analysis()
    sizes = (analysis.argument_size_in_bytes, analysis.output_size_in_bytes, analysis.temp_size_in_bytes)
    return sum(sizes) / 1e6


def print_steps(encoder: str, batches: list[int]) -> None:
    """A table of the steps' memory, and the straight line through it."""
    print(f"MB of a step, {encoder}\n{'batch':<12}" + "".join(f"{batch:>9}" for batch in batches) + "   fit")
    for name in STEPS:
        used = []
        for batch in batches:
            used.append(megabytes(*our_steps(encoder, batch)[name]))
        slope, constant = np.polyfit(batches, used, 1)
        error = np.abs(np.polyval((slope, constant), batches) / used - 1).max()
        print(f"{name:<12}" + "".join(f"{mb:9.0f}" for mb in used), end="   ")
        print(f"{constant:.0f} + {slope:.2f} x batch, off by at most {100 * error:.0f} %", flush=True)


def print_losses() -> None:
    print(f"{'loss':<22}{'[views, batch, dim]':<22}{'chunk':>6}{'MB':>8}")
    for name, loss, shape, chunk_size in LOSSES:
        z = jax.ShapeDtypeStruct(shape, jnp.float32)
        used = megabytes(jax.value_and_grad(partial(loss, chunk_size=chunk_size)), z)
        print(f"{name:<22}{shape!s:<22}{chunk_size or '-':>6}{used:8.0f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", choices=("resnet18", "conv"), default="conv")
    parser.add_argument("--batches", nargs="+", type=int, default=[32, 64, 128])
    parser.add_argument("--part", nargs="+", choices=("steps", "losses"), default=("steps", "losses"))
    flags = parser.parse_args()
    if "steps" in flags.part:
        print_steps(flags.encoder, flags.batches)
    if "losses" in flags.part:
        print_losses()


if __name__ == "__main__":
    main()
