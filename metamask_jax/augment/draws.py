"""The random draws of a view, apart from the pixels they act on.

Every sampler maps uniform numbers in [0, 1) to parameters. The numbers of a view come from a single call of the
generator, which is faster than one call per parameter, and what a sampler does with 0 or nearly 1 can be tested.
"""

import itertools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from metamask_jax.augment.presets import RandomResizedCrop, ViewSpec

_TRIES = 10  # torchvision's
_ORDERS = np.array(list(itertools.permutations(range(4))))
_NO_BLUR = 1e-3  # the neighbours' weights underflow to 0
_NO_SOLARIZE = 2.0


class Draws(NamedTuple):
    """Parameters of one view of one image; a step that is not applied has its neutral parameter.

    Attributes:
      box: int32 `[4]`, top, left, height and width of a random crop.
      flip: bool, whether the crop is mirrored.
      jitter: float32 `[4]`, see `ops.color_jitter`.
      order: int32 `[4]`, the order of the jitter's adjustments.
      grey: float32, saturation left over: 0 or 1.
      sigma: float32, of the blur.
      threshold: float32, of the solarization.
    """

    box: jax.Array
    flip: jax.Array
    jitter: jax.Array
    order: jax.Array
    grey: jax.Array
    sigma: jax.Array
    threshold: jax.Array


def _between(uniform: jax.Array, low: float, high: float) -> jax.Array:
    return low + (high - low) * uniform


def _central_box(height: int, width: int, ratio: tuple[float, float]) -> tuple[int, int, int, int]:
    """The largest centred box whose width / height is within `ratio`."""
    low, high = ratio
    box_width = min(width, round(height * high))
    box_height = min(height, round(width / low))
    return (height - box_height) // 2, (width - box_width) // 2, box_height, box_width


def sample_box(uniform: jax.Array, crop: RandomResizedCrop, *, height: int, width: int) -> jax.Array:
    """Draws the box of a random resized crop as torchvision does.

    Of ten boxes with random area and ratio the first that fits is placed at random; if none fits, the largest centred
    box of an allowed ratio is taken.

    Args:
      uniform: `[22]` numbers in [0, 1): ten areas, ten ratios, two positions.
      crop: ranges of area and ratio.
      height: of the image.
      width: of the image.

    Returns:
      int32 `[4]`: top, left, height, width.
    """
    area = height * width * _between(uniform[:_TRIES], *crop.scale)
    ratio = jnp.exp(_between(uniform[_TRIES : 2 * _TRIES], math.log(crop.ratio[0]), math.log(crop.ratio[1])))
    heights, widths = jnp.round(jnp.sqrt(area / ratio)), jnp.round(jnp.sqrt(area * ratio))
    fits = (heights > 0) & (heights <= height) & (widths > 0) & (widths <= width)
    sides = jnp.stack([heights, widths])[:, jnp.argmax(fits)]
    corner = jnp.floor(uniform[2 * _TRIES :] * (jnp.array([height, width], jnp.float32) - sides + 1))
    box = jnp.concatenate([corner, sides]).astype(jnp.int32)
    return jnp.where(fits.any(), box, jnp.array(_central_box(height, width, crop.ratio), jnp.int32))


def sample_jitter(uniform: jax.Array, strengths: tuple[float, ...], *, p: float) -> tuple[jax.Array, jax.Array]:
    """Draws the factors `[4]` and the order `[4]` of a colour jitter from six numbers."""
    *blends, hue = strengths
    low = jnp.array([max(0.0, 1.0 - s) for s in blends] + [-hue], jnp.float32)
    high = jnp.array([1.0 + s for s in blends] + [hue], jnp.float32)
    factors = jnp.where(uniform[0] < p, low + (high - low) * uniform[1:5], jnp.array([1.0, 1.0, 1.0, 0.0], jnp.float32))
    order = jnp.asarray(_ORDERS, jnp.int32)[jnp.floor(uniform[5] * len(_ORDERS)).astype(jnp.int32)]
    return factors, order


def sample_draws(key: jax.Array, spec: ViewSpec, *, height: int, width: int) -> Draws:
    """Draws all parameters of one view of one `height` x `width` image.

    Which number feeds which parameter does not depend on the spec, so that changing one probability leaves every
    other draw as it was.
    """
    sizes = (2 * _TRIES + 2, 1, 6, 1, 2, 1)
    uniform = jax.random.uniform(key, (sum(sizes),), jnp.float32)
    box, flip, jitter, grey, blur, solarize = jnp.split(uniform, np.cumsum(sizes)[:-1])
    if isinstance(spec.crop, RandomResizedCrop):
        seen = sample_box(box, spec.crop, height=height, width=width)
    else:
        seen = jnp.array([0, 0, height, width], jnp.int32)
    factors, order = sample_jitter(jitter, spec.jitter, p=spec.jitter_p)
    return Draws(
        box=seen,
        flip=flip[0] < spec.flip_p,
        jitter=factors,
        order=order,
        grey=(grey[0] >= spec.grey_p).astype(jnp.float32),
        sigma=jnp.where(blur[0] < spec.blur_p, _between(blur[1], *spec.blur_sigma), _NO_BLUR),
        threshold=jnp.where(solarize[0] < spec.solarize_p, jnp.float32(spec.solarize_threshold), _NO_SOLARIZE),
    )
