"""Loss of a training with the fast convolution kernels beside the same training with XLA's own.

    python benchmarks/curve.py [--encoder conv] [--batch 64] [--steps 30] [--learn-mask]

All start from the same weights and see the same pictures. Rounding differs from the first step on, and training
magnifies it: a third run, with XLA's kernels from weights moved by one part in a million, shows by how much.
"""

import argparse
from collections.abc import Iterator
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from metamask_jax.config import default_config, official, validate
from metamask_jax.data.loader import Batch
from metamask_jax.ops import cpu_kernels
from metamask_jax.state import init_state
from metamask_jax.train_step import make_train_step


def losses(encoder: str, batch_size: int, steps: int, learn: bool, *, moved: float = 0.0) -> Iterator[float]:
    """Loss before each step, from weights moved by so much of their size."""
    config = official(default_config())
    config.encoder.name, config.train.batch_size, config.mask.learn = encoder, batch_size, learn
    config.meta.estimator, config.method.temperature = "exact", 0.5
    config = validate(config)
    step = jax.jit(make_train_step(config, steps_per_epoch=steps, total_steps=steps, axis_name=None))
    state, rng, places = init_state(config), np.random.default_rng(0), jnp.arange(batch_size)
    noise = jax.random.key(1)
    params = jax.tree.map(lambda w: w * (1 + moved * jax.random.normal(noise, w.shape)), state.params)
    state = state.replace(params=params)
    pictures = rng.integers(0, 256, size=(4, batch_size, 4, 4, 3), dtype=np.uint8).repeat(8, axis=2).repeat(8, axis=3)
    for i in range(steps):
        batch = Batch(pictures[i % len(pictures)], labels=places, positions=places, indices=places)
        state, metrics = step(state, batch)
        yield float(metrics["loss"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", choices=("resnet18", "conv"), default="conv")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--learn-mask", action="store_true", help="meta steps too")
    flags = parser.parse_args()
    settings = (flags.encoder, flags.batch, flags.steps, flags.learn_mask)
    fast = list(losses(*settings))
    with mock.patch.object(cpu_kernels, "choose", return_value="lax"):
        plain = list(losses(*settings))
        moved = list(losses(*settings, moved=1e-6))
    print(f"{'step':>4}{'fast':>12}{'plain':>12}{'moved':>12}{'fast/plain - 1':>16}{'moved/plain - 1':>16}")
    for i, (a, b, c) in enumerate(zip(fast, plain, moved, strict=True)):
        if i % max(1, flags.steps // 10) == 0 or i == flags.steps - 1:
            print(f"{i:4}{a:12.4f}{b:12.4f}{c:12.4f}{a / b - 1:16.1e}{c / b - 1:16.1e}")


if __name__ == "__main__":
    main()
