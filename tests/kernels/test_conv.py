"""The convolution trio against `lax.conv_general_dilated`, in float64, under every transformation in use."""

import itertools
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from metamask_jax.kernels import conv2d, cpu_kernels

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
    (13, 11, 4, [(2, 2), (2, 2)]),
    (12, 11, 1, "VALID"),
]
STRIDED: Case = (7, 3, 2, [(1, 1), (1, 1)])
pytestmark = pytest.mark.usefixtures("x64")


def reference(x: jax.Array, w: jax.Array, *, strides: tuple[int, int], padding: object) -> jax.Array:
    return lax.conv_general_dilated(x, w, strides, padding, dimension_numbers=("NHWC", "HWIO", "NHWC"))


def operands(case: Case, batch: int = 3) -> tuple[jax.Array, jax.Array]:
    size, window, _, _ = case
    rng = np.random.default_rng(size * 100 + window)
    # Height and width differ, so that swapping them anywhere shows.
    x, w = rng.normal(size=(batch, size, size + 1, 2)), rng.normal(size=(window, window, 2, 3))
    return jnp.asarray(x), jnp.asarray(w)


def assert_equal(actual: object, expected: object) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10), actual, expected)


def both(transform: Callable, case: Case) -> list:
    """What `transform` makes of our convolution and of the reference, at the same operands."""
    kwargs = {"strides": (case[2], case[2]), "padding": case[3]}
    return [jax.jit(transform(partial(conv, **kwargs)))(*operands(case)) for conv in (conv2d, reference)]


def loss(conv: Callable) -> Callable:
    """A scalar whose second derivatives, in each operand and between them, are not trivial."""
    return lambda x, w: jnp.sum(conv(x, w) ** 3) + jnp.sum(x**3) + jnp.sum(w**3)


def derivatives(conv: Callable) -> Callable:
    """Value, forward mode, gradient, forward over reverse, reverse over reverse."""

    def evaluate(x: jax.Array, w: jax.Array) -> dict:
        gradient = jax.grad(loss(conv), (0, 1))
        direction = (x**2, w**2)

        def slope(x: jax.Array, w: jax.Array) -> jax.Array:
            return sum(jnp.vdot(g, d) for g, d in zip(gradient(x, w), direction, strict=True))

        return {
            "forward": jax.jvp(conv, (x, w), direction),
            "forward over reverse": jax.jvp(gradient, (x, w), direction),
            "reverse over reverse": jax.grad(slope, (0, 1))(x, w),
        }

    return evaluate


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_lax_in_value_and_derivatives(case: Case) -> None:
    assert_equal(*both(derivatives, case))


def test_derivatives_in_any_operands_equal_lax() -> None:
    some: list[tuple[int, ...]] = [(0,), (1,), (0, 1)]

    def mixed(conv: Callable) -> Callable:
        def evaluate(x: jax.Array, w: jax.Array) -> list:
            found = []
            for first, second in itertools.product(some, some):
                gradient = jax.grad(loss(conv), first)
                size = lambda x, w, gradient=gradient: sum(jnp.sum(g**3) for g in gradient(x, w))  # noqa: E731
                moved = tuple(a**2 if i in second else jnp.zeros_like(a) for i, a in enumerate((x, w)))
                along = lambda x, w, moved=moved: jax.jvp(conv, (x, w), moved)[1]  # noqa: E731
                found.append([jax.grad(size, second)(x, w), jax.grad(loss(along), first)(x, w)])
            return found

        return evaluate

    assert_equal(*both(mixed, STRIDED))


def test_tangent_is_linear_in_either_pair() -> None:
    x, w = operands(STRIDED)
    tangent = lambda conv, x, w, dx, dw: jax.jvp(conv, (x, w), (dx, dw))[1]  # noqa: E731
    convs = [partial(conv, strides=(2, 2), padding=STRIDED[3]) for conv in (conv2d, reference)]
    dy = convs[0](x**2, w)
    transposes = [
        [
            jax.linear_transpose(partial(tangent, conv, x, w), x, w)(dy),
            jax.linear_transpose(lambda dx, dw, conv=conv: tangent(conv, dx, dw, x, w), x, w)(dy),
            jax.linear_transpose(lambda dx, x, conv=conv: tangent(conv, x, w, dx, w**2), x, x)(dy),
            jax.linear_transpose(lambda w, conv=conv: tangent(conv, x, w, x**2, w), w)(dy),
        ]
        for conv in convs
    ]
    assert_equal(*transposes)


def test_third_derivative_equals_lax() -> None:
    def third(conv: Callable) -> Callable:
        along = lambda x, w: lambda t: jnp.sum(conv(x + t * w.sum(), w + t * x.mean()) ** 4)  # noqa: E731
        return lambda x, w: jax.grad(jax.jacfwd(jax.grad(along(x, w))))(0.0)

    assert_equal(*both(third, STRIDED))


@pytest.mark.parametrize("axes", [(0, None), (None, 0), (0, 0), (2, 4)], ids=str)
def test_vmap_over_any_operand_equals_lax(axes: tuple) -> None:
    def mapped(conv: Callable) -> Callable:
        def evaluate(x: jax.Array, w: jax.Array) -> tuple:
            # Two different elements of each mapped operand, along the axis asked for.
            x, w = (a if axis is None else jnp.stack([a, a**2], axis) for a, axis in zip((x, w), axes, strict=True))
            return (
                jax.vmap(jax.grad(loss(conv), (0, 1)), axes)(x, w),
                jax.grad(lambda x, w: jnp.sum(jax.vmap(loss(conv), axes)(x, w)), (0, 1))(x, w),
            )

        return evaluate

    assert_equal(*both(mapped, STRIDED))


