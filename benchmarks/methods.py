"""Every method alone and with MetaMask on confounded_shapes: kNN of short runs beside the untrained encoder.

    python benchmarks/methods.py [--methods byol simclr ...] [--variants alone metamask] [--seeds 3] [--steps 200]
                                 [--out runs/methods] [--data-dir runs/data]

Each run is a cell of the table, kept as a JSON file in `--out`: what is finished there is not run again, so a stopped
benchmark goes on with the same command. It ends with a Markdown table of the mean and standard deviation over seeds.
A small `conv` encoder, a few hundred steps, and the same hyper-parameters for all methods but for what `SHORT` lists,
which was picked by the kNN accuracy of one seed: this shows that methods train, not which one is best.
"""

import argparse
import dataclasses
import json
import pathlib
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from metamask_jax import parallel
from metamask_jax.command_line import keep_compiled_programs
from metamask_jax.config import VARIANTS, default_config, validate
from metamask_jax.data.loader import batches, prefetch
from metamask_jax.data.sources import open_configured
from metamask_jax.methods import METHODS
from metamask_jax.monitor import Monitor
from metamask_jax.train import Plan
from metamask_jax.train_step import TrainState, init_state, make_train_step

# Settings of these short runs where a method's own are for long ones.
SHORT = {
    "byol": {"momentum": 0.9, "head_norm": True},
    "moco": {"momentum": 0.95, "queue_size": 1024, "temperature": 0.2},
    "nnclr": {"queue_size": 1024},
    "simclr": {"temperature": 0.2},
}


def cell_config(method: str, variant: str, *, steps: int, data_dir: str) -> ConfigDict:
    config = default_config()
    config.train.update(batch_size=64, steps=steps)
    config.data.update(dir=data_dir, augmentation="cmc" if method == "cmc" else "shapes", image_size=24)
    config.encoder.update(name="conv", width=0.125)
    config.method.update(name=method, head=(128, 64), predictor=64, **SHORT.get(method, {}))
    config.loss.update(drr_head=(128, 128), alpha=1.0)
    config.optimizer.update(
        name="adamw", learning_rate=3e-3, decay_norm_and_bias=False, schedule="cosine", warmup_epochs=0.2
    )
    config.mask.update(learning_rate=0.1, weight_decay=0.0, schedule="constant")
    config.meta.update(trial="gradient", learning_rate=0.01, head_learning_rate=0.01)
    config.eval.size = 4000
    if method == "cmc":
        config.data.size = 10_000
    return validate(VARIANTS[variant](config))


class Runner:
    """Runs of one method in one variant; all seeds share its compiled programs."""

    def __init__(self, config: ConfigDict) -> None:
        self.config = config
        self.monitor = Monitor(config)
        self.source = open_configured(config.data, split="pretrain")
        self.plan = Plan.of(config, len(self.source))
        step = make_train_step(config, **dataclasses.asdict(self.plan), axis_name=parallel.AXIS)
        self.step = parallel.parallelize(step)

    def start(self, seed: int) -> TrainState:
        """The state before the first step."""
        config = self.config.copy_and_resolve_references()
        config.train.seed = seed
        return init_state(config)

    def untrained(self, seed: int) -> dict[str, Any]:
        """Accuracy of the encoder as it starts."""
        return self.monitor(self.start(seed))

    def trained(self, seed: int) -> dict[str, Any]:
        """Accuracy after the run, and what tells of a collapse."""
        began = time.monotonic()
        state, metrics = self.start(seed), {}
        stream = batches(
            self.source,
            seed=seed,
            start_step=0,
            batch_size=self.config.train.batch_size,
            process_index=0,
            process_count=1,
            num_steps=self.plan.total_steps,
        )
        for batch in prefetch(stream, depth=2, transfer=partial(jax.tree.map, parallel.to_devices)):
            state, metrics = self.step(state, batch)
        metrics = {name: float(metrics[name]) for name in ("loss_method", "feature_std", "mask_std", "skipped")}
        return metrics | self.monitor(state) | {"seconds": round(time.monotonic() - began, 1)}


def cell(path: pathlib.Path, run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What is in the file, or what `run` gives, which is then kept there."""
    if not path.exists():
        result = run()
        path.with_suffix(".partial").write_text(json.dumps(result, indent=2))
        path.with_suffix(".partial").rename(path)
    result = json.loads(path.read_text())
    print(f"{path.stem:40} " + " ".join(f"{key}={value:.3g}" for key, value in result.items()), flush=True)
    return result


def table(results: dict[str, dict[str, list[float]]], variants: list[str]) -> str:
    """Markdown: kNN accuracy in percent, mean and standard deviation over seeds."""
    lines = ["| | " + " | ".join(variants) + " |", "|---" * (len(variants) + 1) + "|"]
    for row, columns in results.items():
        entries = [f"{np.mean(columns[v]):.1f} ± {np.std(columns[v]):.1f}" for v in variants]
        lines.append(f"| {row} | " + " | ".join(entries) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--variants", nargs="+", default=["alone", "metamask"], choices=list(VARIANTS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs/methods"))
    parser.add_argument("--data-dir", default="runs/data")
    args = parser.parse_args()
    keep_compiled_programs()
    args.out.mkdir(parents=True, exist_ok=True)
    results: dict[str, dict[str, list[float]]] = {}
    for method in args.methods:
        before = "untrained, Lab" if method == "cmc" else "untrained"
        for variant in args.variants:
            runner = Runner(cell_config(method, variant, steps=args.steps, data_dir=args.data_dir))
            for row, run in ((before, runner.untrained), (method, runner.trained)):
                name = f"{row}-{args.steps}" if row == method else row.replace(", ", "-")
                cells = [cell(args.out / f"{name}-{variant}-{i}.json", partial(run, i)) for i in range(args.seeds)]
                results.setdefault(row, {})[variant] = [100 * found["knn_accuracy"] for found in cells]
    print(f"\nkNN accuracy in %, mean ± standard deviation of {args.seeds} seed(s), {args.steps} steps\n")
    print(table(results, args.variants))


if __name__ == "__main__":
    main()
