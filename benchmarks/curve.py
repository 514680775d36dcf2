"""Loss of a training on the native kernels beside the same training on XLA's own convolutions and sums.

    python benchmarks/curve.py [--steps 140] [--data_dir ~/tensorflow_datasets]

A short run on confounded shapes, three times: with either kind of kernels from the same weights, and with XLA's from
weights moved by one part in a million. Rounding differs from the first step on, and training magnifies it; the third
run shows by how much.
"""

import argparse
from pathlib import Path

import jax
from ml_collections import ConfigDict

from metamask_jax import init_state, kernels, make_train_step, validate
from metamask_jax.config import apply_overrides
from metamask_jax.config.recipes import short_run
from metamask_jax.data import batches, open_source, steps_per_epoch


def losses(config: ConfigDict, *, native: bool, moved: float = 0.0) -> dict[int, float]:
    """Loss at every tenth step, from weights moved by so much of their size."""
    kernels.use("native" if native else "xla")
    source = open_source(config.data.name, split="pretrain", data_dir=config.data.dir)
    batch_size, steps = config.train.batch_size, config.train.steps
    epoch = steps_per_epoch(len(source), batch_size)
    step = jax.jit(make_train_step(config, steps_per_epoch=epoch, total_steps=steps), donate_argnums=0)
    state, key, found = init_state(config), jax.random.key(1), {}
    params = jax.tree.map(lambda w: w * (1 + moved * jax.random.normal(key, w.shape)), state.params)
    state = state.replace(params=params)
    for i, batch in enumerate(batches(source, seed=config.train.seed, batch_size=batch_size, num_steps=steps), start=1):
        state, metrics = step(state, batch)
        if i % 10 == 0:
            found[i] = float(metrics["loss"])
    jax.clear_caches()  # the same step is traced for the other kernels next
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=140)
    parser.add_argument("--data_dir", default=str(Path.home() / "tensorflow_datasets"))
    flags = parser.parse_args()
    settings = {"train.steps": str(flags.steps), "data.dir": flags.data_dir}
    config = validate(apply_overrides(short_run("simclr", "confounded_shapes"), settings))
    curves = [
        losses(config, native=True),
        losses(config, native=False),
        losses(config, native=False, moved=1e-6),
    ]
    print(f"{'step':>4}{'native':>12}{'plain':>12}{'moved':>12}{'native/plain - 1':>18}{'moved/plain - 1':>18}")
    for step, plain in curves[1].items():
        native, moved = curves[0][step], curves[2][step]
        print(f"{step:4}{native:12.4f}{plain:12.4f}{moved:12.4f}{native / plain - 1:18.1e}{moved / plain - 1:18.1e}")


if __name__ == "__main__":
    main()
