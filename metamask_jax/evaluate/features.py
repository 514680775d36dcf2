"""Features of pictures from a frozen encoder."""

from collections.abc import Sequence
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from ml_collections import ConfigDict

from metamask_jax.augment import PRESETS, Augmentation, ViewSpec, color_space, example_keys, make_augmentation
from metamask_jax.core.types import PyTree
from metamask_jax.data.sources import Source
from metamask_jax.training.registry import Registry, registry_of
from metamask_jax.training.state import build_encoder

# Images that go through the encoder at once. A fixed number, because the order of a compiled program's additions, and
# so the last bit of a feature, depends on it: batch size and devices only say how many such blocks are on their way.
BLOCK = 32

_CHUNK = 4096  # images read from a source at a time


class Extractor(Protocol):
    """What `make_extractor` returns."""

    def __call__(
        self, params: PyTree, batch_stats: PyTree, images: np.ndarray, *, draw: int = 0, start: int = 0
    ) -> np.ndarray:
        """Features float32 [size, dim], not multiplied by the mask, of images uint8 [size, height, width, 3].

        Args:
          params: of a `TrainState`; what is under "encoder" is used.
          batch_stats: likewise.
          images: may be memory-mapped: only a batch is read at a time.
          draw: which random views, if the extractor's are random.
          start: position of the first image in its set; a random view is a function of seed, draw and position.
        """
        ...


def eval_view(config: ConfigDict, registry: Registry | None = None) -> ViewSpec:
    """How an encoder of this configuration sees pictures: resized, cropped in the middle, normalised.

    An encoder trained on Lab channels is shown Lab channels.
    """
    registry = registry or registry_of(config)
    size = config.data.image_size
    trained_on = color_space(registry.augmentations[config.data.augmentation](size))
    return PRESETS["eval_lab" if trained_on == "lab" else "eval"](size)[0]


def make_extractor(
    config: ConfigDict,
    *,
    view: ViewSpec | Augmentation | None = None,
    seed: int = 0,
    devices: Sequence[jax.Device] | None = None,
    registry: Registry | None = None,
) -> Extractor:
    """Builds the function `(params, batch_stats, images) -> h` that gives the encoder's features of images.

    The encoder is in inference mode: BatchNorm uses its running statistics and nothing changes. The images go through
    in batches of `config.eval.batch_size`, shared by the devices; the last is padded, so one program serves them all.

    Args:
      config: a validated configuration.
      view: what is done to the images first, a function of images and keys included; None for `eval_view`.
      seed: of a view that is random.
      devices: devices of this process; None for all of them.
      registry: what the configuration's names stand for; None is ours and `config.plugins`.
    """
    devices = jax.local_devices() if devices is None else list(devices)
    blocks = max(2, -(-config.eval.batch_size // (BLOCK * len(devices))))  # a loop of one would be compiled differently
    batch_size = BLOCK * blocks * len(devices)
    encoder = build_encoder(config, axis_name=None, registry=registry)
    view = view or eval_view(config, registry)
    if isinstance(view, ViewSpec):
        view = make_augmentation((view,), image_size=config.data.image_size, views=1)
    augment: Augmentation = view

    def apply(
        params: PyTree, batch_stats: PyTree, images: jax.Array, draw: jax.Array, positions: jax.Array
    ) -> jax.Array:
        def block(images_and_positions: tuple[jax.Array, jax.Array]) -> jax.Array:
            images, positions = images_and_positions
            variables = {"params": params, "batch_stats": batch_stats}
            return jnp.asarray(
                encoder.apply(variables, augment(images, example_keys(seed, draw, positions))[0], train=False)
            )

        return lax.map(block, (images, positions))

    mapped = jax.pmap(apply, in_axes=(None, None, 0, None, 0), devices=devices)

    def extract(
        params: PyTree, batch_stats: PyTree, images: np.ndarray, *, draw: int = 0, start: int = 0
    ) -> np.ndarray:
        if images.ndim != 4 or images.shape[3] != 3 or images.dtype != np.uint8:
            raise ValueError(f"images {images.dtype} {images.shape}; expected uint8 (size, height, width, 3)")
        h = np.empty((len(images), encoder.features), np.float32)
        batch = np.zeros((batch_size, *images.shape[1:]), np.uint8)
        for first in range(0, len(images), batch_size):
            part = images[first : first + batch_size]
            batch[: len(part)] = part
            positions = np.arange(start + first, start + first + batch_size, dtype=np.int32)
            features = mapped(
                params["encoder"],
                batch_stats["encoder"],
                batch.reshape(len(devices), blocks, BLOCK, *images.shape[1:]),
                np.int32(draw),
                positions.reshape(len(devices), blocks, BLOCK),
            )
            h[first : first + len(part)] = np.asarray(features).reshape(batch_size, -1)[: len(part)]
        return h

    return extract


def extract_source(
    extract: Extractor,
    params: PyTree,
    batch_stats: PyTree,
    source: Source,
    *,
    rows: np.ndarray | None = None,
    draw: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """Features float32 [size, dim] and labels int32 [size] of a source, or of some of its rows int [size].

    The other arguments are those of an `Extractor`.
    """
    rows = np.arange(len(source)) if rows is None else rows
    features, labels = [], []
    for start in range(0, len(rows), _CHUNK):
        images, chunk_labels = source.gather(rows[start : start + _CHUNK])
        features.append(extract(params, batch_stats, images, draw=draw, start=start))
        labels.append(chunk_labels)
    return np.concatenate(features), np.concatenate(labels)
