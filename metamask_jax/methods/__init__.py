"""Self-supervised methods by name; docs/add_a_method.md tells how to add one."""

from metamask_jax.methods.barlow_twins import BARLOW_TWINS
from metamask_jax.methods.base import Clock, Inputs, Method, Output, Recipe, Variables
from metamask_jax.methods.simclr import SIMCLR

METHODS: dict[str, Recipe] = {"barlow_twins": BARLOW_TWINS, "simclr": SIMCLR}

__all__ = ["METHODS", "Clock", "Inputs", "Method", "Output", "Recipe", "Variables"]
