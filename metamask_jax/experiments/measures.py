"""What is measured of a pretrained run: `(subject) -> numbers by name`, kept beside the run."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import numpy as np

from metamask_jax.data.sources import open_configured
from metamask_jax.evaluate.diagnostics import masking
from metamask_jax.evaluate.diagnostics.__main__ import to_plain
from metamask_jax.evaluate.diagnostics.subject import Subject
from metamask_jax.evaluate.diagnostics.suite import DIAGNOSTICS
from metamask_jax.evaluate.heads import sgd_heads
from metamask_jax.evaluate.knn import knn_accuracy
from metamask_jax.evaluate.probe import linear_probe
from metamask_jax.evaluate.workdir import load_run
from metamask_jax.watch import read_json_lines

_TRIALS = 10  # random masks a rate, the paper's number

Measure = Callable[[Subject], dict[str, Any]]


def measure(name: str, workdir: Any) -> dict[str, Any]:
    """Measures the last checkpoint of a run, on the images its `eval.size` leaves."""
    run = load_run(workdir, step="last")
    size = run.config.eval.size
    subject = Subject(run, size=np.iinfo(np.int32).max if size is None else size, classifier="knn", trials=_TRIALS)
    plain: dict[str, Any] = to_plain(MEASURES[name](subject))
    return plain


def _knn(subject: Subject) -> dict[str, Any]:
    """Of unmasked features, as the paper tests, and of masked ones, as the authors' program does."""
    config = subject.run.config
    (train_h, train_labels), (test_h, test_labels) = subject.train, subject.test
    accuracies = {
        name: knn_accuracy(
            train_h * weights,
            train_labels,
            test_h * weights,
            test_labels,
            k=config.eval.k,
            temperature=config.eval.temperature,
            num_classes=subject.num_classes,
        )
        for name, weights in (("accuracy", np.ones_like(subject.weights)), ("masked", subject.weights))
    }
    return accuracies | {"mask_std": subject.weights.std(), "mask_mean": subject.weights.mean()}


def _linear(subject: Subject) -> dict[str, Any]:
    labels = subject.test[1]
    probe = linear_probe(
        *subject.train, *subject.test, num_classes=subject.num_classes, seed=subject.run.config.train.seed
    )
    return {"accuracy": probe.accuracy, "top5": _top(5, probe.scores, labels)}


def _mlp(subject: Subject) -> dict[str, Any]:
    """A hidden layer of 200 on frozen features, the paper's conv/fc table; its width is ours."""
    train_h, train_labels = subject.train
    (found,) = sgd_heads(
        lambda epoch: train_h,
        train_h,
        train_labels,
        subject.test[0],
        masks=[np.ones_like(subject.weights)],
        hidden=(200,),
        num_classes=subject.num_classes,
        learning_rates=(0.3, 0.1, 0.03),
        weight_decay=1e-4,
        epochs=30,
        batch_size=256,
        held_out_fraction=0.2,
        seed=subject.run.config.train.seed,
    )
    return {"accuracy": _top(1, found.scores, subject.test[1])}


def _top(count: int, scores: np.ndarray, labels: np.ndarray) -> float:
    best = np.argsort(-scores, axis=1, kind="stable")[:, :count]
    return float(np.mean(np.any(best == labels[:, None], axis=1)))


def _meta_norms(subject: Subject) -> dict[str, Any]:
    """Median over the run of the second-order part of the meta-gradient beside the direct part."""
    lines = [line for line in read_json_lines(subject.run.workdir / "metrics.jsonl") if line.get("meta_direct_norm")]
    ratios = [line["meta_second_order_norm"] / line["meta_direct_norm"] for line in lines]
    return {"ratio": np.median(ratios) if ratios else float("nan")}


def _cost(subject: Subject) -> dict[str, Any]:
    """Trained numbers, and seconds an epoch on this machine, without the first logged steps, which compile."""
    config, state = subject.run.config, subject.run.state
    lines = read_json_lines(subject.run.workdir / "metrics.jsonl")
    rates = [line["images_per_second"] for line in lines]
    parameters = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    return {
        "parameters": parameters + (state.mask.size if config.mask.learn else 0),
        "encoder_parameters": sum(leaf.size for leaf in jax.tree.leaves(state.params["encoder"])),
        "seconds_per_epoch": len(open_configured(config.data, split="pretrain")) / np.median(rates[1:] or rates),
        "seconds": sum(config.train.batch_size * config.log.every_steps / rate for rate in rates[1:]),
        "steps": lines[-1]["step"],
    }


def _five_percent(subject: Subject) -> dict[str, Any]:
    """KNN with 5 % of the dimensions masked at random, and with none."""
    config = subject.run.config
    found = masking.masked_accuracies(
        *subject.train,
        *subject.test,
        accuracy=masking.knn(num_classes=subject.num_classes, k=config.eval.k, temperature=config.eval.temperature),
        candidates=np.arange(len(subject.weights)),
        rates=(0.0, 0.05),
        trials=subject.trials,
        seed=config.train.seed,
    )
    return found._asdict()


def _diagnostic(name: str, subject: Subject) -> dict[str, Any]:
    return DIAGNOSTICS[name].run(subject).values


MEASURES: Mapping[str, Measure] = {
    "knn": _knn,
    "linear": _linear,
    "mlp": _mlp,
    "meta_norms": _meta_norms,
    "cost": _cost,
    "five_percent": _five_percent,
    **{name: partial(_diagnostic, name) for name in DIAGNOSTICS},
}
