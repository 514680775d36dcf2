"""The ways a representation is judged, by name. Each looks at the test labels only after everything is chosen."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from metamask_jax.data.sources import Source
from metamask_jax.data.subsets import stratified_subset
from metamask_jax.evaluate.features import extract_source, make_extractor
from metamask_jax.evaluate.finetune import finetune
from metamask_jax.evaluate.knn import knn_scores
from metamask_jax.evaluate.minibatch_probe import TrainedProbe, minibatch_probes
from metamask_jax.evaluate.probe import linear_probe
from metamask_jax.evaluate.views import random_view
from metamask_jax.evaluate.workdir import Run
from metamask_jax.training.distributed import own_rows


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Hyper-parameters of the protocols; of several learning rates one is chosen on held-out training images.

    Attributes:
      seed: of held-out parts, subsets, orders and augmentation.
      held_out_fraction: part of the training images on which to choose.
      weight_decay: of everything trained by SGD.
      batch_size: of the probes trained by SGD.
      sgd_epochs: of `linear_sgd`.
      sgd_learning_rates: of `linear_sgd` and `linear_augmented`.
      augmented_epochs: of `linear_augmented`.
      mlp_hidden: widths of the hidden layers of `mlp`.
      mlp_epochs: of `mlp`.
      mlp_learning_rates: of `mlp`.
      finetune_epochs: of `finetune`.
      finetune_min_steps: the least number of steps, for sets so small that the epochs would be over too soon.
      finetune_trial: length of the runs that choose a learning rate, as a part of the whole.
      finetune_batch_size: of `finetune`.
      finetune_smallest_crop: the smallest random crop, as a part of the image's area.
      finetune_learning_rates: of `finetune`.
    """

    seed: int = 0
    held_out_fraction: float = 0.2
    weight_decay: float = 1e-4
    batch_size: int = 256
    sgd_epochs: int = 50
    sgd_learning_rates: tuple[float, ...] = (0.03, 0.1, 0.3, 1.0, 3.0)
    augmented_epochs: int = 3
    mlp_hidden: tuple[int, ...] = (200,)
    mlp_epochs: int = 30
    mlp_learning_rates: tuple[float, ...] = (0.03, 0.1, 0.3)
    finetune_epochs: int = 5
    finetune_min_steps: int = 100
    finetune_trial: float = 0.25
    finetune_batch_size: int = 64
    finetune_smallest_crop: float = 0.5
    finetune_learning_rates: tuple[float, ...] = (0.01, 0.03)


class Data(NamedTuple):
    """The features that are evaluated, and the images and labels they are of.

    In a run of several processes each has its own rows of the features (`own_rows`), and all labels.

    Attributes:
      run: the pretrained run.
      train: labelled images to learn from.
      test: labelled images to be judged by.
      train_h: features [train, dim], not masked.
      train_labels: int [train].
      test_h: features [test, dim], not masked.
      test_labels: int [test].
      masks: weights [dim] by which the features are multiplied, by the name of the result: `h` and `h*m`.
    """

    run: Run
    train: Source
    test: Source
    train_h: np.ndarray
    train_labels: np.ndarray
    test_h: np.ndarray
    test_labels: np.ndarray
    masks: dict[str, np.ndarray]

    @property
    def own_train_labels(self) -> np.ndarray:
        """The labels of this process's rows of `train_h`."""
        return self.train_labels[own_rows(len(self.train_labels))]

    @property
    def own_test_labels(self) -> np.ndarray:
        """The labels of this process's rows of `test_h`."""
        return self.test_labels[own_rows(len(self.test_labels))]


class ProtocolResult(NamedTuple):
    """What a protocol found of one kind of features.

    Attributes:
      scores: [test, num_classes] on the test images, of this process's rows.
      chosen: the hyper-parameters that were chosen, by name.
      held_out: accuracy of each candidate on the held-out part of the training images.
      same_for: other kinds of features for which the result is the same by construction.
    """

    scores: np.ndarray
    chosen: dict[str, float]
    held_out: dict[str, float]
    same_for: tuple[str, ...] = ()


Results = dict[str, ProtocolResult]  # by the kind of features
Protocol = Callable[[Data, Settings], Results]


def _knn(data: Data, settings: Settings, *, k: int, temperature: float | None, metric: str) -> Results:
    """Vote of the nearest neighbours; there is nothing to choose."""
    del settings
    results = {}
    for name, mask in data.masks.items():
        votes = knn_scores(
            data.train_h,
            data.own_train_labels,
            data.test_h,
            k=k,
            temperature=temperature,
            num_classes=data.train.num_classes,
            metric=metric,
            weights=mask,
        )
        with np.errstate(divide="ignore"):  # a class without a vote is not a candidate at all
            results[name] = ProtocolResult(np.log(votes), {}, {})
    return results


def _linear(data: Data, settings: Settings, *, fraction: float) -> Results:
    """Logistic regression by LBFGS on standardised features.

    Standardising takes a positive factor of a dimension away again, so with a mask of positive weights the result for
    `h` is also that for `h*m`: it is given once. If it were fitted twice, rounding could choose different strengths.
    """
    rows = _own(stratified_subset(data.train_labels, fraction=fraction, seed=settings.seed), data)
    same = tuple(name for name, mask in data.masks.items() if name != "h" and np.all(mask > 0))
    results = {}
    train_h = data.train_h if len(rows) == len(data.train_h) else data.train_h[rows]  # a copy may be too large
    for name in (name for name in data.masks if name not in same):
        found = linear_probe(
            train_h,
            data.own_train_labels[rows],
            data.test_h,
            data.own_test_labels,
            num_classes=data.train.num_classes,
            seed=settings.seed,
            held_out_fraction=settings.held_out_fraction,
            used=data.masks[name] != 0,  # standardised, all that is left of a weight is whether it is zero
        )
        results[name] = _result("l2", found.l2, found.scores, found.held_out)
    return results | {"h": results["h"]._replace(same_for=same)}


