"""A state as arrays by name, as a checkpoint holds it: copied off the devices, with a digest, and back."""

import hashlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from metamask_jax.errors import CheckpointError


def copies(tree: Any) -> dict[str, Any]:
    """A pytree as one dict by path, of copies on their way: training may overwrite its own buffers meanwhile.

    Arrays on a device are copied there, after the step that computes them; nobody waits for that here.
    """
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): (
            # All devices have the same: the first one of this process is enough.
            jax.device_put(leaf.addressable_data(0), may_alias=False) if isinstance(leaf, jax.Array) else np.array(leaf)
        )
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def unflatten(arrays: Mapping[str, np.ndarray], like: Any, step: int) -> Any:
    """The pytree of arrays by path.

    Args:
      arrays: by path, of the checkpoint after a step.
      like: a pytree of arrays with the structure and shapes to expect.
      step: for the message.

    Raises:
      CheckpointError: an array is missing, or of another shape.
    """
    paths, structure = jax.tree_util.tree_flatten_with_path(like)
    leaves = []
    for path, leaf in paths:
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        if name not in arrays or arrays[name].shape != leaf.shape:
            found = arrays[name].shape if name in arrays else "nothing"
            raise CheckpointError(f"checkpoint {step} has {found} for {name}; expected shape {leaf.shape}")
        leaves.append(arrays[name].astype(leaf.dtype, copy=False))
    return jax.tree.unflatten(structure, leaves)


def digest_of(arrays: Mapping[str, np.ndarray]) -> str:
    """What tells whether arrays are those that were written: of names, types, shapes and every byte."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(arrays):
        digest.update(f"{name}{arrays[name].dtype}{arrays[name].shape}".encode())
        digest.update(np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
