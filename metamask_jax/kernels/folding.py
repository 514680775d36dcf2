"""The batching rule of primitives whose arrays begin with an axis of independent problems."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import batching


def fold_mapped_axis(primitive: Primitive) -> None:
    """Lets `jax.vmap` fold the axis it maps over into the first axis of all arrays."""
    batching.primitive_batchers[primitive] = partial(_batch, primitive)


def _batch(
    primitive: Primitive, args: Sequence[jax.Array], dims: Sequence[int | None], **settings: Any
) -> tuple[Any, Any]:
    size = next(arg.shape[dim] for arg, dim in zip(args, dims, strict=True) if dim is not None)

    def folded(arg: jax.Array, dim: int | None) -> jax.Array:
        arg = jnp.broadcast_to(arg, (size, *arg.shape)) if dim is None else jnp.moveaxis(arg, dim, 0)
        return arg.reshape(-1, *arg.shape[2:])

    results = primitive.bind(*map(folded, args, dims), **settings)
    unfolded = jax.tree.map(lambda result: result.reshape(size, -1, *result.shape[1:]), results)
    return unfolded, jax.tree.map(lambda _: 0, unfolded)
