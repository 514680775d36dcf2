"""One of several processes that evaluate together.

    python -m tests.evaluate.shared_worker PORT PROCESSES INDEX WORKDIR OUT

Without others (PROCESSES 1) it finds what all of them together have to find.
"""

import sys

import jax
import numpy as np

from metamask_jax.evaluate.knn import knn_accuracy, nearest_neighbors
from metamask_jax.evaluate.minibatch_probe import minibatch_probes
from metamask_jax.evaluate.online import OnlineEvaluator
from metamask_jax.evaluate.probe import linear_probe
from metamask_jax.evaluate.rows import all_finite, moments
from metamask_jax.evaluate.sharding import gathered, share_of, total
from metamask_jax.evaluate.workdir import load_run
from metamask_jax.training.distributed import own_rows
from metamask_jax.training.processes import join_processes
from tests.clusters import clusters

CLASSES, DIM, TRAIN, TEST = 5, 17, 403, 101


def unequal(rows: np.ndarray) -> np.ndarray:
    """A part of the rows: three of them on the first process, and the rest on the last."""
    first, last = jax.process_index() == 0, jax.process_index() == jax.process_count() - 1
    return rows[0 if first else 3 : None if last else 3]


def sent() -> dict[str, np.ndarray]:
    """What goes from process to process: every bit of it, whoever has how many rows."""
    random = np.random.default_rng(0)
    arrays = {
        "float64": random.normal(size=(7, 2)),
        "float32": random.normal(size=(7, 2, 3)).astype(np.float32),
        "int64": 2**40 + np.arange(7),
        "bool": np.arange(7) % 3 == 0,
    }
    found = {f"sent {name}": gathered(unequal(array)) for name, array in arrays.items()}
    assert all(found[f"sent {name}"].dtype == array.dtype for name, array in arrays.items())
    share = share_of(len(unequal(np.arange(7))))
    np.testing.assert_array_equal(np.arange(7)[share.own], unequal(np.arange(7)))
    return found | {"total": total(unequal(np.arange(7.0) / 3)[-1:]), "rows": np.array(share.total)}


def judged() -> dict[str, np.ndarray]:
    """Neighbours and probes of features of which each process has a part."""
    (train_h, train_labels), (test_h, test_labels) = (
        clusters(size, DIM, CLASSES, seed) for size, seed in ((TRAIN, 0), (TEST, 1))
    )
    train, test = own_rows(TRAIN), own_rows(TEST)
    data = train_h[train], train_labels[train], test_h[test]
    found = {}
    for metric, k in (("cosine", 5), ("cosine", 300), ("euclidean", 7)):
        neighbors = nearest_neighbors(data[0], data[2], k=k, metric=metric)
        found |= {f"{metric}{k} {name}": gathered(np.asarray(x)) for name, x in neighbors._asdict().items()}
    votes = knn_accuracy(*data, test_labels[test], k=5, temperature=0.1, num_classes=CLASSES)
    mean, variance = moments(data[0])
    linear = linear_probe(*data, test_labels[test], num_classes=CLASSES, seed=0, l2_grid=(1e-1, 1e-2))
    found |= {"knn": np.array(votes), "mean": mean, "variance": variance, "finite": np.array(all_finite(data[0]))}
    found |= {"linear": np.array([linear.accuracy, linear.l2, *linear.held_out.values()])}
    found |= {"linear scores": gathered(linear.scores)}
    for hidden in ((), (8,)):
        (trained,) = minibatch_probes(
            lambda epoch: data[0],
            *data,
            masks=[np.linspace(0.5, 1.0, DIM)],
            hidden=hidden,
            num_classes=CLASSES,
            learning_rates=(0.03, 0.1),
            weight_decay=1e-4,
            epochs=3,
            batch_size=30,
            held_out_fraction=0.2,
            seed=0,
        )
        found[f"sgd {hidden}"] = np.array([trained.learning_rate, *trained.held_out.values()])
        found[f"sgd scores {hidden}"] = gathered(trained.scores)
    return found


def monitored(workdir: str) -> dict[str, np.ndarray]:
    """What training shows of a state, and how many features this process had to compute for it."""
    run = load_run(workdir)
    evaluator = OnlineEvaluator(run.config)
    evaluator.check()
    values = evaluator(run.state)
    own = sum(len(evaluator.features(run.state, source)[0]) for source in evaluator.splits)
    arrays = {f"monitor {name}": array for name, array in evaluator.arrays().items()}
    return arrays | {"monitor": np.array([values[name] for name in sorted(values)]), "computed": np.array(own)}


def main(port: str, processes: str, index: str, workdir: str, out: str) -> None:
    if int(processes) > 1:
        join_processes(
            coordinator=f"127.0.0.1:{port}", process_count=int(processes), process_index=int(index), timeout=120
        )
    np.savez(out, **sent(), **judged(), **monitored(workdir))  # type: ignore[arg-type]


if __name__ == "__main__":
    main(*sys.argv[1:])
