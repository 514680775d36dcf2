"""Mean and variance of channels, and normalisation by them: the parts of BatchNorm, closed under differentiation.

Written in plain `jnp`, BatchNorm's derivatives pass over memory once for every sum, and its second derivatives many
times. All of them are made of two operations that are each other's transposes and take one pass each:

    sums       (x, centre, y)               -> sum_n y,  sum_n (x - centre) y
    spread     (x, centre, offset, slope)   -> offset + (x - centre) slope

A centre near the mean keeps the digits that `sum x y - mean sum y` would lose. Derivatives of the two treat it as a
constant; the effect of moving it is computed per channel, not per pixel. On a CPU the sums run on native kernels.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, mlir
from jax.lax import stop_gradient

from metamask_jax.kernels.folding import fold_mapped_axis
from metamask_jax.kernels.switch import has_native

Arrays = Sequence[jax.Array]

# The primitives solve several problems at once: x and y are [problems, n, channels], all else [problems, channels].
moments_p, sums_p, spread_p = map(Primitive, ("moments", "channel_sums", "channel_spread"))
moments_p.multiple_results = sums_p.multiple_results = True


def moments(x: jax.Array, near: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Mean and (biased) variance of `x` `[..., channels]` over all axes but the last, `[channels]` each.

    Args:
      x: the numbers.
      near: where the mean is expected, `[channels]`, such as its running average. Accelerators sum differences from it
        and their squares in one pass, which XLA appends to whatever computes `x`; the variance loses as many digits as
        the square of the mean's distance from it is larger. A CPU centres on the mean itself.

    Example:
      >>> mean, variance = moments(jnp.array([[1.0, 5.0], [3.0, 5.0]]), near=jnp.zeros(2))
      >>> mean.tolist(), variance.tolist()
      ([2.0, 5.0], [1.0, 0.0])
    """
    mean, variance = moments_p.bind(x.reshape(1, -1, x.shape[-1]), near[None])
    return mean[0], variance[0]


def spread(x: jax.Array, centre: jax.Array, offset: jax.Array, slope: jax.Array) -> jax.Array:
    """`offset + (x - centre) * slope` for `x` `[..., channels]` and the others `[channels]`.

    Example:
      >>> spread(jnp.array([[1.0], [3.0]]), jnp.array([2.0]), jnp.array([10.0]), jnp.array([0.5])).tolist()
      [[9.5], [10.5]]
    """
    fixed = stop_gradient(centre)
    # The difference is zero, its derivative is that of the centre.
    channels = (fixed[None], (offset - (centre - fixed) * slope)[None], slope[None])
    return spread_p.bind(x.reshape(1, -1, x.shape[-1]), *channels).reshape(x.shape)


def _plain_moments(x: jax.Array, near: jax.Array) -> Arrays:
    difference = x - near[:, None]
    first, second = jnp.mean(difference, axis=1), jnp.mean(difference**2, axis=1)
    return near + first, jnp.maximum(second - first**2, 0.0)


def _centred_moments(x: jax.Array, near: jax.Array) -> Arrays:
    del near
    mean = jnp.mean(x, axis=1)
    return mean, jnp.mean((x - mean[:, None]) ** 2, axis=1)


def _plain_sums(x: jax.Array, centre: jax.Array, y: jax.Array) -> Arrays:
    return jnp.sum(y, axis=1), jnp.sum((x - centre[:, None]) * y, axis=1)


def _plain_spread(x: jax.Array, centre: jax.Array, offset: jax.Array, slope: jax.Array) -> jax.Array:
    return offset[:, None] + (x - centre[:, None]) * slope[:, None]


def _on_cpu(name: str, plain: Callable[..., Arrays], *operands: jax.Array) -> Arrays:
    if has_native():
        from metamask_jax.kernels.native import moments as native

        if native.suits(operands[0]):
            return getattr(native, name)(*operands)
    return plain(*operands)


def _moments_jvp(primals: Arrays, tangents: Sequence[Any]) -> tuple[Arrays, Arrays]:
    (x, _), (dx, _) = primals, tangents
    mean, variance = moments_p.bind(*primals)
    centre = stop_gradient(mean)
    total, product = (array / x.shape[1] for array in sums_p.bind(x, centre, dx))
    # The last term is zero; its derivative is that of the mean in the variance's derivative.
    return (mean, variance), (total, 2 * (product - (mean - centre) * total))


def _sums_jvp(primals: Arrays, tangents: Sequence[Any]) -> tuple[Arrays, Arrays]:
    (x, centre, y), (dx, _, dy) = primals, tangents
    total, product = sums_p.bind(*primals)
    d_total, d_product = jnp.zeros_like(total), jnp.zeros_like(product)
    if not isinstance(dy, ad.Zero):
        d_total, d_product = sums_p.bind(x, centre, dy)
    if not isinstance(dx, ad.Zero):
        d_product += jnp.sum(dx * y, axis=1)
    return (total, product), (d_total, d_product)


def _spread_jvp(primals: Arrays, tangents: Sequence[Any]) -> tuple[jax.Array, jax.Array]:
    (x, centre, _, slope), (dx, _, *others) = primals, tangents
    result = spread_p.bind(*primals)
    d_result = jnp.zeros_like(result)
    if not all(isinstance(other, ad.Zero) for other in others):
        d_result = spread_p.bind(x, centre, *map(ad.instantiate_zeros, others))
    if not isinstance(dx, ad.Zero):
        d_result += dx * slope[:, None]
    return result, d_result


def _sums_transpose(cotangents: Sequence[Any], x: jax.Array, centre: jax.Array, y: Any) -> Sequence[Any]:
    """Linear in `y`."""
    del y
    return None, None, spread_p.bind(x, centre, *map(ad.instantiate_zeros, cotangents))


def _spread_transpose(cotangent: Any, x: jax.Array, centre: jax.Array, *others: Any) -> Sequence[Any]:
    """Linear in offset and slope together."""
    del others
    return None, None, *sums_p.bind(x, centre, ad.instantiate_zeros(cotangent))


def _define(
    primitive: Primitive,
    plain: Callable[..., Any],
    on_cpu: Callable[..., Any],
    jvp: Callable[..., Any],
    transpose: Callable[..., Any] | None = None,
) -> None:
    """Gives a primitive its rules: types, derivatives, batching and what it becomes on each platform."""

    def abstract_eval(*args: Any) -> Any:
        wide, narrow = args[0], args[0].update(shape=args[0].shape[::2], weak_type=False)
        return [narrow, narrow] if primitive.multiple_results else wide.update(weak_type=False)

    primitive.def_abstract_eval(abstract_eval)
    primitive.def_impl(jax.jit(primitive.bind))
    ad.primitive_jvps[primitive] = jvp
    if transpose is not None:
        ad.primitive_transposes[primitive] = transpose
    fold_mapped_axis(primitive)
    lower = partial(mlir.lower_fun, multiple_results=primitive.multiple_results)
    mlir.register_lowering(primitive, lower(plain))
    mlir.register_lowering(primitive, lower(on_cpu), platform="cpu")


_define(moments_p, _plain_moments, partial(_on_cpu, "moments", _centred_moments), _moments_jvp)
_define(sums_p, _plain_sums, partial(_on_cpu, "sums", _plain_sums), _sums_jvp, _sums_transpose)
_define(spread_p, _plain_spread, _plain_spread, _spread_jvp, _spread_transpose)
