"""Loss of a training on the native kernels beside the same training on XLA's own convolutions and sums.

    python benchmarks/curve.py [--steps 140] [--data_dir ~/tensorflow_datasets]

A short run on confounded shapes, three times: with either kind of kernels from the same weights, and with XLA's from
weights moved by one part in a million. Rounding differs from the first step on, and training magnifies it; the third
run shows by how much.
"""

import argparse
import tempfile
from contextlib import ExitStack
from pathlib import Path
from unittest import mock

import jax
from ml_collections import ConfigDict

from metamask_jax.config import apply_overrides
from metamask_jax.config.recipes import short_run
from metamask_jax.core.storage import read_json_lines
from metamask_jax.kernels import cpu_kernels, moments
from metamask_jax.training import loop as train
from metamask_jax.training.state import TrainState, init_state


def losses(config: ConfigDict, *, native: bool, moved: float = 0.0) -> dict[int, float]:
    """Loss at every tenth step, from weights moved by so much of their size."""

    def start(config: ConfigDict) -> TrainState:
        state, key = init_state(config), jax.random.key(1)
        return state.replace(
            params=jax.tree.map(lambda w: w * (1 + moved * jax.random.normal(key, w.shape)), state.params)
        )

    with tempfile.TemporaryDirectory() as workdir, ExitStack() as stack:
        stack.enter_context(mock.patch.object(train, "init_state", start))
        if not native:
            stack.enter_context(mock.patch.object(cpu_kernels, "choose", return_value="lax"))
            stack.enter_context(mock.patch.object(moments, "has_native", return_value=False))
        train.pretrain(config, workdir)
        return {line["step"]: line["loss"] for line in read_json_lines(Path(workdir) / "metrics.jsonl")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=140)
    parser.add_argument("--data_dir", default=str(Path.home() / "tensorflow_datasets"))
    flags = parser.parse_args()
    settings = {"train.steps": str(flags.steps), "data.dir": flags.data_dir, "log.every_steps": "10"}
    config = apply_overrides(short_run("simclr", "confounded_shapes"), settings)
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
