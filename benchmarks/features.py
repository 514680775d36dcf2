"""Feature extraction beside the bare encoder, and what evaluation at ImageNet's size takes in memory.

    python benchmarks/features.py [--encoder resnet18] [--width 0.25] [--images 1024] [--rows 20000]

Extraction is the whole of it: pictures from the host, the view of evaluation, the encoder, features back to the host.
The bare encoder gets its input ready-made, at the best of several batch sizes. Both run in turns; the best processor
time of each counts, which other programs on the machine disturb less than seconds. Then a linear probe of a thousand
classes goes over memory-mapped features of 2,048 dimensions, generated, of which `--rows` are a part of ImageNet's.
"""

import argparse
import pathlib
import resource
import tempfile
import time
from collections.abc import Callable
from functools import partial

import jax
import numpy as np

from metamask_jax.config import default_config
from metamask_jax.evaluate import make_extractor, probe
from metamask_jax.training.registry import validate
from metamask_jax.training.state import build_encoder, init_state

BATCHES = (32, 64, 128, 256)
DIM, CLASSES, IMAGENET = 2048, 1000, 1_281_167


def compare_extraction(encoder: str, width: float, count: int, repeats: int) -> None:
    """Prints images per second of processor time, with and without everything around the encoder."""
    config = default_config()
    config.encoder.update(name=encoder, width=width)
    config = validate(config)
    state, module = init_state(config), build_encoder(config, axis_name=None)
    side = config.data.image_size
    images = np.random.default_rng(0).integers(0, 256, (count, side, side, 3), np.uint8)
    apply = jax.jit(partial(module.apply, train=False))
    variables = {"params": state.params["encoder"], "batch_stats": state.batch_stats["encoder"]}

    def bare(batch: int) -> None:
        x = jax.numpy.zeros((batch, side, side, 3))
        jax.block_until_ready([apply(variables, x) for _ in range(count // batch)])

    extract = make_extractor(config)
    runs: dict[str, Callable[[], object]] = {f"encoder, batch {b}": partial(bare, b) for b in BATCHES}
    runs["extraction"] = lambda: extract(state.params, state.batch_stats, images)
    seconds = dict.fromkeys(runs, np.inf)
    for repeat in range(repeats + 1):
        for name, run in runs.items():
            start = time.process_time()
            run()
            if repeat:  # the first compiles
                seconds[name] = min(seconds[name], time.process_time() - start)
    for name, spent in seconds.items():
        print(f"{name:20} {count / spent:8.0f} images per second of processor time")
    best = min(spent for name, spent in seconds.items() if name != "extraction")
    print(f"extraction / best bare encoder {best / seconds['extraction']:.2f}", flush=True)


def measure_probe(rows: int) -> None:
    """Prints the memory that a probe of generated features, on disk, adds to this process."""
    with tempfile.TemporaryDirectory() as folder:
        h = np.lib.format.open_memmap(pathlib.Path(folder) / "h.npy", "w+", np.float32, (rows, DIM))
        random = np.random.default_rng(0)
        for start in range(0, rows, 4096):
            h[start : start + 4096] = random.normal(size=(min(4096, rows - start), DIM))
        labels = np.arange(rows) % CLASSES
        probe._KEPT = 0  # as if it were too large to stay on the devices
        before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
        probe.linear_probe(
            h, labels, h[:CLASSES], labels[:CLASSES], num_classes=CLASSES, seed=0, l2_grid=(1e-2,), max_iterations=3
        )
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        print(
            f"linear probe of {rows} x {DIM} features ({rows / IMAGENET:.1%} of ImageNet's), {CLASSES} classes: "
            f"{peak / 1024:.0f} MB more at the peak, {time.monotonic() - began:.0f} s for two fits of 3 iterations"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", default="resnet18")
    parser.add_argument("--width", type=float, default=0.25)
    for name, default in (("images", 1024), ("rows", 20_000), ("repeats", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    compare_extraction(args.encoder, args.width, args.images, args.repeats)
    measure_probe(args.rows)


if __name__ == "__main__":
    main()
