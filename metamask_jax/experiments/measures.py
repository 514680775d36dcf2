"""What is measured of a pretrained run: `(subject) -> numbers by name`, kept beside the run."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import numpy as np

from metamask_jax.core.storage import read_json_lines, to_plain
from metamask_jax.data.judging import judge_rows
from metamask_jax.data.order import steps_per_epoch
from metamask_jax.data.sources import open_configured
from metamask_jax.evaluate.diagnostics import information
from metamask_jax.evaluate.diagnostics.subject import Subject
from metamask_jax.evaluate.diagnostics.suite import DIAGNOSTICS
from metamask_jax.evaluate.evaluation import load_data
from metamask_jax.evaluate.features import extract_source, make_extractor
from metamask_jax.evaluate.fitted_mask import fit_mask
from metamask_jax.evaluate.knn import knn_accuracy
from metamask_jax.evaluate.metrics import top_k_accuracy
from metamask_jax.evaluate.probe import linear_probe
from metamask_jax.evaluate.protocols import PROTOCOLS, Settings
from metamask_jax.evaluate.subsets import held_out_rows
from metamask_jax.evaluate.workdir import load_run
from metamask_jax.training.state import init_state

_TRIALS = 10  # random masks per rate, the paper's number
LABEL_SHARES = (0.01, 0.05, 1.0)  # of the training images, for a judge of the mask and for its rivals

Measure = Callable[[Subject], dict[str, Any]]


def measure(name: str, workdir: Any) -> dict[str, Any]:
    """Measures the last checkpoint of a run, on the images its `eval.size` leaves."""
    run = load_run(workdir)
    size = run.config.eval.size
    subject = Subject(run, size=np.iinfo(np.int32).max if size is None else size, classifier="knn", trials=_TRIALS)
    plain: dict[str, Any] = to_plain(MEASURES[name](subject))
    return plain


def _protocol(name: str, subject: Subject) -> dict[str, Any]:
    """Accuracies of a protocol: of unmasked features, as the paper tests, and of masked ones, as its program does."""
    data = load_data(subject.run, subject.open("train"), subject.open("test"))
    results = PROTOCOLS[name](data, Settings(seed=subject.run.config.train.seed))
    results |= {other: result for result in list(results.values()) for other in result.same_for}
    return {
        quantity: top_k_accuracy(results[features].scores, data.test_labels, k=k)
        for quantity, features, k in (("accuracy", "h", 1), ("masked", "h*m", 1), ("top5", "h", 5))
    }


def _validation(subject: Subject) -> dict[str, Any]:
    """Accuracy by kNN of a fifth of the training images among the others: what settings may be chosen by."""
    h, labels = subject.train
    held_out = held_out_rows(len(h), 0.2, subject.run.config.train.seed)
    return {"accuracy": _knn(subject, (h[~held_out], labels[~held_out]), (h[held_out], labels[held_out]))}


def _untrained(subject: Subject) -> dict[str, Any]:
    """Accuracy by kNN of the encoder with the random weights of the seed."""
    state = init_state(subject.run.config, registry=subject.run.registry)
    extract = partial(
        extract_source,
        make_extractor(subject.run.config, registry=subject.run.registry),
        state.params,
        state.batch_stats,
    )
    return {"accuracy": _knn(subject, *(extract(subject.open(split)) for split in ("train", "test")))}


def _knn(subject: Subject, train: tuple[np.ndarray, np.ndarray], test: tuple[np.ndarray, np.ndarray]) -> float:
    config = subject.run.config.eval
    return knn_accuracy(*train, *test, k=config.k, temperature=config.temperature, num_classes=subject.num_classes)


def _mask(subject: Subject) -> dict[str, Any]:
    return {"std": subject.weights.std(), "mean": subject.weights.mean()}


def _agreement(subject: Subject) -> dict[str, Any]:
    """How the mask goes with what the dimensions tell, in a few numbers; `information` has those of every dimension."""
    found = information.measure(*subject.test, subject.factors, bins=information.BINS)
    values = information.agreement(subject.weights, found)._asdict()
    del values["with_factor"]
    return values | {
        "dominated": found.dominated.sum(),
        "dimensions": len(subject.weights),
        "class_bits": found.about_class.mean(),
        "class_bits_spread": found.about_class.std(),
        "nuisance_bits": found.nuisance.mean(),
    }


def _few_labels(subject: Subject) -> dict[str, Any]:
    """What the labels that judge the mask give by themselves: kNN among those images, masked, and a linear probe."""
    share = subject.run.config.meta.labels
    few = _judges(subject, share)
    return {"masked": _masked_knn(subject, few, subject.weights), "probe": _probe(subject, few)}


def _rivals(subject: Subject) -> dict[str, Any]:
    """What the labels that may judge a mask are worth without one, by their share.

    `fitted`: kNN among all training images, of features under a mask that was fitted afterwards. Then with the labelled
    images alone: kNN of `few` features as they are, of `few_fitted` ones, and a linear `probe`.
    """
    values: dict[str, Any] = {}
    for share in LABEL_SHARES:
        few = _judges(subject, share)
        fitted = fit_mask(*few, seed=subject.run.config.train.seed)
        values |= {
            f"fitted_{share:g}": _masked_knn(subject, subject.train, fitted),
            f"few_{share:g}": _masked_knn(subject, few, np.ones_like(fitted)),
            f"few_fitted_{share:g}": _masked_knn(subject, few, fitted),
            f"probe_{share:g}": _probe(subject, few),
        }
    return values


def _judges(subject: Subject, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Features and labels of the images that a run with `meta.outer='labels'` and the same seed draws."""
    h, labels = subject.train
    rows = judge_rows(labels, amount=share, seed=subject.run.config.train.seed)
    return h[rows], labels[rows]


