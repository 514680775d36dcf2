"""Exact nearest neighbours beside scikit-learn's and faiss's brute force: seconds, and the peak of extra memory.

    python benchmarks/knn.py [--train 50000] [--test 10000] [--dim 512]

All run in turns, and the best time of each counts. Processor time is that of all threads, which other programs on the
machine disturb less. Memory is this process's resident set, sampled while ours runs. NumPy's product of the same
features tells what there is to hide the selection behind. Without faiss (`pip install faiss-cpu`) the rest is timed.
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

Run = Callable[[], np.ndarray]


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


def scikit_learn(train: np.ndarray, test: np.ndarray, *, k: int, metric: str) -> Run:
    """Neighbours by scikit-learn."""
    oracle = NearestNeighbors(n_neighbors=k, metric=metric, algorithm="brute").fit(train)
    return lambda: oracle.kneighbors(test, return_distance=False)


def faiss_flat(train: np.ndarray, test: np.ndarray, *, k: int, metric: str) -> Run | None:
    """Neighbours by faiss's exact index; None without faiss."""
    try:
        import faiss
    except ImportError:
        return None

    def run() -> np.ndarray:
        rows = [train, test]
        if metric == "cosine":
            rows = [h / np.linalg.norm(h, axis=1, keepdims=True) for h in rows]
        index = (faiss.IndexFlatIP if metric == "cosine" else faiss.IndexFlatL2)(train.shape[1])
        index.add(rows[0])
        return np.asarray(index.search(rows[1], k)[1])

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("train", 50_000), ("test", 10_000), ("dim", 512), ("repeats", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    random = np.random.default_rng(0)
    train, test = (random.normal(size=(n, args.dim)).astype(np.float32) for n in (args.train, args.test))
    product = np.min([seconds(lambda: test @ train.T) for _ in range(args.repeats)], axis=0)
    print(
        f"train {args.train} x test {args.test} x dim {args.dim}; product {product[0]:.2f} s, {product[1]:.2f} of all"
    )
    for metric, k in (("euclidean", 5), ("cosine", 5), ("cosine", 200)):
        settings = {"k": k, "metric": metric}
        runs: dict[str, Run | None] = {
            "ours": lambda settings=settings: np.asarray(nearest_neighbors(train, test, **settings).indices),
            "scikit-learn": scikit_learn(train, test, **settings),
            "faiss": faiss_flat(train, test, **settings),
        }
        present = {name: run for name, run in runs.items() if run is not None}
        memory = peak_megabytes(present["ours"])  # with compilation
        best = {name: np.full(2, np.inf) for name in present}
        found = {name: run() for name, run in present.items()}  # warms them up as well
        for _ in range(args.repeats):
            for name, run in present.items():
                best[name] = np.minimum(best[name], seconds(run))
        times = "  ".join(f"{name} {wall:5.2f} s ({all_:5.2f} of all)" for name, (wall, all_) in best.items())
        same = np.mean(found["ours"] == found["scikit-learn"])
        print(f"{metric:>9} k={k:<3}  {times}  extra memory {memory:4.0f} MB  same neighbours {same:.3%}", flush=True)


if __name__ == "__main__":
    main()
