"""MetaMask: self-supervised learning with a meta-learned dimensional mask."""

from metamask_jax.version import __version__

__all__ = ["__version__"]
