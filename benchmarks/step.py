"""Time of one training step beside the authors' step in PyTorch: same networks, batch, losses and weights, one run.

    pip install torch
    python benchmarks/step.py [--encoder resnet18] [--batch 64] [--repeats 5] [--steps joint meta lookahead] [--json]

Steps run in turns and medians are compared, so that a ratio means something on a busy machine. Both sides get ready
views: augmentation is in neither. `joint` trains encoder and heads with the mask fixed; `meta` also trains the mask,
here by the exact meta-gradient, there by the authors' finite difference; `lookahead` is ours alone. FLOPs are those of
the same program with plain convolutions, so a kernel that multiplies less can exceed the machine's matrix product.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from metamask_jax.config import default_config, official
from metamask_jax.kernels.process import keep_freed_memory
from metamask_jax.methods import Clock
from metamask_jax.training.objective import Context, Sample
from metamask_jax.training.registry import validate
from metamask_jax.training.state import TrainState, build_model, init_state
from metamask_jax.training.step import Moment, lookahead_step, meta_step, regular_step

STEPS = ("joint", "meta", "lookahead")
RATE = 1e-3
MATMUL = 2048  # rows and columns of the product that stands for the machine's peak


def our_steps(encoder: str, batch: int) -> tuple[TrainState, dict[str, Callable]]:
    """The initial state, and each step as `(state, sample) -> state`."""
    config = official(default_config())
    config.encoder.name, config.train.batch_size, config.meta.estimator = encoder, batch, "exact"
    config = validate(config)
    context = Context(config, build_model(config, axis_name=None), Clock(*jnp.zeros(3)), axis_name=None)

    rates = dict.fromkeys(("optimizer", "mask"), jnp.asarray(RATE))

    def joint(state: TrainState, sample: Sample) -> TrainState:
        return regular_step(context, state, sample, rates["optimizer"])[0]

    def meta(state: TrainState, sample: Sample) -> TrainState:
        return meta_step(context, joint(state, sample), sample, rates)[0]

    def lookahead(state: TrainState, sample: Sample) -> TrainState:
        updated, metrics, _, gradient = regular_step(context, state, sample, rates["optimizer"])
        # Other pictures with the same weights stand for the previous step: the work is the same.
        others = sample._replace(views=jnp.roll(sample.views, 1, axis=1))
        moments = (Moment(context, pictures, rates) for pictures in (sample, others))
        updated = updated.replace(previous=state)
        return lookahead_step(*moments, updated, loss=metrics["loss"], gradient=gradient)[0].replace(previous=())

    return init_state(config), {"joint": joint, "meta": meta, "lookahead": lookahead}


def random_sample(batch: int) -> Sample:
    """Views of noise; what they show does not change the work."""
    places = jnp.arange(batch)
    views = jax.random.normal(jax.random.key(0), (2, batch, 32, 32, 3))
    return Sample(views, jnp.zeros((0, batch, 32, 32, 3)), jax.random.split(jax.random.key(1), batch), places, places)


def direct_flops(step: Callable, *arguments: Any) -> float:
    """Floating-point operations of a step whose convolutions are XLA's own, as they are off the CPU."""
    lowered = jax.jit(step).trace(*arguments).lower(lowering_platforms=("tpu",))
    return lowered.cost_analysis()["flops"]


def medians(runs: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Median seconds of each run, all of them in turns, after one warm-up."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats + 1):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values[1:]) for name, values in seconds.items()}


def runs(flags: argparse.Namespace, sample: Sample) -> tuple[dict[str, Callable[[], Any]], dict[str, float]]:
    """What to time, by name, and the FLOPs of our steps."""
    import torch_reference  # needs PyTorch, which only benchmarks do

    state, steps = our_steps(flags.encoder, flags.batch)
    steps = {name: steps[name] for name in flags.steps}
    flops = {name: direct_flops(step, state, sample) for name, step in steps.items()}
    timed: dict[str, Callable[[], Any]] = {}
    for name, step in steps.items():
        compiled = jax.jit(step).lower(state, sample).compile()
        timed[name] = lambda compiled=compiled: jax.block_until_ready(compiled(state, sample))
    trainer = torch_reference.Trainer(flags.encoder, state.params)
    views = trainer.views(np.array(sample.views))
    theirs = {"joint": trainer.joint_step, "meta": trainer.meta_step}
    timed |= {f"torch {name}": lambda step=theirs[name]: step(views) for name in steps if name in theirs}
    square = jax.random.normal(jax.random.key(0), (MATMUL, MATMUL))
    product = jax.jit(jnp.matmul)
    return timed | {"matmul": lambda: product(square, square).block_until_ready()}, flops


def ratios(seconds: dict[str, float], flops: dict[str, float]) -> dict[str, float]:
    pairs = {
        "meta_vs_torch": ("meta", "torch meta"),
        "joint_vs_torch": ("joint", "torch joint"),
        "meta_vs_joint": ("meta", "joint"),
        "lookahead_vs_joint": ("lookahead", "joint"),
    }
    found = {name: seconds[a] / seconds[b] for name, (a, b) in pairs.items() if a in seconds and b in seconds}
    if "meta" in seconds:
        peak = 2 * MATMUL**3 / seconds["matmul"]
        found["meta_peak_fraction"] = flops["meta"] / seconds["meta"] / peak
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", choices=("resnet18", "conv"), default="resnet18")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=STEPS)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    flags = parser.parse_args()
    keep_freed_memory()
    timed, flops = runs(flags, random_sample(flags.batch))
    seconds = medians(timed, flags.repeats)
    found = ratios(seconds, flops)
    if flags.json:
        settings = {"encoder": flags.encoder, "batch": flags.batch, "repeats": flags.repeats}
        print(json.dumps(settings | {"seconds": seconds, "flops": flops, "ratios": found}))
        return
    print(f"{flags.encoder}, batch {flags.batch}, medians of {flags.repeats}")
    work = flops | {"matmul": 2.0 * MATMUL**3}
    for name, value in seconds.items():
        rate = f"{work[name] / 1e9:10.0f} GFLOP {work[name] / value / 1e9:6.0f} GFLOP/s" if name in work else ""
        print(f"{name:<14}{value:8.3f} s{rate}")
    for name, value in found.items():
        print(f"{name:<20}{value:6.2f}")


if __name__ == "__main__":
    main()
