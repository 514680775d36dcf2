"""Loss of a training with the fast convolution kernels beside the same training with XLA's own.

    python benchmarks/curve.py [--encoder resnet18] [--batch 16] [--steps 30] [--learn-mask]

Both start from the same weights and see the same random pictures. Rounding differs from the first step on, and training
magnifies it.
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


def losses(encoder: str, batch_size: int, steps: int, learn: bool) -> Iterator[float]:
    """Loss before each step."""
    config = official(default_config())
    config.encoder.name, config.train.batch_size, config.mask.learn = encoder, batch_size, learn
    config.meta.estimator, config.optimizer.learning_rate = "exact", 0.01
    config = validate(config)
    step = jax.jit(make_train_step(config, steps_per_epoch=steps, total_steps=steps, axis_name=None))
    state, rng, places = init_state(config), np.random.default_rng(0), jnp.arange(batch_size)
    for _ in range(steps):
        coarse = rng.integers(0, 256, size=(batch_size, 4, 4, 3), dtype=np.uint8)
        images = coarse.repeat(8, axis=1).repeat(8, axis=2)
        state, metrics = step(state, Batch(images, labels=places, positions=places, indices=places))
        yield float(metrics["loss"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", choices=("resnet18", "conv"), default="resnet18")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--learn-mask", action="store_true", help="meta steps too")
    flags = parser.parse_args()
    settings = (flags.encoder, flags.batch, flags.steps, flags.learn_mask)
    fast = list(losses(*settings))
    with mock.patch.object(cpu_kernels, "choose", return_value="lax"):
        plain = list(losses(*settings))
    print(f"{'step':>4}{'fast':>12}{'plain':>12}{'difference':>12}")
    for i, (a, b) in enumerate(zip(fast, plain, strict=True)):
        if i % max(1, flags.steps // 10) == 0 or i == flags.steps - 1:
            print(f"{i:4}{a:12.4f}{b:12.4f}{abs(a / b - 1):12.1e}")


if __name__ == "__main__":
    main()