def _probe(subject: Subject, train: tuple[np.ndarray, np.ndarray]) -> float:
    seed = subject.run.config.train.seed
    found = linear_probe(*train, *subject.test, num_classes=subject.num_classes, seed=seed)
    return top_k_accuracy(found.scores, subject.test[1], k=1)


def _masked_knn(subject: Subject, train: tuple[np.ndarray, np.ndarray], weights: np.ndarray) -> float:
    (h, labels), (test_h, test_labels) = train, subject.test
    return _knn(subject, (h * weights, labels), (test_h * weights, test_labels))


def _meta_norms(subject: Subject) -> dict[str, Any]:
    """Median over the run of the norm of the meta-gradient's second-order part over that of its direct part."""
    lines = [line for line in read_json_lines(subject.run.workdir / "metrics.jsonl") if line.get("meta_direct_norm")]
    ratios = [line["meta_second_order_norm"] / line["meta_direct_norm"] for line in lines]
    return {"ratio": np.median(ratios) if ratios else float("nan")}


def _cost(subject: Subject) -> dict[str, Any]:
    """Number of parameters, and seconds per epoch on this machine, without the first logged steps, which compile."""
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


def _curve(subject: Subject) -> dict[str, Any]:
    """Accuracy by kNN at every evaluation while the run went on."""
    config, workdir = subject.run.config, subject.run.workdir
    per_epoch = steps_per_epoch(len(open_configured(config.data, split="pretrain")), config.train.batch_size)
    lines = [line for line in read_json_lines(workdir / "metrics.jsonl") if "knn_accuracy" in line]
    return {
        "epoch": [line["step"] / per_epoch for line in lines],
        "accuracy": [line["knn_accuracy"] for line in lines],
        "loss": [line["loss"] for line in lines],
    }


def _diagnostic(name: str, subject: Subject) -> dict[str, Any]:
    return DIAGNOSTICS[name].run(subject).values


MEASURES: Mapping[str, Measure] = {
    "knn": partial(_protocol, "knn_official"),
    "knn_k200": partial(_protocol, "knn_k200"),
    "linear": partial(_protocol, "linear"),
    "mlp": partial(_protocol, "mlp"),
    "validation": _validation,
    "untrained": _untrained,
    "mask": _mask,
    "agreement": _agreement,
    "few_labels": _few_labels,
    "rivals": _rivals,
    "meta_norms": _meta_norms,
    "cost": _cost,
    "curve": _curve,
    **{name: partial(_diagnostic, name) for name in DIAGNOSTICS},
}
