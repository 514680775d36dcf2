"""Self-supervised methods by name; docs/add_a_method.md tells how to add one."""

from metamask_jax.methods.barlow_twins import BARLOW_TWINS
from metamask_jax.methods.base import Clock, Inputs, Method, Output, Recipe, Variables
from metamask_jax.methods.byol import BYOL
from metamask_jax.methods.cmc import CMC
from metamask_jax.methods.dcl import DCL
from metamask_jax.methods.hcl import HCL
from metamask_jax.methods.moco import MOCO
from metamask_jax.methods.nnclr import NNCLR
from metamask_jax.methods.simclr import SIMCLR
from metamask_jax.methods.simsiam import SIMSIAM
from metamask_jax.methods.supervised import SUPERVISED
from metamask_jax.methods.swav import SWAV

METHODS: dict[str, Recipe] = {
    "barlow_twins": BARLOW_TWINS,
    "byol": BYOL,
    "cmc": CMC,
    "dcl": DCL,
    "hcl": HCL,
    "moco": MOCO,
    "nnclr": NNCLR,
    "simclr": SIMCLR,
    "simsiam": SIMSIAM,
    "supervised": SUPERVISED,
    "swav": SWAV,
}

__all__ = ["METHODS", "Clock", "Inputs", "Method", "Output", "Recipe", "Variables"]
