"""Time of one training step beside the authors' step in PyTorch: same networks, batch, losses and weights, one run.

    pip install torch
    python benchmarks/step.py [--encoder resnet18] [--width 1] [--batch 64] [--repeats 5] [--steps joint ...] [--json]

Steps run in turns and medians are compared, so that a ratio means something on a busy machine. Both sides get ready
views: augmentation is in neither. `joint` trains encoder and heads with the mask fixed; `meta` also trains the mask,
here by the exact meta-gradient, there by the authors' finite difference; `recomputed` (the same meta-gradient in less
memory), `lookahead`, `head`, whose trial step moves the heads only, and `labels`, the same with as many labelled images
to judge the mask, are ours alone. FLOPs are those of the same program with plain convolutions, so a kernel that
multiplies less can exceed the machine's matrix product.
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

from metamask_jax.augment import CustomViews
from metamask_jax.config import apply_overrides, default_config, official
from metamask_jax.core.state import Judged, Pair
from metamask_jax.data.loader import Batch
from metamask_jax.kernels.process import keep_freed_memory
from metamask_jax.training.registry import REGISTRY, validate
from metamask_jax.training.state import TrainState, init_state
from metamask_jax.training.step import make_train_step

# What is timed by name: the settings of a training step that differ from `official` with the exact meta-gradient.
SETTINGS = {
    "joint": {"mask.learn": "false"},
    "meta": {},
    "recomputed": {"meta.estimator": "exact_recomputed"},
    "lookahead": {"meta.estimator": "lookahead"},
    "head": {"meta.scope": "head"},
    "labels": {"meta.scope": "head", "meta.outer": "labels"},
}
STEPS = tuple(SETTINGS)
MATMUL = 2048  # rows and columns of the product that stands for the machine's peak
# Views come ready: augmentation is no part of what is timed.
READY = REGISTRY.extended(augmentations={"ready": lambda image_size: CustomViews(lambda images, keys: images)})


def our_steps(
    encoder: str, batch: int, width: float = 1.0
) -> dict[str, tuple[Callable, TrainState, Batch | Pair | Judged]]:
    """Each training step with the state and the batch of noise that it starts from."""
    steps: dict[str, tuple[Callable, TrainState, Batch | Pair | Judged]] = {}
    for name, overrides in SETTINGS.items():
        config = official(default_config())
        config.encoder.update(name=encoder, width=width)
        config.train.batch_size, config.meta.estimator, config.data.augmentation = batch, "exact", "ready"
        config = validate(apply_overrides(config, overrides), READY)
        step = make_train_step(config, steps_per_epoch=100, total_steps=1000, registry=READY)
        state = init_state(config, registry=READY)
        pictures = random_batch(batch)
        if name == "lookahead":
            # In the second step, with other pictures before: in the first one there is nothing to look ahead from.
            state = state.replace(step=state.step + 1)
            others = pictures._replace(images=jnp.roll(pictures.images, 1, axis=1))
            steps[name] = step, state, Pair(others, pictures)
        elif name == "labels":
            few = pictures._replace(images=jnp.flip(pictures.images[:1]), labels=pictures.labels % 10)
            steps[name] = step, state, Judged(pictures, few)
        else:
            steps[name] = step, state, pictures
    return steps


def random_batch(batch: int) -> Batch:
    """Two views of noise of each image; what they show does not change the work."""
    places = np.arange(batch, dtype=np.int32)
    views = jax.random.normal(jax.random.key(0), (2, batch, 32, 32, 3))
    return Batch(images=views, labels=places, positions=places, indices=places)


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


def runs(flags: argparse.Namespace) -> tuple[dict[str, Callable[[], Any]], dict[str, float]]:
    """What to time, by name, and the FLOPs of our steps."""
    import torch_reference  # needs PyTorch, which only benchmarks do

    steps = our_steps(flags.encoder, flags.batch, flags.width)
    steps = {name: steps[name] for name in flags.steps}
    flops = {name: direct_flops(*found) for name, found in steps.items()}
    timed: dict[str, Callable[[], Any]] = {}
    for name, (step, *arguments) in steps.items():
        compiled = jax.jit(step).lower(*arguments).compile()
        timed[name] = lambda compiled=compiled, arguments=arguments: jax.block_until_ready(compiled(*arguments))
    _, state, _ = steps[flags.steps[0]]
    trainer = torch_reference.Trainer(flags.encoder, flags.width, state.params)
    views = trainer.views(np.array(random_batch(flags.batch).images))
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
        "recomputed_vs_meta": ("recomputed", "meta"),
        "lookahead_vs_joint": ("lookahead", "joint"),
        "head_vs_joint": ("head", "joint"),
        "labels_vs_joint": ("labels", "joint"),
    }
    found = {name: seconds[a] / seconds[b] for name, (a, b) in pairs.items() if a in seconds and b in seconds}
    if "meta" in seconds:
        peak = 2 * MATMUL**3 / seconds["matmul"]
        found["meta_peak_fraction"] = flops["meta"] / seconds["meta"] / peak
    return found


def parser_of_steps(description: str | None) -> argparse.ArgumentParser:
    """A parser of the flags that say of which network and batch the steps are."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", choices=("resnet18", "conv"), default="resnet18")
    parser.add_argument("--width", type=float, default=1.0, help="multiplier of the encoder's channels")
    parser.add_argument("--batch", type=int, default=64)
    return parser


def main() -> None:
    parser = parser_of_steps(__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=STEPS)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    flags = parser.parse_args()
    keep_freed_memory()
    timed, flops = runs(flags)
    seconds = medians(timed, flags.repeats)
    found = ratios(seconds, flops)
    if flags.json:
        settings = {"encoder": flags.encoder, "width": flags.width, "batch": flags.batch, "repeats": flags.repeats}
        print(json.dumps(settings | {"seconds": seconds, "flops": flops, "ratios": found}))
        return
    print(f"{flags.encoder}, width {flags.width:g}, batch {flags.batch}, medians of {flags.repeats}")
    work = flops | {"matmul": 2.0 * MATMUL**3}
    for name, value in seconds.items():
        rate = f"{work[name] / 1e9:10.0f} GFLOP {work[name] / value / 1e9:6.0f} GFLOP/s" if name in work else ""
        print(f"{name:<14}{value:8.3f} s{rate}")
    for name, value in found.items():
        print(f"{name:<20}{value:6.2f}")


if __name__ == "__main__":
    main()
