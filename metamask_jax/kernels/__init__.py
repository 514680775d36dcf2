"""Operations whose usual form is slow on a CPU."""

from metamask_jax.kernels.conv import conv2d
from metamask_jax.kernels.pool import max_pool
from metamask_jax.kernels.switch import use

__all__ = ["conv2d", "max_pool", "use"]