def test_checkpointed_gradient_equals_lax() -> None:
    assert_equal(*both(lambda conv: jax.grad(jax.checkpoint(loss(conv)), (0, 1)), STRIDED))


def test_pmap_gradient_equals_one_device() -> None:
    x, w = operands(STRIDED, batch=8)
    conv = partial(conv2d, strides=(2, 2), padding=STRIDED[3])
    per_device = jax.pmap(
        lambda x, w: lax.psum(jax.grad(loss(conv), 1)(x, w) - 3 * w**2, "device"),
        axis_name="device",
        in_axes=(0, None),
        out_axes=None,
    )
    assert_equal(per_device(x.reshape(4, 2, *x.shape[1:]), w), jax.grad(loss(conv), 1)(x, w) - 3 * w**2)


def test_shard_map_that_tracks_variation_is_refused_not_wrong() -> None:
    x, w = operands(STRIDED, batch=4)
    mesh = jax.make_mesh((4,), ("device",), axis_types=(jax.sharding.AxisType.Auto,))
    specs = (jax.P(), jax.P("device"))
    apply = jax.shard_map(lambda w, x: conv2d(x, w, strides=(1, 1), padding="SAME"), mesh=mesh, in_specs=specs,
                          out_specs=jax.P("device"))  # fmt: skip
    with pytest.raises(ValueError, match="check_vma=False"):
        apply(w, x)


def test_works_outside_jit_and_in_eval_shape() -> None:
    x, w = operands(STRIDED)
    conv = partial(conv2d, strides=(2, 2), padding=STRIDED[3])
    y = conv(x, w)
    assert_equal(y, reference(x, w, strides=(2, 2), padding=STRIDED[3]))
    assert jax.eval_shape(conv, x, w) == jax.ShapeDtypeStruct(y.shape, y.dtype)


@pytest.mark.parametrize("window", [1, 3])
def test_bfloat16_is_the_rounded_float32_result(window: int) -> None:
    x, w = (a.astype(jnp.bfloat16) for a in operands((6, window, 1, None)))
    conv = partial(conv2d, strides=(1, 1), padding="VALID")
    gradients = jax.grad(lambda x, w: jnp.sum(conv(x, w).astype(jnp.float32)), (0, 1))
    for f in (conv, gradients):
        actual, exact = f(x, w), f(x.astype(jnp.float32), w.astype(jnp.float32))
        jax.tree.map(lambda a, e: np.testing.assert_array_equal(a, e.astype(jnp.bfloat16)), actual, exact)
        assert all(leaf.dtype == jnp.bfloat16 for leaf in jax.tree.leaves(actual))


@pytest.mark.parametrize("window", [1, 3])
def test_platform_chooses_the_kernel_of_a_wide_layers_weight_gradient(window: int) -> None:
    x, w = jnp.zeros((1, 6, 6, 2)), jnp.zeros((window, window, 2, 64))
    gradient = jax.jit(jax.grad(lambda x, w: jnp.sum(conv2d(x, w, strides=(1, 1), padding="VALID") ** 2), 1))
    programs = {p: gradient.trace(x, w).lower(lowering_platforms=(p,)).as_text() for p in ("cpu", "cuda", "tpu")}
    chosen = "@metamask_jax.kernels.native" if cpu_kernels.has_native() else "dot_general"
    assert chosen in programs["cpu"].replace('"', "")
    for platform in ("cuda", "tpu"):
        assert programs[platform].count("stablehlo.convolution") == 2
        assert "custom_call" not in programs[platform]


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"x": jnp.zeros((1, 4, 4, 2), jnp.bfloat16)}, TypeError, "x.dtype=bfloat16, w.dtype=float32"),
        ({"x": jnp.zeros((1, 4, 4, 2), jnp.int32), "w": jnp.zeros((3, 3, 2, 1), jnp.int32)}, TypeError, "int32"),
        ({"x": jnp.zeros((1, 4, 4, 3), jnp.float32)}, ValueError, r"x.shape=\(1, 4, 4, 3\)"),
        ({"x": jnp.zeros((4, 4, 2), jnp.float32)}, ValueError, r"x.shape=\(4, 4, 2\)"),
        ({"strides": (0, 1)}, ValueError, r"strides=\(0, 1\)"),
        ({"padding": "same"}, ValueError, "padding='same'; expected 'SAME'"),
        ({"padding": [(0, -1), (0, 0)]}, ValueError, r"padding=\[\(0, -1\)"),
        ({"padding": [1, 1]}, ValueError, r"padding=\[1, 1\]"),
        ({"w": jnp.zeros((5, 5, 2, 1), jnp.float32)}, ValueError, r"window=\(5, 5\)"),
    ],
)
def test_bad_arguments_are_named(changes: dict, error: type[Exception], message: str) -> None:
    x, w = jnp.zeros((1, 4, 4, 2), jnp.float32), jnp.zeros((3, 3, 2, 1), jnp.float32)
    arguments = {"x": x, "w": w, "strides": (1, 1), "padding": "VALID"} | changes
    with pytest.raises(error, match=message):
        conv2d(arguments.pop("x"), arguments.pop("w"), **arguments)
