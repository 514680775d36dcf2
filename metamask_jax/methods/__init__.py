"""Self-supervised methods by name, each a function `(config, axis_name) -> Method`."""

from metamask_jax.methods.base import Method, Output, Variables
from metamask_jax.methods.simclr import simclr

METHODS = {"simclr": simclr}

__all__ = ["METHODS", "Method", "Output", "Variables"]
