"""A 2-D convolution, closed under differentiation, whose kernel is chosen by the platform.

The convolution is bilinear in image and kernel, and so are its two derivatives:

    conv       (x, w)  -> y      the convolution
    conv_dx    (dy, w) -> x      its transpose in the image: the input gradient
    conv_dw    (x, dy) -> w      its transpose in the kernel: the weight gradient

Each is the transpose of the other two. Where both operands are differentiated, they come in pairs:

    conv_tangent     (x, w, dx, dw)  -> conv(dx, w) + conv(x, dw)         the derivative in forward mode
    conv_gradients   (x, w, dy)      -> conv_dx(dy, w), conv_dw(x, dy)    its transpose: the derivative in reverse mode

The first is symmetric in `(x, w)` and `(dx, dw)`, so the two are each other's derivatives as well, and no other is
needed: forward and reverse mode work to any order, and every derivative runs on a tuned kernel. (A `custom_vjp` would
forbid forward mode; differentiating through a hand-written kernel would give slow gradients.) The platform is known
when a primitive is lowered: the CPU gets `cpu_kernels`, where the tangent, which a meta-gradient takes of every layer,
is one kernel and not two; every other platform gets XLA's own convolution.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive
from jax.extend.core.primitives import mul_p
from jax.interpreters import ad, batching, mlir

from metamask_jax.kernels import cpu_kernels, lax_kernels
from metamask_jax.kernels.geometry import Geometry


def conv2d(x: jax.Array, w: jax.Array, *, strides: Sequence[int], padding: str | Sequence[Sequence[int]]) -> jax.Array:
    """Convolves images with a kernel: `lax.conv_general_dilated` in NHWC and HWIO, faster on a CPU.

    Works under every transformation; a `shard_map` around it needs `check_vma=False` (a `pmap` needs nothing).

    Example:
      >>> conv2d(jnp.ones((1, 4, 4, 3)), jnp.ones((3, 3, 3, 8)), strides=(2, 2), padding="SAME").shape
      (1, 2, 2, 8)

    Args:
      x: images `[batch, height, width, in_channels]`.
      w: kernel `[window_height, window_width, in_channels, out_channels]`, of the same dtype as `x`.
      strides: vertical and horizontal step.
      padding: `"SAME"`, `"VALID"`, or the `(low, high)` zeros of each spatial axis; no negative numbers.

    Returns:
      `[batch, out_height, out_width, out_channels]` in the dtype of `x`.

    Raises:
      TypeError: if the dtypes differ or are not floating point.
      ValueError: if shapes, strides or padding do not fit each other.
    """
    if x.dtype != w.dtype or not jnp.issubdtype(x.dtype, jnp.floating):
        raise TypeError(f"x.dtype={x.dtype}, w.dtype={w.dtype}; expected one floating-point dtype for both")
    if x.ndim != 4 or w.ndim != 4 or x.shape[3] != w.shape[2]:
        raise ValueError(f"x.shape={x.shape}, w.shape={w.shape}; expected [n, h, w, c] and [kh, kw, c, out]")
    geometry = Geometry.make(
        image=x.shape[1:3],
        window=w.shape[:2],
        strides=strides,
        padding=padding,
        # Kept with the operation: by the time it is lowered, the `with` around this call is over.
        precision=jax.config.jax_default_matmul_precision,  # type: ignore[attr-defined]
    )
    return conv_p.bind(x, w, geometry=geometry)


conv_p = Primitive("conv2d")
conv_dx_p = Primitive("conv2d_dx")
conv_dw_p = Primitive("conv2d_dw")
conv_tangent_p = Primitive("conv2d_tangent")
conv_gradients_p = Primitive("conv2d_gradients")
conv_gradients_p.multiple_results = True


def _fold_axis(array: jax.Array, axis: int) -> jax.Array:
    """Merges the leading axis into `axis` (counted without the leading one), as its slow part."""
    array = jnp.moveaxis(array, 0, axis)
    return array.reshape(*array.shape[:axis], -1, *array.shape[axis + 2 :])


def _unfold_axis(array: jax.Array, axis: int, size: int) -> jax.Array:
    """Undoes `_fold_axis`."""
    array = array.reshape(*array.shape[:axis], size, -1, *array.shape[axis + 1 :])
    return jnp.moveaxis(array, axis, 0)


def _batch(
    primitive: Primitive,
    folds: Sequence[tuple[int, int]],
    args: Sequence[jax.Array],
    dims: Sequence[int | None],
    *,
    geometry: Geometry,
) -> tuple[jax.Array, int]:
    """Batching rule: folds a mapped operand into an axis that passes through the operation untouched."""
    args = [a if d is None else jnp.moveaxis(a, d, 0) for a, d in zip(args, dims, strict=True)]
    mapped = [i for i, d in enumerate(dims) if d is not None]
    if len(mapped) == 2:  # no axis takes both: one small problem per element
        return lax.map(lambda pair: primitive.bind(*pair, geometry=geometry), tuple(args)), 0
    (i,) = mapped
    axis_in, axis_out = folds[i]
    size = args[i].shape[0]
    args[i] = _fold_axis(args[i], axis_in)
    return _unfold_axis(primitive.bind(*args, geometry=geometry), axis_out, size), 0


def _define(
    primitive: Primitive,
    *,
    shape: Callable[[Any, Any, Geometry], tuple[int, ...]],
    lax_kernel: Callable[..., jax.Array],
    cpu_kernel: Callable[..., jax.Array],
    transposes: tuple[Callable[..., jax.Array], Callable[..., jax.Array]],
    folds: Sequence[tuple[int, int]],
) -> None:
    """Gives a primitive its rules: types, derivatives, batching and what it becomes on each platform.

    Args:
      primitive: what to define.
      shape: shape of the result from both operands and the geometry.
      lax_kernel: the operation on any platform.
      cpu_kernel: the operation on a CPU.
      transposes: cotangent of the left and of the right operand, as functions of (cotangent, left, right).
      folds: for each operand, an axis that the operation maps over, and where that axis is in the result.
    """

    def abstract_eval(a: Any, b: Any, *, geometry: Geometry) -> Any:
        # Inside `shard_map(check_vma=True)` a type also says over which axes a value varies. Only JAX's own functions
        # can make operands agree in that. Where they do not agree, the rule of a product refuses, and so must this one.
        mul_p.abstract_eval(a.update(shape=()), b.update(shape=()))
        return a.update(shape=shape(a, b, geometry), weak_type=False)

    primitive.def_abstract_eval(abstract_eval)
    primitive.def_impl(jax.jit(primitive.bind, static_argnames="geometry"))
    ad.defbilinear(primitive, *transposes)
    batching.primitive_batchers[primitive] = partial(_batch, primitive, folds)
    mlir.register_lowering(primitive, mlir.lower_fun(lax_kernel, multiple_results=False))
    mlir.register_lowering(primitive, mlir.lower_fun(cpu_kernel, multiple_results=False), platform="cpu")


_define(
    conv_p,
    shape=lambda x, w, geometry: (x.shape[0], *geometry.output, w.shape[3]),
    lax_kernel=lax_kernels.conv,
    cpu_kernel=cpu_kernels.conv,
    transposes=(
        lambda dy, x, w, **params: conv_dx_p.bind(dy, w, **params),
        lambda dy, x, w, **params: conv_dw_p.bind(x, dy, **params),
    ),
    folds=((0, 0), (3, 3)),
)
_define(
    conv_dx_p,
    shape=lambda dy, w, geometry: (dy.shape[0], *geometry.image, w.shape[2]),
    lax_kernel=lax_kernels.conv_dx,
    cpu_kernel=cpu_kernels.conv_dx,
    transposes=(
        lambda ct, dy, w, **params: conv_p.bind(ct, w, **params),
        lambda ct, dy, w, **params: conv_dw_p.bind(ct, dy, **params),
    ),
    folds=((0, 0), (2, 3)),
)
_define(
    conv_dw_p,
    shape=lambda x, dy, geometry: (*geometry.window, x.shape[3], dy.shape[3]),
    lax_kernel=lax_kernels.conv_dw,
    cpu_kernel=cpu_kernels.conv_dw,
    transposes=(
        lambda ct, x, dy, **params: conv_dx_p.bind(dy, ct, **params),
        lambda ct, x, dy, **params: conv_p.bind(x, ct, **params),
    ),
    folds=((3, 2), (3, 3)),
)


def _is_given(value: Any) -> bool:
    """Whether it is an array, and neither a symbolic zero nor the operand that a transpose is taken in."""
    return not isinstance(value, ad.Zero | ad.UndefinedPrimal)


def _add(a: Any, b: Any) -> Any:
    """`a + b`, where either may be missing."""
    return b if a is None else a if b is None else a + b


def _tangent(x: Any, w: Any, dx: Any, dw: Any, **params: Any) -> jax.Array | None:
    """`conv(dx, w) + conv(x, dw)`, or the term whose operands are given."""
    if all(map(_is_given, (x, w, dx, dw))):
        return conv_tangent_p.bind(x, w, dx, dw, **params)
    terms = (conv_p.bind(*pair, **params) if all(map(_is_given, pair)) else None for pair in ((dx, w), (x, dw)))
    return _add(*terms)


def _gradients(x: Any, w: Any, dy: Any, **params: Any) -> Sequence[jax.Array | None]:
    """`conv_dx(dy, w)` and `conv_dw(x, dy)`; None for one whose operands are not given."""
    if all(map(_is_given, (x, w, dy))):
        return conv_gradients_p.bind(x, w, dy, **params)
    pairs = (conv_dx_p, (dy, w)), (conv_dw_p, (x, dy))
    return [primitive.bind(*pair, **params) if all(map(_is_given, pair)) else None for primitive, pair in pairs]


def _conv_jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    return conv_p.bind(*primals, **params), _tangent(*primals, *tangents, **params)


def _tangent_jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    (x, w, dx, dw), (x_dot, w_dot, dx_dot, dw_dot) = primals, tangents
    terms = _tangent(x, w, dx_dot, dw_dot, **params), _tangent(dx, dw, x_dot, w_dot, **params)
    return conv_tangent_p.bind(*primals, **params), _add(*terms)


def _gradients_jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    (x, w, dy), (x_dot, w_dot, dy_dot) = primals, tangents
    results = conv_gradients_p.bind(*primals, **params)
    terms = map(_add, _gradients(x, w, dy_dot, **params), _gradients(x_dot, w_dot, dy, **params))
    zeros = (ad.Zero(jax.typeof(result)) for result in results)
    return results, [zero if term is None else term for term, zero in zip(terms, zeros, strict=True)]


def _tangent_transpose(cotangent: Any, x: Any, w: Any, dx: Any, dw: Any, **params: Any) -> Sequence[Any]:
    """Linear in `(x, w)` and in `(dx, dw)`, and in either operand of one of the convolutions."""
    found = *_gradients(dx, dw, cotangent, **params), *_gradients(x, w, cotangent, **params)
    return [ct if ad.is_undefined_primal(operand) else None for ct, operand in zip(found, (x, w, dx, dw), strict=True)]


def _gradients_transpose(cotangents: Sequence[Any], x: Any, w: Any, dy: Any, **params: Any) -> Sequence[Any]:
    """Linear in `dy`, and in `(x, w)`."""
    if ad.is_undefined_primal(dy):
        return None, None, _tangent(x, w, *cotangents, **params)
    dx, dw = cotangents
    found = _gradients(dx, dw, dy, **params)
    return *(ct if ad.is_undefined_primal(operand) else None for ct, operand in zip(found, (x, w), strict=True)), None


def _two_convs(x: jax.Array, w: jax.Array, dx: jax.Array, dw: jax.Array, **params: Any) -> jax.Array:
    return conv_p.bind(dx, w, **params) + conv_p.bind(x, dw, **params)


def _two_gradients(x: jax.Array, w: jax.Array, dy: jax.Array, **params: Any) -> list[jax.Array]:
    return [conv_dx_p.bind(dy, w, **params), conv_dw_p.bind(x, dy, **params)]


def _define_pair(
    primitive: Primitive,
    plain: Callable[..., Any],
    types: Callable[..., Any],
    jvp: Callable[..., Any],
    transpose: Callable[..., Any],
) -> None:
    """Gives its rules to a primitive that is made of two others."""

    def batch(args: Sequence[jax.Array], dims: Sequence[int | None], **params: Any) -> tuple[Any, Any]:
        results = jax.vmap(partial(plain, **params), in_axes=tuple(dims))(*args)
        return results, jax.tree.map(lambda _: 0, results)

    primitive.def_abstract_eval(types)
    primitive.def_impl(jax.jit(primitive.bind, static_argnames="geometry"))
    ad.primitive_jvps[primitive] = jvp
    ad.primitive_transposes[primitive] = transpose
    batching.primitive_batchers[primitive] = batch
    mlir.register_lowering(primitive, mlir.lower_fun(plain, multiple_results=primitive.multiple_results))


def _tangent_type(x: Any, w: Any, dx: Any, dw: Any, **params: Any) -> Any:
    conv_p.abstract_eval(x, dw, **params)  # raises if this pair does not fit
    return conv_p.abstract_eval(dx, w, **params)[0]


def _gradient_types(x: Any, w: Any, dy: Any, **params: Any) -> list[Any]:
    return [conv_dx_p.abstract_eval(dy, w, **params)[0], conv_dw_p.abstract_eval(x, dy, **params)[0]]


ad.primitive_jvps[conv_p] = _conv_jvp
_define_pair(conv_tangent_p, _two_convs, _tangent_type, _tangent_jvp, _tangent_transpose)
_define_pair(conv_gradients_p, _two_gradients, _gradient_types, _gradients_jvp, _gradients_transpose)
mlir.register_lowering(conv_tangent_p, mlir.lower_fun(cpu_kernels.conv_tangent, multiple_results=False), platform="cpu")
