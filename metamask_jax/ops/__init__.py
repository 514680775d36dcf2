"""Kernels whose implementation is chosen by the platform they are compiled for."""

from metamask_jax.ops.conv import conv2d

__all__ = ["conv2d"]
