"""Exact nearest neighbours beside scikit-learn's brute force: seconds, their ratio, and the peak of extra memory.

    python benchmarks/knn.py [--train 50000] [--test 10000] [--dim 512]

Both run in turns, and the best time of each counts. Processor time is that of all threads, which other programs on the
machine disturb less. Memory is this process's resident set, sampled while ours runs.
"""

import argparse
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import psutil
from sklearn.neighbors import NearestNeighbors

from metamask_jax.evaluate import nearest_neighbors


def seconds(run: Callable[[], Any]) -> np.ndarray:
    """Wall-clock and processor time [2]."""
    start = time.perf_counter(), time.process_time()
    run()
    return np.array([time.perf_counter(), time.process_time()]) - start


def peak_megabytes(run: Callable[[], Any]) -> float:
    """Highest resident set while `run` is running, above what it was before."""
    process, done = psutil.Process(), threading.Event()
    before = peak = process.memory_info().rss

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.005):
            peak = max(peak, process.memory_info().rss)

    watcher = threading.Thread(target=watch)
    watcher.start()
    run()
    done.set()
    watcher.join()
    return (peak - before) / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("train", 50_000), ("test", 10_000), ("dim", 512), ("repeats", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    random = np.random.default_rng(0)
    train = random.normal(size=(args.train, args.dim)).astype(np.float32)
    test = random.normal(size=(args.test, args.dim)).astype(np.float32)
    print(f"train {args.train} x test {args.test} x dim {args.dim}")
    for metric, k in (("euclidean", 5), ("cosine", 5), ("cosine", 200)):
        oracle = NearestNeighbors(n_neighbors=k, metric=metric, algorithm="brute").fit(train)

        def ours(metric: str = metric, k: int = k) -> np.ndarray:
            return np.asarray(nearest_neighbors(train, test, k=k, metric=metric).indices)

        def theirs(oracle: NearestNeighbors = oracle) -> np.ndarray:
            return oracle.kneighbors(test, return_distance=False)

        memory = peak_megabytes(ours)  # with compilation
        found = {}

        def timed(run: Callable[[], np.ndarray], found: dict[Any, np.ndarray] = found) -> np.ndarray:
            return seconds(lambda: found.update({run: run()}))

        mine, sklearn = np.min([(timed(ours), timed(theirs)) for _ in range(args.repeats)], axis=0)
        wall, processor = mine / sklearn
        print(
            f"{metric:>9} k={k:<3}  ours {mine[0]:6.2f} s  scikit-learn {sklearn[0]:6.2f} s  ratio {wall:.2f} "
            f"(of processor time {processor:.2f})  extra memory {memory:4.0f} MB  "
            f"same neighbours {np.mean(found[ours] == found[theirs]):.3%}",
            flush=True,
        )


if __name__ == "__main__":
    main()