def _own(rows: np.ndarray, data: Data) -> np.ndarray:
    """Those of rows of the training set that are this process's, as places among its own."""
    own = own_rows(len(data.train_labels))
    return rows[(rows >= own.start) & (rows < own.stop)] - own.start


def _minibatch(
    data: Data,
    settings: Settings,
    *,
    epoch_features: Callable[[int], np.ndarray],
    hidden: tuple[int, ...],
    epochs: int,
    learning_rates: tuple[float, ...],
) -> Results:
    results = minibatch_probes(
        epoch_features,
        data.train_h,
        data.own_train_labels,
        data.test_h,
        masks=list(data.masks.values()),
        hidden=hidden,
        num_classes=data.train.num_classes,
        learning_rates=learning_rates,
        weight_decay=settings.weight_decay,
        epochs=epochs,
        batch_size=settings.batch_size,
        held_out_fraction=settings.held_out_fraction,
        seed=settings.seed,
    )
    return {name: _of_probe(result) for name, result in zip(data.masks, results, strict=True)}


def _linear_sgd(data: Data, settings: Settings) -> Results:
    """A linear classifier trained by SGD on features of the images as they are."""
    return _minibatch(
        data,
        settings,
        epoch_features=lambda epoch: data.train_h,
        hidden=(),
        epochs=settings.sgd_epochs,
        learning_rates=settings.sgd_learning_rates,
    )


def _mlp(data: Data, settings: Settings) -> Results:
    """A classifier with a hidden layer, as in the paper's conv/fc table."""
    return _minibatch(
        data,
        settings,
        epoch_features=lambda epoch: data.train_h,
        hidden=settings.mlp_hidden,
        epochs=settings.mlp_epochs,
        learning_rates=settings.mlp_learning_rates,
    )


def _linear_augmented(data: Data, settings: Settings) -> Results:
    """A linear classifier trained by SGD on features of new random crops and flips each epoch, as for ImageNet."""
    extract = make_extractor(
        data.run.config,
        view=random_view(data.run.config, data.run.registry, smallest=0.08),
        seed=settings.seed,
        registry=data.run.registry,
    )
    state = data.run.state

    def epoch_features(epoch: int) -> np.ndarray:
        return extract_source(extract, state.params, state.batch_stats, data.train, draw=epoch)[0]

    return _minibatch(
        data,
        settings,
        epoch_features=epoch_features,
        hidden=(),
        epochs=settings.augmented_epochs,
        learning_rates=settings.sgd_learning_rates,
    )


def _finetune(data: Data, settings: Settings, *, fraction: float) -> Results:
    """Trains the whole network; on h alone, because the classifier on top can learn any mask by itself."""
    rows = stratified_subset(data.train_labels, fraction=fraction, seed=settings.seed)
    steps = max(settings.finetune_min_steps, settings.finetune_epochs * len(rows) // settings.finetune_batch_size)
    result = finetune(
        data.run,
        data.train,
        data.train_labels,
        rows,
        data.test,
        view=random_view(data.run.config, data.run.registry, smallest=settings.finetune_smallest_crop),
        num_classes=data.train.num_classes,
        learning_rates=settings.finetune_learning_rates,
        weight_decay=settings.weight_decay,
        steps=steps,
        trial_steps=max(1, round(settings.finetune_trial * steps)),
        batch_size=settings.finetune_batch_size,
        held_out_fraction=settings.held_out_fraction,
        seed=settings.seed,
    )
    return {"h": _of_probe(result)}


PROTOCOLS: dict[str, Protocol] = {
    "knn_official": partial(_knn, k=5, temperature=1.0, metric="cosine"),
    "knn_k200": partial(_knn, k=200, temperature=0.1, metric="cosine"),
    "knn_euclidean5": partial(_knn, k=5, temperature=None, metric="euclidean"),
    "linear": partial(_linear, fraction=1.0),
    "linear_10": partial(_linear, fraction=0.1),
    "linear_1": partial(_linear, fraction=0.01),
    "linear_sgd": _linear_sgd,
    "linear_augmented": _linear_augmented,
    "mlp": _mlp,
    "finetune": partial(_finetune, fraction=1.0),
    "finetune_10": partial(_finetune, fraction=0.1),
    "finetune_1": partial(_finetune, fraction=0.01),
}
GROUPS = {"all": tuple(PROTOCOLS), "knn": tuple(name for name in PROTOCOLS if name.startswith("knn_"))}
LEAST_IMAGES = {"knn_official": 5, "knn_k200": 200, "knn_euclidean5": 5}  # training images that a protocol needs


def _of_probe(result: TrainedProbe) -> ProtocolResult:
    return _result("learning_rate", result.learning_rate, result.scores, result.held_out)


def _result(name: str, chosen: float, scores: np.ndarray, held_out: dict[Any, float]) -> ProtocolResult:
    accuracies = {f"{name}={value:g}": accuracy for value, accuracy in held_out.items()}
    return ProtocolResult(scores, {name: chosen}, accuracies)
