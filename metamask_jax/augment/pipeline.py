"""Views of a batch: draws and pixel operations put together."""

import dataclasses
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from metamask_jax.augment import ops
from metamask_jax.augment.draws import Draws, sample_draws
from metamask_jax.augment.presets import PRESETS, Augmentation, CenterCrop, RandomResizedCrop, ViewSpec, check_spec

# Sets these keys apart from any other use of fold_in(key(seed), step), such as dropout.
_STREAM = 0x617567
_CACHED_PIXELS = 2**17


def example_keys(seed: int | jax.Array, step: int | jax.Array, positions: ArrayLike) -> jax.Array:
    """Returns one key per example, a function of the seed, the step and the place in the global batch alone.

    So the draws are the same however the batch is split over devices and processes, and after a restart at any step.

    Args:
      seed: of the run.
      step: of the training; may be traced.
      positions: int `[batch]`, places of these examples in the global batch; may be traced.

    Returns:
      Keys `[batch]`.
    """
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), _STREAM), step)
    return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, jnp.asarray(positions))


def _random_crop(image: jax.Array, box: jax.Array, *, interpolation: str, image_size: int) -> jax.Array:
    height, width, _ = image.shape
    top, left, box_height, box_width = box
    rows = ops.resample_taps(top, box_height, size=height, out=image_size, interpolation=interpolation)
    columns = ops.resample_taps(left, box_width, size=width, out=image_size, interpolation=interpolation)
    return ops.resample(image, rows, columns)


def _center_crop(image: jax.Array, *, shortest: int, interpolation: str, image_size: int) -> jax.Array:
    height, width, _ = image.shape
    if height == width == image_size:
        return ops.to_planes(image)

    def middle(size: int) -> ops.Taps:
        resized = shortest * size // min(height, width)
        skip = (resized - image_size) // 2
        indices, weights = ops.resample_taps(0, size, size=size, out=resized, interpolation=interpolation)
        return ops.Taps(indices[:, skip : skip + image_size], weights[:, skip : skip + image_size])

    return ops.resample(image, middle(height), middle(width))


def render_view(image: jax.Array, draws: Draws, spec: ViewSpec, *, image_size: int) -> jax.Array:
    """Applies one view's drawn parameters to one image.

    Args:
      image: uint8 `[height, width, 3]`.
      draws: from `sample_draws`.
      spec: the view's pipeline; steps of probability 0 are not compiled.
      image_size: side of the result.

    Returns:
      float32 `[image_size, image_size, 3]`, normalised.
    """
    if isinstance(spec.crop, RandomResizedCrop):
        planes = _random_crop(image, draws.box, interpolation=spec.interpolation, image_size=image_size)
    else:
        shortest = spec.crop.shortest
        planes = _center_crop(image, shortest=shortest, interpolation=spec.interpolation, image_size=image_size)
    if spec.flip_p > 0.0:
        planes = ops.flip(planes, draws.flip)
    if spec.jitter_p > 0.0:
        planes = ops.color_jitter(planes, draws.jitter, draws.order)
    if spec.grey_p > 0.0:
        planes = ops.adjust_saturation(planes, draws.grey)
    if spec.blur_p > 0.0:
        planes = ops.gaussian_blur(planes, draws.sigma, size=spec.blur_size)
    if spec.solarize_p > 0.0:
        planes = ops.solarize(planes, draws.threshold)
    if spec.color_space == "lab":
        planes = ops.rgb_to_lab(planes)
    mean, std = jnp.array([spec.mean, spec.std], jnp.float32)
    return (planes.transpose(1, 2, 0) - mean) / std


def _map_images(
    one: Callable[[jax.Array, jax.Array], jax.Array], images: jax.Array, keys: jax.Array, *, image_size: int
) -> jax.Array:
    """Maps over the batch: all at once, but on CPUs in parts whose pixels stay in the cache from step to step."""
    part = max(1, _CACHED_PIXELS // image_size**2)

    def in_parts(images: jax.Array, keys: jax.Array) -> jax.Array:
        return jax.lax.map(lambda pair: one(*pair), (images, keys), batch_size=part)

    return jax.lax.platform_dependent(images, keys, cpu=in_parts, default=jax.vmap(one))


def make_augmentation(preset: str | Sequence[ViewSpec], *, image_size: int, views: int) -> Augmentation:
    """Builds the function that turns a batch of images into views.

    Args:
      preset: a key of `PRESETS`, or one `ViewSpec` per view; fewer specs than views are repeated in turn.
      image_size: side of the views in pixels.
      views: number of views of each image.

    Returns:
      A pure function, for use inside `jax.jit`, of images and keys (`[batch]`, from `example_keys`) to views,
      float32 `[views, batch, image_size, image_size, 3]`. Images are uint8 `[batch, height, width, 3]`, or
      `[batch, views, image_size, image_size, 3]` where each view was cropped already; then the crop is left out.

    Raises:
      ValueError: if an argument is out of range.
    """
    if views < 1:
        raise ValueError(f"{views=}; expected at least 1")
    specs = _specs(preset, image_size=image_size)

    def augment(images: jax.Array, keys: jax.Array) -> jax.Array:
        _check_batch(images, keys, views=views, image_size=image_size)
        height, width = images.shape[-3:-1]

        def view(index: int) -> jax.Array:
            spec, seen = specs[index % len(specs)], images
            if images.ndim == 5:
                spec, seen = dataclasses.replace(spec, crop=CenterCrop(shortest=image_size)), images[:, index]

            def one(image: jax.Array, key: jax.Array) -> jax.Array:
                draws = sample_draws(jax.random.fold_in(key, index), spec, height=height, width=width)
                return render_view(image, draws, spec, image_size=image_size)

            return _map_images(one, seen, keys, image_size=image_size)

        return jnp.stack([view(index) for index in range(views)])

    return augment


def _specs(preset: str | Sequence[ViewSpec], *, image_size: int) -> tuple[ViewSpec, ...]:
    if image_size < 1:
        raise ValueError(f"{image_size=}; expected at least 1")
    if isinstance(preset, str) and preset not in PRESETS:
        raise ValueError(f"{preset=}; expected one of {', '.join(map(repr, PRESETS))}")
    specs = PRESETS[preset](image_size) if isinstance(preset, str) else tuple(preset)
    if not specs:
        raise ValueError(f"{preset=}; expected at least one ViewSpec")
    for spec in specs:
        check_spec(spec, image_size=image_size)
    return specs


def _check_batch(images: jax.Array, keys: jax.Array, *, views: int, image_size: int) -> None:
    if images.dtype != jnp.uint8:
        raise TypeError(f"images.dtype={images.dtype}; expected uint8")
    cropped = (views, image_size, image_size, 3)
    if not (images.ndim == 4 and images.shape[3] == 3) and images.shape[1:] != cropped:
        raise ValueError(f"images.shape={images.shape}; expected (batch, height, width, 3) or (batch, *{cropped})")
    if not jnp.issubdtype(keys.dtype, jax.dtypes.prng_key):
        raise TypeError(f"keys.dtype={keys.dtype}; expected keys from example_keys")
    if keys.shape != images.shape[:1]:
        raise ValueError(f"keys.shape={keys.shape}; expected one key per image, {images.shape[:1]}")
