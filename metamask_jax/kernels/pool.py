"""Max-pooling, and on a CPU in a form that is closed under differentiation and passes over memory once.

XLA's own reduction has derivatives that accelerators have instructions for, but on a CPU its gradient scatters pixel by
pixel. There a pool also says which pixel of each window it took, and its derivatives are made of two linear operations
that are each other's transposes:

    pick     (x, taken)   -> of each window the pixel that was taken
    place    (y, taken)   -> back where it was taken from, added up where windows overlap, zero elsewhere

All three are native kernels, where these can run.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, mlir

from metamask_jax.kernels.folding import fold_mapped_axis
from metamask_jax.kernels.geometry import Geometry
from metamask_jax.kernels.switch import has_native

# x is [images, height, width, channels], y and `taken` are [images, rows, columns, channels]. `taken` counts the pixels
# of a window row by row.
pool_p, pick_p, place_p = map(Primitive, ("max_pool", "max_pool_pick", "max_pool_place"))
pool_p.multiple_results = True


def max_pool(x: jax.Array, *, window: int, stride: int, padding: int) -> jax.Array:
    """Takes the maximum over square windows.

    Where several pixels of a window share the maximum, the first of them has the gradient.

    Example:
      >>> max_pool(jnp.arange(16.0).reshape(1, 4, 4, 1), window=2, stride=2, padding=0)[0, :, :, 0].tolist()
      [[5.0, 7.0], [13.0, 15.0]]

    Args:
      x: images `[batch, height, width, channels]`.
      window: height and width of the window, from 1 to 16.
      stride: step between windows.
      padding: width of the border added on each side, narrower than a window; it is never the maximum.

    Returns:
      `[batch, out_height, out_width, channels]`.
    """
    if not (1 <= window <= 16 and 0 <= padding < window):  # a pixel of a window is one of 256, and some are no border
        raise ValueError(f"{window=}, {padding=}; expected a window from 1 to 16 and a narrower padding")
    choices, reduction = (partial(form, window=window, stride=stride, padding=padding) for form in (by_choice, by_xla))
    return lax.platform_dependent(x, cpu=choices, default=reduction)


def by_xla(x: jax.Array, *, window: int, stride: int, padding: int) -> jax.Array:
    """By XLA's own reduction, whose derivatives accelerators have instructions for, and pass over memory once each."""
    lowest = np.array(-np.inf, x.dtype)
    borders = [(0, 0), (padding, padding), (padding, padding), (0, 0)]
    return lax.reduce_window(x, lowest, lax.max, (1, window, window, 1), (1, stride, stride, 1), borders)


def by_choice(x: jax.Array, *, window: int, stride: int, padding: int) -> jax.Array:
    """By the operations for a CPU."""
    _, height, width, _ = x.shape
    pad = padding, padding
    y, _ = pool_p.bind(x, geometry=Geometry((height, width), (window, window), (stride, stride), (pad, pad)))
    return y


def _plain_pool(x: jax.Array, *, geometry: Geometry) -> tuple[jax.Array, jax.Array]:
    first, *others = _pixels(geometry, x, -np.inf)
    y, taken = first, jnp.zeros(first.shape, jnp.uint8)
    for i, pixel in enumerate(others, start=1):
        better = (pixel > y) | jnp.isnan(pixel)
        y, taken = jnp.where(better, pixel, y), jnp.where(better, np.uint8(i), taken)
    return y, taken


def _plain_pick(x: jax.Array, taken: jax.Array, *, geometry: Geometry) -> jax.Array:
    pixels = _pixels(geometry, x, 0.0)
    return sum((jnp.where(taken == i, pixel, 0.0) for i, pixel in enumerate(pixels)), jnp.zeros(taken.shape, x.dtype))


def _plain_place(y: jax.Array, taken: jax.Array, *, geometry: Geometry) -> jax.Array:
    x = jax.ShapeDtypeStruct((len(y), *geometry.image, y.shape[3]), y.dtype)
    (x,) = jax.linear_transpose(lambda x: _plain_pick(x, taken, geometry=geometry), x)(y)
    return x


