"""A pretrained encoder as a function, for other people's code."""

import dataclasses
import os
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from metamask_jax.augment import PRESETS, CenterCrop, example_keys, make_augmentation
from metamask_jax.core.encoder_folders import encoder_folder
from metamask_jax.core.types import PyTree
from metamask_jax.errors import ConfigError
from metamask_jax.evaluate.views import eval_view
from metamask_jax.evaluate.workdir import Run, load_run
from metamask_jax.export.folders import exported_run
from metamask_jax.models import Encoder
from metamask_jax.training.registry import Registry
from metamask_jax.training.state import build_encoder


@dataclasses.dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """How pictures become an encoder's input; calling it does that.

    The shortest side is resized, the middle cropped; values are scaled to [0, 1] (or turned into Lab), the mean is
    subtracted and the result divided by the standard deviation.

    Attributes:
      image_size: height and width of the input.
      shortest: length of the shortest side before the middle is cropped.
      interpolation: of the resizing, antialiased.
      channels: what the channels are, in this order.
      mean: of each channel.
      std: of each channel.
    """

    image_size: int
    shortest: int
    interpolation: str
    channels: tuple[str, str, str]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    @classmethod
    def of(cls, config: ConfigDict, registry: Registry | None = None) -> "Preprocessing":
        """The preprocessing that evaluation uses under a configuration."""
        view = eval_view(config, registry)
        assert isinstance(view.crop, CenterCrop), "evaluation draws nothing at random"
        return cls(
            image_size=config.data.image_size,
            shortest=view.crop.shortest,
            interpolation=view.interpolation,
            channels=("L", "a", "b") if view.color_space == "lab" else ("R", "G", "B"),
            mean=view.mean,
            std=view.std,
        )

    @partial(jax.jit, static_argnums=0)
    def __call__(self, images: np.ndarray | jax.Array) -> jax.Array:
        """Input float32 [batch, image_size, image_size, 3] of RGB images uint8 [batch, height, width, 3]."""
        view = dataclasses.replace(
            PRESETS["eval"](self.image_size)[0],
            crop=CenterCrop(shortest=self.shortest),
            interpolation=self.interpolation,
            color_space="lab" if self.channels[0] == "L" else "rgb",
            mean=self.mean,
            std=self.std,
        )
        nothing_random = example_keys(0, 0, jnp.arange(len(images)))
        return make_augmentation((view,), image_size=self.image_size, views=1)(jnp.asarray(images), nothing_random)[0]


class LoadedEncoder(NamedTuple):
    """A pretrained encoder.

    Attributes:
      apply: `(params, x) -> h`, a pure and compiled function: input float32 [batch, image_size, image_size, 3] to
        features float32 [batch, dim], not multiplied by the mask. BatchNorm uses its running statistics.
      params: "params" and "batch_stats" of the encoder, and "mask", the mask's weights [dim].
      preprocessing: turns pictures into input.
    """

    apply: Callable[[PyTree, jax.Array], jax.Array]
    params: dict[str, PyTree]
    preprocessing: Preprocessing


def load_encoder(
    workdir: str | os.PathLike[str], *, step: int | str = "last", registry: Registry | None = None
) -> LoadedEncoder:
    """Loads the encoder of a pretrained run, of an exported folder, or one that comes with the package.

        apply, params, preprocessing = load_encoder("runs/cifar10")
        h = apply(params, preprocessing(images))  # [batch, dim]
        masked = h * params["mask"]

    Args:
      workdir: of the run; or a folder that `metamask-export --format hf` has written; or `zoo:NAME`, one of
        `zoo_names()`, which needs no network.
      step: a step that was saved, `last` for the newest, or `best` for the one with the highest online kNN accuracy;
        of an exported folder there is one only.
      registry: what the configuration's names stand for; None is ours and `config.plugins`.

    Returns:
      The encoder as a function, its parameters and the preparation of its input.

    Raises:
      ConfigError: there is no run, or no such step; the message names those that exist.
      CheckpointError: the checkpoint is damaged or another model's.
      ExportError: the exported folder is damaged.
    """
    exported = encoder_folder(workdir)
    if exported is not None:
        return encoder_of(exported_run(exported, registry))
    if os.path.isfile(workdir):
        raise ConfigError(
            f"workdir={os.fspath(workdir)!r} is a file; expected the folder of a pretrained run (for a file that "
            "metamask-export has written there is metamask_jax.export.read_export)"
        )
    return encoder_of(load_run(workdir, step=step, registry=registry))


def encoder_of(run: Run) -> LoadedEncoder:
    """The encoder of a run that is loaded already."""
    params = {
        "params": run.state.params["encoder"],
        "batch_stats": run.state.batch_stats["encoder"],
        "mask": run.mask_weights,
    }
    encoder = build_encoder(run.config, axis_name=None, registry=run.registry)
    return LoadedEncoder(partial(_apply, encoder), params, Preprocessing.of(run.config, run.registry))


@partial(jax.jit, static_argnums=0)
def _apply(encoder: Encoder, params: PyTree, x: jax.Array) -> jax.Array:
    variables = {"params": params["params"], "batch_stats": params["batch_stats"]}
    return jnp.asarray(encoder.apply(variables, x, train=False))
