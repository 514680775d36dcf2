"""The check of what a learner is built with and given: one sentence for each argument that cannot be used."""

from typing import Any

import jax
import optax

from metamask_jax.core.arrays import require_function, require_number
from metamask_jax.core.collectives import require_axis, sums_gradients
from metamask_jax.core.mask import require_activation
from metamask_jax.core.meta import TRAINING_ESTIMATORS
from metamask_jax.core.state import Pair
from metamask_jax.core.trial import require_scope
from metamask_jax.errors import shown


def check_arguments(
    *,
    optimizer: Any,
    mask_optimizer: Any,
    estimator: Any,
    trial: Any,
    scope: Any,
    every: Any,
    accumulate: Any,
    activation: Any,
    axis_name: Any,
    **functions: Any,
) -> None:
    """Refuses arguments of `metamask` that cannot be used; `functions` are those that are functions, or None.

    Raises:
      TypeError, ValueError: naming the argument, and what is allowed.
    """
    for name, function in functions.items():
        if function is not None or name in ("total_loss", "method_loss"):
            require_function(name, function)
    for name, given in (("optimizer", optimizer), ("mask_optimizer", mask_optimizer)):
        if not isinstance(given, optax.GradientTransformation) and not callable(given):
            raise TypeError(f"{name}={shown(given)}; expected an optax transformation, or a function of the step")
    _check_estimator(estimator)
    _check_trial(trial)
    require_scope(scope)
    for name, count in (("every", every), ("accumulate", accumulate)):
        if not isinstance(count, int) or not 1 <= count < 2**31:
            raise ValueError(f"{name}={shown(count)}; expected a whole number >= 1")
    require_activation(activation)
    require_axis(axis_name)
    alone = functions["outer_loss"] is None and scope is None and (every, accumulate) == (1, 1)
    if isinstance(estimator, str) and estimator == "lookahead" and not alone:
        raise ValueError(
            "estimator='lookahead' with outer_loss, scope, every or accumulate; expected none of them: its trial step "
            "is the whole regular step before, and the present total loss judges it"
        )


def check_batch(batch: Any, *, estimator: Any, axis_name: str | None) -> None:
    """Refuses what `update` cannot take, or cannot take where it is called.

    Raises:
      TypeError, ValueError: what was found, and what is expected.
    """
    if isinstance(batch, Pair) != (estimator == "lookahead"):
        expected = "a Pair" if estimator == "lookahead" else "one batch"
        raise TypeError(f"batch is a {type(batch).__name__}; expected {expected} for estimator={estimator!r}")
    if sums_gradients(batch, axis_name):
        raise ValueError("jax.shard_map with check_vma=True; expected check_vma=False around `update`")


def _check_estimator(estimator: Any) -> None:
    if not (estimator is None or callable(estimator) or isinstance(estimator, str)):
        raise TypeError(f"estimator={shown(estimator)}; expected a name, a function or None")
    if isinstance(estimator, str) and estimator not in TRAINING_ESTIMATORS:
        allowed = ", ".join(map(repr, TRAINING_ESTIMATORS))
        raise ValueError(f"estimator={shown(estimator)}; expected one of {allowed}, a function or None")


def _check_trial(trial: Any) -> None:
    expected = "'optimizer', learning rates, or a function of the step"
    if isinstance(trial, str) and trial != "optimizer":
        raise ValueError(f"trial={shown(trial)}; expected {expected}")
    if isinstance(trial, str) or callable(trial):
        return
    if not jax.tree.leaves(trial):
        raise TypeError(f"trial={shown(trial)}; expected {expected}")
    for rate in jax.tree.leaves(trial):
        require_number("trial", rate, lambda rate: rate > -float("inf"), expected)
