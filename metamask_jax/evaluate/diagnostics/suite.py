"""The diagnostics by name: each turns a subject into numbers for a JSON file, a line for a table and a figure."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from metamask_jax.core.losses import nt_xent
from metamask_jax.evaluate.diagnostics import classes, figures, information, masking
from metamask_jax.evaluate.diagnostics.bounds import (
    Bounds,
    ConditionalVariance,
    conditional_angle,
    conditional_variance,
    cross_entropy,
    mean_classifier_scores,
    theorem_bounds,
)
from metamask_jax.evaluate.diagnostics.classes import unit_length
from metamask_jax.evaluate.diagnostics.subject import Subject
from metamask_jax.evaluate.probe import linear_probe
from metamask_jax.evaluate.spectrum import (
    alignment,
    alpha_req,
    cross_correlation,
    effective_rank,
    lidar,
    singular_values,
    uniformity,
)
from metamask_jax.reporting import plots
from metamask_jax.reporting.feature_plots import feature_spectrum

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RATES = (0.0, 0.05, *(i / 10 for i in range(1, 11)))  # 5 % is the paper's weak-and-strong figure
_BATCH = 256  # images whose dimensions are compared, the paper's "within a batch"


class DiagnosticResult(NamedTuple):
    """What a diagnostic found.

    Attributes:
      values: for a JSON file.
      summary: the same in one line.
      figure: a plot.
    """

    values: dict[str, Any]
    summary: str
    figure: "Figure"


class Diagnostic(NamedTuple):
    """A diagnostic and what it cannot do without.

    Attributes:
      run: the function.
      needs_labels: whether it needs classes, beside images.
    """

    run: Callable[[Subject], DiagnosticResult]
    needs_labels: bool


def _spectrum(subject: Subject) -> DiagnosticResult:
    h = subject.test[0]
    values = np.asarray(singular_values(h))
    measures = {
        kind: {
            "effective_rank": float(effective_rank(h * mask)),
            "alpha_req": alpha_req(h * mask),
            "lidar": lidar(subject.many_views * mask),
        }
        for kind, mask in (("unmasked", np.ones_like(subject.weights)), ("masked", subject.weights))
    }
    texts = (
        f"effective rank {m['effective_rank']:.1f}, LiDAR {m['lidar']:.1f}, alpha-ReQ {m['alpha_req']:.2f}"
        for m in measures.values()
    )
    summary = f"of {h.shape[1]}: {'; masked '.join(texts)}"
    by_name = {name: {kind: m[name] for kind, m in measures.items()} for name in measures["unmasked"]}
    return DiagnosticResult(by_name | {"singular_values": values}, summary, feature_spectrum(values))


def _alignment(subject: Subject) -> DiagnosticResult:
    h, other = subject.views
    values = {
        name: {"alignment": float(alignment(h * m, other * m)), "uniformity": float(uniformity(h * m, 2.0))}
        for name, m in (("unmasked", np.ones_like(subject.weights)), ("masked", subject.weights))
    }
    unit, unit_other = unit_length(h), unit_length(other)
    positive, different = (np.sum((unit - x) ** 2, axis=1) for x in (unit_other, np.roll(unit_other, 1, axis=0)))
    summary = "alignment {alignment:.3f}, uniformity {uniformity:.3f}".format(**values["unmasked"])
    return DiagnosticResult(values, summary, figures.distances(positive, different, **values["unmasked"]))


def _correlation(subject: Subject) -> DiagnosticResult:
    order = np.argsort(subject.weights, kind="stable")
    matrix = np.asarray(cross_correlation(subject.test[0][:, order]))
    size = _off_diagonal(matrix)
    return DiagnosticResult(
        {"mean_absolute_off_diagonal": size},
        f"|correlation| of two dimensions {size:.3f} on average",
        _square_map(matrix, limits=(-1.0, 1.0), label="correlation"),
    )


def _similarity(subject: Subject) -> DiagnosticResult:
    order = np.argsort(subject.weights, kind="stable")
    matrix = classes.dimension_similarity(subject.test[0][:_BATCH][:, order])
    size = _off_diagonal(matrix)
    return DiagnosticResult(
        {"mean_absolute_off_diagonal": size, "batch": min(_BATCH, len(subject.test[0]))},
        f"|cosine| of two dimensions {size:.3f} on average",
        _square_map(matrix, limits=(min(0.0, float(matrix.min())), 1.0), label="cosine"),
    )


def _classes(subject: Subject) -> DiagnosticResult:
    matrix = classes.class_dimension_map(*subject.test)
    strongest = float(np.nanmean(np.nanmax(np.abs(matrix), axis=0)))
    order = np.argsort(subject.weights, kind="stable")
    limit = min(2.0, max(float(np.nanmax(np.abs(matrix))), 1e-6))
    figure = plots.heat_map(
        matrix[:, order],
        limits=(-limit, limit),
        label="class mean (standard deviations)",
        xlabel="feature dimension, by rising mask weight",
        ylabel="class",
        rows=subject.class_names[: len(matrix)] if len(matrix) <= 20 else (),
    )
    summary = f"a dimension's strongest class is {strongest:.2f} deviations off on average"
    return DiagnosticResult({"class_dimension_map": matrix, "mean_strongest": strongest}, summary, figure)


def _random_masks(subject: Subject) -> DiagnosticResult:
    found = _trials(subject, np.arange(len(subject.weights)))
    unmasked = found.at(0.0)[0]
    better = float(np.mean(found.accuracies > unmasked))
    summary = f"{unmasked:.1%} unmasked, {better:.0%} of the masks do better, best {found.accuracies.max():.1%}"
    values = {**found._asdict(), "unmasked": unmasked, "share_better": better, "classifier": subject.classifier}
    return DiagnosticResult(values, summary, figures.trials(found, classifier=_spoken(subject)))


def _below_average(subject: Subject) -> DiagnosticResult:
    found = _trials(subject, masking.below_average(subject.weights))
    probe = masking.linear(num_classes=subject.num_classes, seed=subject.run.config.train.seed)
    halves = masking.probe_halves(*subject.train, *subject.test, weights=subject.weights, accuracy=probe)
    summary = (
        f"linear on the {halves.below_count} below {halves.below:.1%}, on the others {halves.others:.1%}, "
        f"on all {halves.all:.1%}"
    )
    values = {**found._asdict(), "linear": halves._asdict(), "classifier": subject.classifier}
    return DiagnosticResult(values, summary, figures.below_average(found, halves, classifier=_spoken(subject)))


def _information(subject: Subject) -> DiagnosticResult:
    found = information.measure(*subject.test, subject.factors, bins=information.BINS)
    agreement = information.agreement(subject.weights, found)
    values = {**found._asdict(), "mask_weights": subject.weights, "rank_correlation": agreement._asdict()}
    values |= {"bins": information.BINS, "dominated": found.dominated, "strongest_nuisance": found.strongest}
    summary = f"rank correlation of weight and class {agreement.with_class:+.2f}, chance {agreement.chance:.2f}"
    if found.about_factor:
        summary += (
            f"; {found.dominated.sum()} of {len(subject.weights)} dimensions dominated by a nuisance, "
            f"AUC of a low weight {agreement.auc:.2f}, chance 0.5 +- {agreement.auc_chance:.2f}"
        )
    return DiagnosticResult(values, summary, figures.information(subject.weights, found, agreement))


def _variance(subject: Subject) -> DiagnosticResult:
    h, labels = subject.test
    masked = h * subject.weights
    features = {"h": (h, masked), "g(h)": (subject.project(h), subject.project(masked))}

    def phi(z: np.ndarray) -> ConditionalVariance:
        return conditional_variance(unit_length(z), labels)

    pairs = {name: (phi(unmasked), phi(masked)) for name, (unmasked, masked) in features.items()}
    values: dict[str, Any] = {
        name: {
            kind: {**found._asdict(), "angle": conditional_angle(z, labels)}
            for kind, found, z in zip(("unmasked", "masked"), pairs[name], features[name], strict=True)
        }
        for name in features
    }
    summary = ", ".join(f"Phi of {name} {a.whole:.3f}, masked {b.whole:.3f}" for name, (a, b) in pairs.items())
    return DiagnosticResult(values | {"head": subject.has_head}, summary, figures.variance(pairs))


def _bounds(subject: Subject) -> DiagnosticResult:
    sides = {
        name: _sides(subject, subject.views * m)
        for name, m in (("masked", subject.weights), ("unmasked", np.ones_like(subject.weights)))
    }
    data = (*subject.train, *subject.test)
    probe = linear_probe(*data, num_classes=subject.num_classes, seed=subject.run.config.train.seed)
    entropy, by_means = cross_entropy(probe.scores, subject.test[1]), sides["masked"].mean_cross_entropy
    masked, unmasked = sides["masked"].bounds, sides["unmasked"].bounds
    negatives = sides["masked"].negatives
    # The paper's D first; then the number of classes, as in the theorem that it extends, for two classifiers.
    between = {
        "linear probe on h + log(M/D)": entropy + np.log(negatives / len(subject.weights)),
        "linear probe on h + log(M/classes)": entropy + np.log(negatives / subject.num_classes),
        "class means of g(h*m) + log(M/classes)": by_means + np.log(negatives / subject.num_classes),
    }
    inside = {name: bool(masked.lower <= value <= masked.upper) for name, value in between.items()}
    values = {
        **{name: side._asdict() | {"bounds": side.bounds._asdict()} for name, side in sides.items()},
        **{"between": between, "inside": inside, "linear_cross_entropy": entropy, "head": subject.has_head},
    }
    summary = (
        f"masked {masked.lower:.2f} to {masked.upper:.2f} nats, unmasked {unmasked.lower:.2f} to {unmasked.upper:.2f}; "
        f"{sum(inside.values())} of {len(inside)} readings of the theorem hold"
    )
    figure = figures.bounds({name: side.bounds for name, side in sides.items()}, between)
    return DiagnosticResult(values, summary, figure)


class _Sides(NamedTuple):
    """What Theorem 1 says of some features."""

    bounds: Bounds
    contrast: dict[float, float]  # L_contrast by temperature
    mean_cross_entropy: float
    negatives: int


def _sides(subject: Subject, h: np.ndarray) -> _Sides:
    """Both sides for (masked) features [views, size, dim] of augmented views, in batches as in training."""
    batch = min(subject.run.config.train.batch_size, h.shape[1])
    count = h.shape[1] // batch
    z = unit_length(subject.project(h[:, : count * batch]))
    parts = [jnp.asarray(part, jnp.float32) for part in np.split(z, count, axis=1)]
    # The theorem's temperature, and the run's own if it has one.
    temperatures = {1.0, subject.run.config.method.temperature or 1.0}
    contrast = {t: float(np.mean([nt_xent(part, temperature=t) for part in parts])) for t in sorted(temperatures)}
    flat, labels = z.reshape(-1, z.shape[-1]), np.tile(subject.test[1][: count * batch], len(z))
    negatives = len(z) * (batch - 1)
    bounds = theorem_bounds(contrast[1.0], conditional_variance(flat, labels), negatives=negatives)
    scores = mean_classifier_scores(flat, labels)
    return _Sides(bounds, contrast, cross_entropy(scores, labels), negatives)


DIAGNOSTICS: dict[str, Diagnostic] = {
    "spectrum": Diagnostic(_spectrum, needs_labels=False),
    "alignment": Diagnostic(_alignment, needs_labels=False),
    "correlation": Diagnostic(_correlation, needs_labels=False),
    "similarity": Diagnostic(_similarity, needs_labels=False),
    "classes": Diagnostic(_classes, needs_labels=True),
    "random_masks": Diagnostic(_random_masks, needs_labels=True),
    "below_average": Diagnostic(_below_average, needs_labels=True),
    "variance": Diagnostic(_variance, needs_labels=True),
    "bounds": Diagnostic(_bounds, needs_labels=True),
    "information": Diagnostic(_information, needs_labels=True),
}


def _trials(subject: Subject, candidates: np.ndarray) -> masking.Trials:
    config = subject.run.config
    if subject.classifier == "knn":
        judge = masking.knn(num_classes=subject.num_classes, k=config.eval.k, temperature=config.eval.temperature)
    else:
        judge = masking.linear(num_classes=subject.num_classes, seed=config.train.seed)
    return masking.masked_accuracies(
        *subject.train,
        *subject.test,
        accuracy=judge,
        candidates=candidates,
        rates=RATES,
        trials=subject.trials,
        seed=config.train.seed,
    )


def _spoken(subject: Subject) -> str:
    return {"knn": "kNN", "linear": "linear"}[subject.classifier]


def _square_map(matrix: np.ndarray, *, limits: tuple[float, float], label: str) -> "Figure":
    axis = "feature dimension, by rising mask weight"
    return plots.heat_map(matrix, limits=limits, label=label, xlabel=axis, ylabel=axis)


def _off_diagonal(matrix: np.ndarray) -> float:
    return float(np.abs(matrix[~np.eye(len(matrix), dtype=bool)]).mean())
