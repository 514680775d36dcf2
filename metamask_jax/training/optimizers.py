"""Optimisers and learning-rate schedules, from optax, in the arrangement of the methods' own programs."""

import math
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from ml_collections import ConfigDict

Rate = float | jax.Array
Step = int | jax.Array
Schedule = Callable[[Step], jax.Array]
ScheduleShape = Callable[[jax.Array, Any], jax.Array]  # (epoch, epochs) to a factor of the learning rate


def _constant(progress: jax.Array, epochs: Rate) -> jax.Array:
    del epochs
    return jnp.ones_like(progress)


def _cosine(progress: jax.Array, epochs: Rate) -> jax.Array:
    return 0.5 * (1.0 + jnp.cos(math.pi * jnp.clip(progress / epochs, 0.0, 1.0)))


def _cosine_epochs(progress: jax.Array, epochs: Rate) -> jax.Array:
    """Changes between epochs only, as PyTorch programs step their schedulers."""
    return _cosine(jnp.floor(progress), epochs)


SCHEDULES: dict[str, ScheduleShape] = {"constant": _constant, "cosine": _cosine, "cosine_epochs": _cosine_epochs}


def exact_epoch(step: Step, steps_per_epoch: Step) -> jax.Array:
    """How many epochs are over after a step, float32: whole at the first step of an epoch, and below it before.

    A compiler turns `step / steps_per_epoch` into a product with a rounded reciprocal, which is less than whole at the
    first step of many epochs; so the whole epochs are counted in integers.

    Example:
      >>> [float(exact_epoch(step, 97)) for step in (0, 41 * 97)]
      [0.0, 41.0]
    """
    whole, rest = jnp.divmod(jnp.asarray(step, jnp.int32), steps_per_epoch)
    start = whole.astype(jnp.float32)
    epoch = start + rest.astype(jnp.float32) / steps_per_epoch
    return jnp.minimum(epoch, jnp.nextafter(start + 1, start))  # the last of many steps must not round up to the next


def make_schedule(
    shape: ScheduleShape, *, learning_rate: Rate, steps_per_epoch: Step, total_steps: Step, warmup_epochs: Rate
) -> Schedule:
    """The learning rate as a function of the step: a linear warm-up, then a shape over the remaining epochs.

    All numbers may be traced.

    Example:
      >>> rate = make_schedule(
      ...     SCHEDULES["cosine"], learning_rate=1.0, steps_per_epoch=5, total_steps=20, warmup_epochs=2.0
      ... )
      >>> [round(float(rate(step)), 2) for step in (0, 5, 10, 15, 20)]
      [0.1, 0.6, 1.0, 0.5, 0.0]
    """
    remaining = total_steps / steps_per_epoch - warmup_epochs

    def rate(step: Step) -> jax.Array:
        epoch = exact_epoch(step, steps_per_epoch)
        # The step after the warm-up is the first at the full rate; the very first is not wasted on a rate of zero.
        warm = (jnp.asarray(step, jnp.float32) + 1.0) / (_positive(warmup_epochs) * steps_per_epoch)
        after = shape(epoch - warmup_epochs, _positive(remaining))
        return learning_rate * jnp.where(epoch < warmup_epochs, jnp.minimum(warm, 1.0), after)

    return rate


def _positive(value: Rate) -> Rate:
    """The value, or what can be divided by if that is zero; a plain number stays one."""
    return jnp.maximum(value, 1e-9).astype(jnp.float32) if isinstance(value, jax.Array) else max(value, 1e-9)


def _sgd(config: ConfigDict, learning_rate: Rate, decayed: Any) -> optax.GradientTransformation:
    # Decay joins the gradient before the momentum, as in PyTorch.
    return optax.chain(
        optax.add_decayed_weights(config.weight_decay, decayed),
        optax.trace(config.momentum) if config.momentum else optax.identity(),
        optax.scale_by_learning_rate(learning_rate),
    )


def _lars(config: ConfigDict, learning_rate: Rate, decayed: Any) -> optax.GradientTransformation:
    return optax.lars(
        learning_rate,
        weight_decay=config.weight_decay,
        weight_decay_mask=decayed,
        trust_ratio_mask=weights_only,
        trust_coefficient=config.trust_coefficient,
        momentum=config.momentum,
    )


def _adamw(config: ConfigDict, learning_rate: Rate, decayed: Any) -> optax.GradientTransformation:
    # Meta-gradients pass through the square root, which has no derivative at a gradient that was never but zero.
    return optax.adamw(learning_rate, eps_root=1e-20, weight_decay=config.weight_decay, mask=decayed)


OPTIMIZERS = {"sgd": _sgd, "lars": _lars, "adamw": _adamw}


def make_optimizer(
    config: ConfigDict,
    learning_rate: Rate,
    *,
    constant_rate: Collection[str],
    optimizers: Mapping[str, Callable[..., optax.GradientTransformation]] = OPTIMIZERS,
) -> optax.GradientTransformation:
    """The network's optimiser at one learning rate.

    The rate is an argument, not a schedule inside: it may be a traced function of the training step, so the
    optimiser's state counts no steps of its own and an update that is skipped leaves the schedule where it belongs.

    Args:
      config: the `optimizer` section of the configuration.
      learning_rate: a number, possibly traced.
      constant_rate: names under `params["method"]` of what keeps the rate of the configuration instead.
      optimizers: constructors by name.
    """
    decayed = everything if config.decay_norm_and_bias else weights_only
    at_rate = partial(optimizers[config.name], config, decayed=decayed)
    if not constant_rate:
        return at_rate(learning_rate)

    def group(path: tuple[Any, ...], leaf: Any) -> str:
        del leaf
        constant = path[0].key == "method" and path[1].key in constant_rate
        return "constant" if constant else "scheduled"

    return optax.multi_transform(
        {"scheduled": at_rate(learning_rate), "constant": at_rate(config.learning_rate)},
        partial(jax.tree_util.tree_map_with_path, group),
    )


def make_mask_optimizer(config: ConfigDict, learning_rate: Rate) -> optax.GradientTransformation:
    """The mask's optimiser, SGD with momentum and decay on the logits; `config` is the `mask` section."""
    return _sgd(config, learning_rate, everything)


def weights_only(params: Any) -> Any:
    """Marks kernels, not BatchNorm's scales and no biases; a pytree of bools like `params`.

    Example:
      >>> weights_only({"conv": {"kernel": 0.0}, "bn": {"scale": 0.0, "bias": 0.0}})
      {'bn': {'bias': False, 'scale': False}, 'conv': {'kernel': True}}
    """
    return jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key not in ("bias", "scale"), params)


def everything(params: Any) -> Any:
    """Marks every leaf."""
    return jax.tree.map(lambda _: True, params)
