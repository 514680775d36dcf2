"""The three operations by XLA's own convolution: correct on every platform, and fast on all but CPUs."""

import jax
from jax import lax

from metamask_jax.kernels.geometry import Geometry

_LAYOUT = ("NHWC", "HWIO", "NHWC")


def conv(x: jax.Array, w: jax.Array, *, geometry: Geometry) -> jax.Array:
    """Convolves `x` `[n, h, w, in]` with `w` `[kh, kw, in, out]` into `[n, oh, ow, out]`."""
    return lax.conv_general_dilated(
        x, w, geometry.strides, geometry.padding, dimension_numbers=_LAYOUT, precision=geometry.precision
    )


def conv_dx(dy: jax.Array, w: jax.Array, *, geometry: Geometry) -> jax.Array:
    """Input gradient `[n, h, w, in]` from `dy` `[n, oh, ow, out]` and `w` `[kh, kw, in, out]`."""
    x = jax.ShapeDtypeStruct((dy.shape[0], *geometry.image, w.shape[2]), dy.dtype)
    (dx,) = jax.linear_transpose(lambda x: conv(x, w, geometry=geometry), x)(dy)
    return dx


def conv_dw(x: jax.Array, dy: jax.Array, *, geometry: Geometry) -> jax.Array:
    """Weight gradient `[kh, kw, in, out]` from `x` `[n, h, w, in]` and `dy` `[n, oh, ow, out]`."""
    w = jax.ShapeDtypeStruct((*geometry.window, x.shape[3], dy.shape[3]), dy.dtype)
    (dw,) = jax.linear_transpose(lambda w: conv(x, w, geometry=geometry), w)(dy)
    return dw
