"""Augmentation on the device: uint8 images in, normalised float32 views out, a pure function of explicit keys.

Example:
    >>> import jax, jax.numpy as jnp
    >>> augment = jax.jit(make_augmentation("simclr", image_size=32, views=2))
    >>> images = jnp.zeros((4, 32, 32, 3), jnp.uint8)
    >>> augment(images, example_keys(0, 0, jnp.arange(4))).shape
    (2, 4, 32, 32, 3)
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from metamask_jax.data.augment import ops
from metamask_jax.data.augment.draws import Draws, sample_draws
from metamask_jax.data.augment.presets import PRESETS, CenterCrop, RandomResizedCrop, ViewSpec, check_spec

__all__ = [
    "PRESETS",
    "CenterCrop",
    "Draws",
    "RandomResizedCrop",
    "ViewSpec",
    "example_keys",
    "make_augmentation",
    "render_view",
    "sample_draws",
]

Augmentation = Callable[[jax.Array, jax.Array], jax.Array]

# Sets these keys apart from any other use of fold_in(key(seed), step), such as dropout.
_STREAM = 0x617567


def example_keys(seed: int | jax.Array, step: int | jax.Array, positions: jax.Array) -> jax.Array:
    """Returns one key an example, a function of the seed, the step and the place in the global batch alone.

    So the draws are the same however the batch is split over devices and processes, and after a restart at any step.

    Args:
        seed: of the run.
        step: of the training; may be traced.
        positions: int `[batch]`, places of these examples in the global batch; may be traced.

    Returns:
        Keys `[batch]`.
    """
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), _STREAM), step)
    return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, positions)


def _matrices(
    box: jax.Array, spec: ViewSpec, *, height: int, width: int, image_size: int
) -> tuple[jax.Array, jax.Array]:
    """Returns the matrices `[image_size, height]` and `[image_size, width]` of the view's crop."""
    if isinstance(spec.crop, RandomResizedCrop):
        top, left, box_height, box_width = box
        return (
            ops.resample_matrix(top, box_height, size=height, out=image_size, interpolation=spec.interpolation),
            ops.resample_matrix(left, box_width, size=width, out=image_size, interpolation=spec.interpolation),
        )
    native = height == width == image_size
    shortest = image_size if native else spec.crop.shortest

    def middle(size: int) -> jax.Array:
        resized = shortest * size // min(height, width)
        skip = (resized - image_size) // 2
        matrix = ops.resample_matrix(0, size, size=size, out=resized, interpolation=spec.interpolation)
        return matrix[skip : skip + image_size]

    return middle(height), middle(width)


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
    height, width, _ = image.shape
    rows, columns = _matrices(draws.box, spec, height=height, width=width, image_size=image_size)
    if spec.flip_p > 0.0:
        columns = jnp.where(draws.flip, columns[::-1], columns)
    planes = ops.resample(image, rows, columns)
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
    return (planes.transpose(1, 2, 0) - jnp.array(spec.mean)) / jnp.array(spec.std)


def make_augmentation(preset: str | Sequence[ViewSpec], *, image_size: int, views: int) -> Augmentation:
    """Builds the function that turns a batch of images into views.

    Args:
        preset: a key of `PRESETS`, or one `ViewSpec` a view; fewer specs than views are repeated in turn.
        image_size: side of the views in pixels.
        views: number of views of each image.

    Returns:
        A pure function of images (uint8 `[batch, height, width, 3]`) and keys (`[batch]`, from `example_keys`) to
        views (float32 `[views, batch, image_size, image_size, 3]`), for use inside `jax.jit`.

    Raises:
        ValueError: if an argument is out of range.
    """
    if views < 1:
        raise ValueError(f"views={views}; expected at least 1")
    if image_size < 1:
        raise ValueError(f"image_size={image_size}; expected at least 1")
    if isinstance(preset, str):
        if preset not in PRESETS:
            raise ValueError(f"preset={preset!r}; expected one of {', '.join(map(repr, PRESETS))}")
        specs = PRESETS[preset](image_size)
    else:
        specs = tuple(preset)
    for spec in specs:
        check_spec(spec, image_size=image_size)

    def augment(images: jax.Array, keys: jax.Array) -> jax.Array:
        _check_batch(images, keys)
        _, height, width, _ = images.shape

        def view(index: int) -> jax.Array:
            spec = specs[index % len(specs)]

            def one(image: jax.Array, key: jax.Array) -> jax.Array:
                draws = sample_draws(jax.random.fold_in(key, index), spec, height=height, width=width)
                return render_view(image, draws, spec, image_size=image_size)

            return jax.vmap(one)(images, keys)

        return jnp.stack([view(index) for index in range(views)])

    return augment


def _check_batch(images: jax.Array, keys: jax.Array) -> None:
    if images.dtype != jnp.uint8:
        raise TypeError(f"images.dtype={images.dtype}; expected uint8")
    if images.ndim != 4 or images.shape[-1] != 3:
        raise ValueError(f"images.shape={images.shape}; expected [batch, height, width, 3]")
    if not jnp.issubdtype(keys.dtype, jax.dtypes.prng_key):
        raise TypeError(f"keys.dtype={keys.dtype}; expected keys from example_keys")
    if keys.shape != images.shape[:1]:
        raise ValueError(f"keys.shape={keys.shape}; expected one key an image, {images.shape[:1]}")
