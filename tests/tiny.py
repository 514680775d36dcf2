"""A run small enough to compile in seconds: a one-layer encoder with BatchNorm and a configuration to go with it."""

from collections.abc import Callable, Mapping
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from ml_collections import ConfigDict

from metamask_jax.augment import CustomViews
from metamask_jax.config import apply_overrides, default_config
from metamask_jax.data.loader import Batch
from metamask_jax.models.layers import BatchNorm, as_output, dense
from metamask_jax.training.distributed import AXIS
from metamask_jax.training.registry import REGISTRY, Registry, validate
from metamask_jax.training.state import TrainState, init_state
from metamask_jax.training.step import Step, make_train_step

T = TypeVar("T")
LENGTH = {"steps_per_epoch": 4, "total_steps": 12}


class TinyEncoder(nn.Module):
    dtype: str
    axis_name: str | None
    remat: bool
    features: int = 12
    smallest: int = 8  # pixels: the pool's window
    activation: Callable[[jax.Array], jax.Array] = nn.relu

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        def layer(module: nn.Module, x: jax.Array) -> jax.Array:
            del module
            x = dense(self.features, dtype=self.dtype, name="fc")(x)
            return self.activation(BatchNorm(train=train, dtype=self.dtype, axis_name=self.axis_name, name="bn")(x))

        x = nn.avg_pool(x, (8, 8), (8, 8)).reshape(len(x), -1)
        return as_output((nn.remat(layer) if self.remat else layer)(self, x))


def _tiny(*, width, stem, image_size, **settings):
    return TinyEncoder(**settings)


def _smooth(*, width, stem, image_size, **settings):
    return TinyEncoder(activation=nn.softplus, **settings)


def plain_views(images, keys):
    """Two views without random pixels: float32 images differ in the last digit between two compiled programs."""
    x = images.astype(jnp.float64) / 255
    return jnp.stack([x, 1.2 * jnp.roll(x, 5, axis=2) ** 2])


def register(registry: Registry) -> Registry:
    """Makes this module a plugin."""
    return registry.extended(
        encoders={"tiny": _tiny, "smooth": _smooth},
        augmentations={"plain": lambda image_size: CustomViews(plain_views)},
    )


def with_views(full, small=None) -> Registry:
    """A registry in which the augmentation "plain" is the given function."""
    return register(REGISTRY).extended(augmentations={"plain": lambda image_size: CustomViews(full, small)})


def tiny_config(overrides: Mapping[str, str] | None = None, registry: Registry | None = None) -> ConfigDict:
    config = default_config()
    config.plugins = ("tests.tiny",)
    config.train.update(batch_size=16, steps=12)
    config.encoder.name = "tiny"
    config.method.update(temperature=0.2, head=(8, 6))
    config.loss.drr_head = (10,)
    config.optimizer.update(learning_rate=0.05)
    config.mask.update(learning_rate=1.0)
    return validate(apply_overrides(config, overrides or {}), registry)


def tiny_images(count: int = 16, size: int = 32) -> np.ndarray:
    """Smooth random pictures, so that crops of one resemble each other more than crops of two."""
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, size=(count, 4, 4, 3))
    return coarse.repeat(size // 4, axis=1).repeat(size // 4, axis=2).astype(np.uint8)


def tiny_batch(count: int = 16) -> Batch:
    """A whole global batch of them, with labels."""
    places = np.arange(count, dtype=np.int32)
    return Batch(images=tiny_images(count), labels=places % 3, positions=places, indices=places + 5)


def doubled(tree: T) -> T:
    """A pytree with its floating-point leaves in float64: agreement can then be told from rounding."""
    return jax.tree.map(
        lambda leaf: leaf.astype(jnp.float64) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf, tree
    )


def doubled_start(config: ConfigDict, registry: Registry | None = None) -> tuple[ConfigDict, TrainState]:
    """The float64 twin of a configuration, and its initial state."""
    state = doubled(init_state(config, registry=registry))
    config = config.copy_and_resolve_references()
    config.train.dtype = "float64"
    return config, state


def step_on(devices: int, config: ConfigDict, registry: Registry | None = None) -> Step:
    """The step on a whole batch, compiled for one device or with the batch split over several."""
    if devices == 1:
        return jax.jit(make_train_step(config, **LENGTH, registry=registry))
    step = jax.pmap(
        make_train_step(config, **LENGTH, axis_name=AXIS, registry=registry),
        axis_name=AXIS,
        in_axes=(None, 0),
        out_axes=None,
        devices=jax.devices()[:devices],
    )

    def on_shares(state, batch):
        shares = jax.tree.map(lambda leaf: leaf.reshape(devices, -1, *leaf.shape[1:]), batch)
        # From the host: a state left on one device and one left on all of them would be a program each.
        return step(jax.device_get(state), shares)

    return on_shares
