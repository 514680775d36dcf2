"""What rounded products do to the meta-gradient: accelerators emulated on a CPU.

    python benchmarks/rounding.py [--encoder resnet18] [--width 0.25] [--batch 32] [--steps 0 50] [--data-dir DIR]

By default a TPU rounds the operands of a float32 product to bfloat16 and adds up in float32; many GPUs round to TF32.
Here the second-order part of the meta-gradient is traced, and its program run with the operands of every convolution
and matrix product rounded so, derivatives included; products in the highest precision, which the losses ask for, are
left alone. The last row is a network that computes in bfloat16 throughout (train.dtype), not emulated. Each error is
relative to the same estimator in float64, so that kinks, which spoil a difference in any precision, are no part of it.
"""

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from finite_difference import problem, short_run, states_at
from jax import lax

from metamask_jax.core.meta import meta_gradient_parts
from metamask_jax.data import Batch
from metamask_jax.training.state import TrainState

ESTIMATORS = ("exact", "finite_difference")
MANTISSA = {"TF32": 10, "bfloat16": 7}  # bits that are left of an operand
PRODUCTS = {"dot_general", "conv2d", "conv2d_dx", "conv2d_dw", "conv2d_tangent", "conv2d_gradients"}
CALLS = {"jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call", "remat2", "checkpoint"}
LOOPS = {"while", "scan", "cond"}


def with_rounded_products(function: Callable[..., Any], bits: int) -> Callable[..., Any]:
    """The same function with the operands of its products rounded to so many bits of mantissa."""

    def run(*arguments: Any) -> Any:
        program, results = jax.make_jaxpr(function, return_shape=True)(*arguments)
        found = _evaluate(program.jaxpr, program.consts, jax.tree.leaves(arguments), bits)
        return jax.tree.unflatten(jax.tree.structure(results), found)

    return run


def _evaluate(program: Any, constants: Sequence[Any], arguments: Sequence[Any], bits: int) -> list[Any]:
    values = dict(zip((*program.constvars, *program.invars), (*constants, *arguments), strict=True))
    for equation in program.eqns:
        operands = [v.val if hasattr(v, "val") else values[v] for v in equation.invars]
        name, settings = equation.primitive.name, equation.params
        if name in LOOPS and any(product in str(equation) for product in PRODUCTS):
            raise NotImplementedError(f"a {name} in the program; its body would not be rounded")
        if name in CALLS:
            inner = settings.get("jaxpr", settings.get("call_jaxpr"))
            inner, held = (inner.jaxpr, inner.consts) if hasattr(inner, "consts") else (inner, ())
            results = _evaluate(inner, held, operands, bits)
        else:
            if name in PRODUCTS and "HIGHEST" not in str(settings.get("precision")):
                operands = [lax.reduce_precision(operand, 8, bits) for operand in operands]
            results = equation.primitive.bind(*operands, **settings)
            results = results if equation.primitive.multiple_results else [results]
        values |= zip(equation.outvars, results, strict=True)
    return [v.val if hasattr(v, "val") else values[v] for v in program.outvars]


def second_orders(config: Any, state: TrainState, batch: Batch, dtype: str, bits: int | None = None) -> list[jax.Array]:
    """The second-order part of each estimator, computed in a number format."""
    with jax.enable_x64(dtype == "float64"):
        loss, params, mask = problem(config, state, batch, dtype)

        def second_order(params: Any, mask: jax.Array) -> list[jax.Array]:
            rate = config.optimizer.learning_rate
            found = (meta_gradient_parts(loss, loss, params, mask, learning_rate=rate, estimator=e) for e in ESTIMATORS)
            return [parts.second_order for parts in found]

        run = second_order if bits is None else with_rounded_products(second_order, bits)
        return [jax.device_get(part) for part in jax.jit(run)(params, mask)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", choices=("resnet18", "conv"), default="resnet18")
    parser.add_argument("--width", type=float, default=0.25)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, nargs="+", default=[0, 50])
    parser.add_argument("--data-dir", default="~/tensorflow_datasets")
    flags = parser.parse_args()
    config, source = short_run(flags.encoder, flags.batch, flags.data_dir, flags.width)
    print(f"{flags.encoder}, width {flags.width:g}, batch {flags.batch}: relative error of the second-order part")
    print(f"{'after steps':<14}{'products in':<20}" + "".join(f"{name:>20}" for name in ESTIMATORS))
    cases = {"float32": ("float32", None), **{name: ("float32", bits) for name, bits in MANTISSA.items()}}
    cases["all in bfloat16"] = ("bfloat16", None)
    for i, state, batch in states_at(config, source, flags.steps):
        exact = second_orders(config, state, batch, "float64")
        for name, case in cases.items():
            found = second_orders(config, state, batch, *case)
            off = [jnp.linalg.norm(a - b) / jnp.linalg.norm(b) for a, b in zip(found, exact, strict=True)]
            print(f"{i:<14}{name:<20}" + "".join(f"{error:20.2g}" for error in off), flush=True)


if __name__ == "__main__":
    main()
