"""Features of pictures from a frozen encoder."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from ml_collections import ConfigDict

from metamask_jax.data.augment import example_keys, make_augmentation
from metamask_jax.train_step import build_encoder

# Images that go through the encoder at once. A fixed number, because the order of a compiled program's additions, and
# so the last bit of a feature, depends on it: batch size and devices only say how many such blocks are on their way.
BLOCK = 32

PyTree = Any
Extractor = Callable[[PyTree, PyTree, np.ndarray], np.ndarray]


def make_extractor(config: ConfigDict, *, devices: Sequence[jax.Device] | None = None) -> Extractor:
    """Builds the function `(params, batch_stats, images) -> h` that gives the encoder's features of images.

    The encoder is in inference mode: BatchNorm uses its running statistics and nothing changes. The images are resized
    and centre-cropped as the `eval` preset says (`eval_lab` for encoders trained on Lab channels). They go through in
    batches of `config.eval.batch_size`, shared by the devices; the last is padded, so one program serves them all.

    Args:
      config: a validated configuration.
      devices: devices of this process; None for all of them.

    Returns:
      A function of a `TrainState`'s `params` and `batch_stats`, of which it uses what is under "encoder", and of images
      uint8 [size, height, width, 3], which may be memory-mapped: only a batch is read at a time. It returns features
      float32 [size, dim], not multiplied by the mask.
    """
    devices = jax.local_devices() if devices is None else list(devices)
    blocks = max(2, -(-config.eval.batch_size // (BLOCK * len(devices))))  # a loop of one would be compiled differently
    batch_size = BLOCK * blocks * len(devices)
    encoder = build_encoder(config, axis_name=None)
    preset = "eval_lab" if config.data.augmentation == "cmc" else "eval"
    augment = make_augmentation(preset, image_size=config.data.image_size, views=1)

    def apply(params: PyTree, batch_stats: PyTree, images: jax.Array) -> jax.Array:
        keys = example_keys(0, 0, jnp.arange(BLOCK))  # every augmentation takes them; this one draws nothing

        def block(images: jax.Array) -> jax.Array:
            variables = {"params": params, "batch_stats": batch_stats}
            return jnp.asarray(encoder.apply(variables, augment(images, keys)[0], train=False))

        return lax.map(block, images)

    mapped = jax.pmap(apply, in_axes=(None, None, 0), devices=devices)

    def extract(params: PyTree, batch_stats: PyTree, images: np.ndarray) -> np.ndarray:
        if images.ndim != 4 or images.shape[3] != 3 or images.dtype != np.uint8:
            raise ValueError(f"images {images.dtype} {images.shape}; expected uint8 (size, height, width, 3)")
        h = np.empty((len(images), encoder.features), np.float32)
        batch = np.zeros((batch_size, *images.shape[1:]), np.uint8)
        for start in range(0, len(images), batch_size):
            part = images[start : start + batch_size]
            batch[: len(part)] = part
            features = mapped(
                params["encoder"], batch_stats["encoder"], batch.reshape(len(devices), blocks, BLOCK, *images.shape[1:])
            )
            h[start : start + len(part)] = np.asarray(features).reshape(batch_size, -1)[: len(part)]
        return h

    return extract
