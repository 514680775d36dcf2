"""Trial steps: where a gradient step would lead, as a function that can be differentiated."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from metamask_jax.core.arrays import require_function, require_number
from metamask_jax.core.types import PyTree
from metamask_jax.errors import one_line, shown

TrialStep = Callable[[PyTree, PyTree], PyTree]  # (gradient, params) to trial params
Scope = str | Callable[[str], bool] | None


def make_trial_step(
    learning_rate: PyTree, optimizer: optax.GradientTransformation | None, opt_state: optax.OptState | None
) -> TrialStep:
    """`(gradient, params) -> trial params`, a plain gradient step or one by an optimiser whose state stays as it is."""
    if (learning_rate is None) == (optimizer is None):
        given = "neither" if optimizer is None else "both"
        raise ValueError(f"{given} of learning_rate and optimizer given; expected exactly one of them")
    if optimizer is None:
        for rate in jax.tree.leaves(learning_rate):
            require_number(
                "learning_rate", rate, lambda rate: rate > -float("inf"), "a number, or one for each subtree"
            )
        return lambda gradient, params: _descend(params, gradient, learning_rate)
    require_optimizer("optimizer", optimizer)
    if opt_state is None:
        raise ValueError("opt_state=None; expected the state of the given optimizer")

    def step(gradient: PyTree, params: PyTree) -> PyTree:
        try:
            updates, _ = optimizer.update(gradient, opt_state, params)
            require_like("the update", updates, "params", params)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"opt_state={shown(jax.tree.structure(opt_state))} is not a state of the given optimizer "
                f"({one_line(error)}); expected what its init(params) gives, or a later one"
            ) from error
        return jax.tree.map(lambda w, u: (w + u).astype(jnp.result_type(w)), params, updates)

    return step


def require_optimizer(name: str, optimizer: Any) -> None:
    """Refuses what is not an optax transformation."""
    if not isinstance(optimizer, optax.GradientTransformation):
        raise TypeError(f"{name}={shown(optimizer)}; expected an optax transformation such as optax.sgd(0.1)")


def require_scope(scope: Any) -> None:
    """Refuses what does not choose parameters by name."""
    if not (scope is None or isinstance(scope, str) or callable(scope)):
        raise TypeError(f"scope={shown(scope)}; expected the beginning of names, a predicate on a name, or None")


def pull_back_step(step: TrialStep, gradient: PyTree, params: PyTree) -> tuple[PyTree, Callable[[PyTree], PyTree]]:
    """The trial params, and the pull-back of a slope at them to the gradient.

    Optimisers such as Adam divide by the square root of past squared gradients, and a square root has no derivative
    at zero: one weight whose gradient was never anything but zero would turn the whole meta-gradient into NaN. Such a
    weight does not move, so where the step has no derivative the pull-back is zero; what comes in as NaN stays NaN.
    """
    trial, pull_back = jax.vjp(lambda gradient: step(gradient, params), gradient)

    def pull(slope: PyTree) -> PyTree:
        (direction,) = pull_back(slope)
        return jax.tree.map(lambda d, s: jnp.where(jnp.isfinite(s) & ~jnp.isfinite(d), 0.0, d), direction, slope)

    return trial, pull


def split(params: PyTree, scope: Scope) -> tuple[list[jax.Array], Callable[..., PyTree]]:
    """Takes the leaves in scope out of a pytree.

    Args:
      params: any pytree of arrays.
      scope: a predicate on a leaf's name, such as `"head.fc1.kernel"`; or the beginning of names, as in `"head"`;
        None is all of them.

    Returns:
      The leaves in scope, and a function `join(leaves, rest=params)` that puts others like them into their places.

    Example:
      >>> moving, join = split({"encoder": 1.0, "head": {"w": 2.0}}, "head")
      >>> moving, join([5.0])
      ([2.0], {'encoder': 1.0, 'head': {'w': 5.0}})
    """
    paths, structure = jax.tree_util.tree_flatten_with_path(params)
    names = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in paths]
    chosen = [i for i, name in enumerate(names) if _in_scope(name, scope)]
    if not chosen:
        raise ValueError(f"scope={shown(scope)} holds none of the params; expected some of {', '.join(names)}")

    def join(leaves: list[jax.Array], rest: PyTree = params) -> PyTree:
        joined = jax.tree.leaves(rest)
        for i, leaf in zip(chosen, leaves, strict=True):
            joined[i] = leaf
        return jax.tree.unflatten(structure, joined)

    return [paths[i][1] for i in chosen], join


def restrict(step: TrialStep, params: PyTree, scope: Scope) -> TrialStep:
    """The same step for the leaves in scope alone, of gradients and params that `split` took out; the rest stays."""

    def restricted(gradient: list[jax.Array], moving: list[jax.Array]) -> list[jax.Array]:
        _, join = split(params, scope)
        nothing = jax.tree.map(jnp.zeros_like, params)
        after, _ = split(step(join(gradient, nothing), join(moving)), scope)
        return after

    return restricted


def _in_scope(name: str, scope: Scope) -> bool:
    if scope is None:
        return True
    return scope(name) if callable(scope) else f"{name}.".startswith(f"{scope}.")


def _descend(params: PyTree, gradient: PyTree, learning_rate: PyTree) -> PyTree:
    """One plain gradient step, with one rate or one for each subtree."""

    def subtree(rate: Any, params: PyTree, gradient: PyTree) -> PyTree:
        return jax.tree.map(lambda w, g: (w - rate * g).astype(jnp.result_type(w)), params, gradient)

    try:
        return jax.tree.map(subtree, learning_rate, params, gradient)
    except ValueError as error:
        found, expected = jax.tree.structure(learning_rate), jax.tree.structure(params)
        raise ValueError(f"learning_rate={found}; expected a number or a prefix of params={expected}") from error


def require_problem(**arguments: Any) -> None:
    """Refuses losses that are no functions, and weights and masks that are no arrays."""
    for name, value in arguments.items():
        if name.endswith("loss"):
            require_function(name, value)
        else:
            require_floating(name, value)


def require_floating(name: str, tree: PyTree) -> None:
    """Refuses a pytree without leaves, or with one that is no floating-point array, such as a whole Equinox module."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    if not leaves:
        raise TypeError(f"{name}={shown(tree)}; expected a pytree of floating-point arrays, not empty")
    for path, leaf in leaves:
        where = f"{name}{jax.tree_util.keystr(path)}"
        try:
            dtype = jnp.result_type(leaf)
        except TypeError:
            raise TypeError(
                f"{where} is {shown(leaf)}; expected arrays only: split a model into arrays and the rest first, "
                "params, static = equinox.partition(model, equinox.is_inexact_array), or "
                "graphdef, params, rest = flax.nnx.split(model, flax.nnx.Param, ...)"
            ) from None
        if not jnp.issubdtype(dtype, jnp.floating):
            raise TypeError(f"{where}.dtype={dtype}; expected a floating-point type")


def require_like(name: str, tree: PyTree, like_name: str, like: PyTree) -> None:
    """Refuses a pytree whose structure or shapes are not those of another."""
    require_floating(name, tree)
    found, expected = (jax.tree.map(jnp.shape, each) for each in (tree, like))
    if found != expected:
        raise ValueError(f"{name} has shapes {shown(found)}; expected those of {like_name}, {shown(expected)}")
