"""Feature extraction beside the bare encoder, and what evaluation at ImageNet's size takes in memory.

    python benchmarks/features.py [--encoder resnet18] [--width 0.25] [--images 1024] [--rows 12000]

Extraction is the whole of it: pictures from the host, the view of evaluation, the encoder, features back to the host.
The bare encoder gets its input ready-made, at the best of several batch sizes. Both run in turns; the best processor
time of each counts, which other programs on the machine disturb less than seconds. Then neighbours and probes of a
thousand classes go over memory-mapped features of 2,048 dimensions, generated, of which `--rows` are a part of
ImageNet's; `--images 0` does only that.
"""

import argparse
import pathlib
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial

import jax
import numpy as np
from jax.sharding import Mesh

from metamask_jax.config import default_config
from metamask_jax.evaluate import knn_scores, make_extractor, minibatch_probe, probe
from metamask_jax.evaluate.minibatch_probe import minibatch_probes
from metamask_jax.evaluate.protocols import Settings
from metamask_jax.training.distributed import AXIS
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


def peak_megabytes(run: Callable[[], object]) -> float:
    """Highest memory of this process while `run` is running, above what it was before; mapped files do not count."""
    done, samples = threading.Event(), [_anonymous()]

    def watch() -> None:
        while not done.wait(0.01):
            samples.append(_anonymous())

    watcher = threading.Thread(target=watch)
    watcher.start()
    run()
    done.set()
    watcher.join()
    return (max(samples) - samples[0]) / 2**10


def _anonymous() -> int:
    """Kilobytes that belong to this process alone; the system may drop pages of files whenever it needs room."""
    status = pathlib.Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0])


def measure_memory(rows: int) -> None:
    """Prints the memory that neighbours and probes of generated features, on disk, add to this process."""
    with tempfile.TemporaryDirectory() as folder:
        h = np.lib.format.open_memmap(pathlib.Path(folder) / "h.npy", "w+", np.float32, (rows, DIM))
        random = np.random.default_rng(0)
        for start in range(0, rows, 4096):
            h[start : start + 4096] = random.normal(size=(min(4096, rows - start), DIM))
        labels = np.arange(rows) % CLASSES
        probe._KEPT = 0  # as if it were too large to stay on the devices
        few = h[: rows // 6]  # 20 candidates at a time take a while
        settings = {"num_classes": CLASSES, "seed": 0}
        runs: dict[str, Callable[[], object]] = {
            "knn_k200": lambda: knn_scores(h, labels, h[:CLASSES], k=200, temperature=0.1, num_classes=CLASSES),
            "linear": lambda: probe.linear_probe(
                h, labels, h[:CLASSES], labels[:CLASSES], l2_grid=(1e-2,), max_iterations=3, **settings
            ),
            "linear_sgd": lambda: minibatch_probes(
                lambda epoch: few,
                few,
                labels[: len(few)],
                h[:CLASSES],
                masks=[np.ones(DIM), np.full(DIM, 0.5)],
                hidden=(),
                learning_rates=Settings().sgd_learning_rates,
                weight_decay=1e-4,
                epochs=1,
                batch_size=256,
                held_out_fraction=0.2,
                **settings,
            ),
        }
        print(f"{rows} x {DIM} features on disk ({rows / IMAGENET:.1%} of ImageNet's), {CLASSES} classes:")
        for name, run in runs.items():
            print(f"{name:12} {peak_megabytes(run):6.0f} MB more at the peak", flush=True)


def count_memory() -> None:
    """Prints what a chunk of `linear`, and a group of steps of `linear_sgd`, take on a device, by the compiler."""
    one, mesh = jax.ShapeDtypeStruct, Mesh(np.array(jax.devices()[:1]), (AXIS,))
    rows = probe.chunk_rows(DIM, CLASSES)
    linear = probe.Linear(one((DIM, CLASSES), np.float32), one((CLASSES,), np.float32))
    sums = jax.tree.map(lambda leaf: one((1, *leaf.shape), np.float32), (one((), np.float32), linear))
    chunk = one((rows, DIM), np.float32), one((rows,), np.int32), one((rows,), np.float32)
    optimizer, count, steps = minibatch_probe.momentum(1e-4), 20, minibatch_probe._NUMBERS // (256 * DIM)
    layers = ((one((count, DIM, CLASSES), np.float32), one((count, CLASSES), np.float32)),)
    state = layers, jax.eval_shape(jax.vmap(optimizer.init), layers)
    settings = one((count, DIM), np.float32), one((count,), np.float32), one((count, steps, 256), np.bool_)
    data = one((steps, 256, DIM), np.float32), one((steps, 256), np.int32), one((steps,), np.float32)
    for name, program in {
        "linear": probe.sums(mesh)[1].lower(sums, linear, *chunk),
        "linear_sgd": minibatch_probe.train_steps(mesh, optimizer).lower(state, *settings, *data),
    }.items():
        found = program.compile().memory_analysis()
        used = found.argument_size_in_bytes + found.output_size_in_bytes + found.temp_size_in_bytes
        used -= found.alias_size_in_bytes
        print(f"{name:12} {used / 2**20:6.0f} MB on a device by the compiler's account, whatever the number of rows")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", default="resnet18")
    parser.add_argument("--width", type=float, default=0.25)
    for name, default in (("images", 1024), ("rows", 12_000), ("repeats", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    if args.images:
        compare_extraction(args.encoder, args.width, args.images, args.repeats)
    count_memory()
    measure_memory(args.rows)


if __name__ == "__main__":
    main()
