"""The convolution trio against `lax.conv_general_dilated`, in float64, under every transformation in use."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from metamask_jax.ops import conv2d

Case = tuple[int, int, int, object]  # image size, window, stride, padding
CASES: list[Case] = [
    (5, 1, 1, "VALID"),
    (6, 1, 2, "VALID"),
    (7, 1, 2, [(0, 0), (0, 0)]),
    (5, 1, 1, [(1, 0), (0, 2)]),
    (6, 3, 1, [(1, 1), (1, 1)]),
    (7, 3, 2, [(1, 1), (1, 1)]),
    (6, 3, 2, "SAME"),
    (7, 5, 1, [(2, 2), (2, 2)]),
    (8, 7, 2, [(3, 3), (3, 3)]),
    (9, 3, 2, "VALID"),
    (13, 11, 4, [(2, 2), (2, 2)]),
    (12, 11, 1, "VALID"),
]
pytestmark = pytest.mark.usefixtures("x64")


def reference(x: jax.Array, w: jax.Array, *, strides: tuple[int, int], padding: object) -> jax.Array:
    return lax.conv_general_dilated(x, w, strides, padding, dimension_numbers=("NHWC", "HWIO", "NHWC"))


def operands(case: Case, batch: int = 3) -> tuple[jax.Array, jax.Array]:
    size, window, _, _ = case
    rng = np.random.default_rng(size * 100 + window)
    # Height and width differ, so that swapping them anywhere shows.
    return jnp.asarray(rng.normal(size=(batch, size, size + 1, 2))), jnp.asarray(
        rng.normal(size=(window, window, 2, 3))
    )


def assert_equal(actual: object, expected: object) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10), actual, expected)


def both(transform: Callable, case: Case) -> list:
    """What `transform` makes of our convolution and of the reference, at the same operands."""
    args = operands(case)
    kwargs = {"strides": (case[2], case[2]), "padding": case[3]}
    return [jax.jit(transform(lambda x, w, c=conv: c(x, w, **kwargs)))(*args) for conv in (conv2d, reference)]


def loss(conv: Callable) -> Callable:
    """A scalar whose second derivatives in both operands, and between them, are not trivial."""
    return lambda x, w: jnp.sum(jnp.sin(conv(x, w))) + jnp.sum(x**3) + jnp.sum(w**3)


def reverse_over_reverse(conv: Callable) -> Callable:
    def directional(x: jax.Array, w: jax.Array) -> jax.Array:
        dx, dw = jax.grad(loss(conv), (0, 1))(x, w)
        return jnp.vdot(dx, jnp.cos(x)) + jnp.vdot(dw, jnp.cos(w))

    return jax.grad(directional, (0, 1))


def forward_over_reverse(conv: Callable) -> Callable:
    return lambda x, w: jax.jvp(jax.grad(loss(conv), (0, 1)), (x, w), (jnp.cos(x), jnp.cos(w)))


TRANSFORMS = {
    "value": lambda conv: conv,
    "forward mode": lambda conv: lambda x, w: jax.jvp(conv, (x, w), (jnp.cos(x), jnp.cos(w))),
    "gradient": lambda conv: jax.grad(loss(conv), (0, 1)),
    "reverse over reverse": reverse_over_reverse,
    "forward over reverse": forward_over_reverse,
}


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("name", TRANSFORMS)
def test_equals_lax_in_value_and_derivatives(name: str, case: Case) -> None:
    assert_equal(*both(TRANSFORMS[name], case))
