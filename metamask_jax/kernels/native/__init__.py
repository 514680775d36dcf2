"""Convolutions, sums and pools in native code, compiled by LLVM for the machine they run on, called by XLA's programs.

`emit` writes loops and matrix products in LLVM's language. `direct` and `winograd` write convolutions in terms of them,
`moments` writes sums over pixels, `pool` max-pooling, and `ffi` compiles them and makes them known to XLA. They take
float32 and float64 arrays, on processors with AVX2 or AVX-512; the channels of convolutions must fill vector registers.
`resample` resizes pictures on the host, before XLA sees them.
"""

from collections.abc import Callable

import jax

from metamask_jax.kernels.native import direct, winograd
from metamask_jax.kernels.native.emit import VECTOR
from metamask_jax.kernels.native.ffi import machine

__all__ = ["KERNELS", "VECTOR", "machine", "suits_winograd"]

suits_winograd = winograd.suits
KERNELS: dict[str, dict[str, Callable[..., jax.Array]]] = {
    "direct": {"conv": direct.conv, "conv_dx": direct.conv_dx, "conv_dw": direct.conv_dw},
    "winograd": {
        "conv": winograd.conv,
        "conv_tangent": winograd.conv_tangent,
        "conv_dx": winograd.conv_dx,
        "conv_dw": winograd.conv_dw,
    },
}