def _pixels(geometry: Geometry, x: jax.Array, border: float) -> list[jax.Array]:
    """The pixels of all windows, like the output of a pool, for each place in a window."""
    (rows, columns), (window, _), (stride, _) = geometry.output, geometry.window, geometry.strides
    (padding, _), _ = geometry.padding
    # With an axis cut into blocks of one stride, each place in a window is a contiguous slice of blocks, and its
    # transpose a plain pad, not a scatter.
    for axis, count in ((1, rows), (3, columns)):
        blocks = count - 1 + -(-window // stride)
        borders = [(0, 0, 0)] * x.ndim
        borders[axis] = (padding, blocks * stride - x.shape[axis] - padding, 0)
        x = lax.pad(x, jnp.array(border, x.dtype), borders)
        x = x.reshape(*x.shape[:axis], blocks, stride, *x.shape[axis + 1 :])
    places = [divmod(i, stride) for i in range(window)]
    return [
        x[:, down : down + rows, row, right : right + columns, column]
        for down, row in places
        for right, column in places
    ]


def _on_cpu(name: str, plain: Callable[..., Any], *operands: jax.Array, geometry: Geometry) -> Any:
    if has_native() and operands[0].dtype.name in ("float32", "float64"):
        from metamask_jax.kernels.native import pool as native

        return getattr(native, name)(*operands, geometry=geometry)
    return plain(*operands, geometry=geometry)


def _pool_jvp(primals: Sequence[Any], tangents: Sequence[Any], *, geometry: Geometry) -> tuple[Any, Any]:
    y, taken = pool_p.bind(*primals, geometry=geometry)
    return (y, taken), (pick_p.bind(*tangents, taken, geometry=geometry), ad.Zero(jax.typeof(taken).to_tangent_aval()))


def _linear_jvp(primitive: Primitive, primals: Sequence[Any], tangents: Sequence[Any], **how: Any) -> tuple[Any, Any]:
    """Of either linear operation: `taken` has no tangent."""
    (x, taken), (dx, _) = primals, tangents
    return primitive.bind(x, taken, **how), primitive.bind(dx, taken, **how)


def _transpose(transposed: Primitive, cotangent: Any, x: Any, taken: jax.Array, *, geometry: Geometry) -> Sequence[Any]:
    """Transposition rule of either linear operation; the other one is its transpose."""
    if isinstance(cotangent, ad.Zero):
        return ad.Zero(x.aval), None
    return transposed.bind(cotangent, taken, geometry=geometry), None


def _define(primitive: Primitive, name: str, plain: Callable[..., Any]) -> None:
    """Gives a primitive its types, its batching rule and what it becomes on a CPU."""

    def abstract_eval(x: Any, *_: Any, geometry: Geometry) -> Any:
        size = geometry.image if primitive is place_p else geometry.output
        result = x.update(shape=(x.shape[0], *size, x.shape[3]), weak_type=False)
        return [result, result.update(dtype=np.dtype(np.uint8))] if primitive is pool_p else result

    primitive.def_abstract_eval(abstract_eval)
    primitive.def_impl(jax.jit(primitive.bind, static_argnames="geometry"))
    fold_mapped_axis(primitive)
    rule = mlir.lower_fun(partial(_on_cpu, name, plain), multiple_results=primitive.multiple_results)
    mlir.register_lowering(primitive, rule, platform="cpu")


_define(pool_p, "pool", _plain_pool)
_define(pick_p, "pick", _plain_pick)
_define(place_p, "place", _plain_place)
ad.primitive_jvps[pool_p] = _pool_jvp
for _linear, _other in ((pick_p, place_p), (place_p, pick_p)):
    ad.primitive_jvps[_linear] = partial(_linear_jvp, _linear)
    ad.primitive_transposes[_linear] = partial(_transpose, _other)
