"""Encoders and heads, as Flax Linen modules.

All are called as `module.apply(variables, x, train=...)`, with `mutable=["batch_stats"]` when training, and give
float32 features `[batch, module.features]`. BatchNorm statistics are those of one call, so whoever has several views
maps an encoder over them (`methods.base.apply_views`).
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from flax import linen as nn
from jax.typing import DTypeLike

from metamask_jax.core.arrays import require_number, require_whole
from metamask_jax.models.alexnet import AlexNet
from metamask_jax.models.heads import ProjectionHead, predictor
from metamask_jax.models.layers import INITIALIZERS, count_parameters
from metamask_jax.models.resnet import ResNet
from metamask_jax.models.split import SplitEncoder
from metamask_jax.models.widened import WidenedEncoder

__all__ = [
    "ENCODERS",
    "INITIALIZERS",
    "STEMS",
    "AlexNet",
    "Encoder",
    "ProjectionHead",
    "ResNet",
    "SplitEncoder",
    "WidenedEncoder",
    "count_parameters",
    "make_encoder",
    "make_split_encoder",
    "predictor",
    "smallest_image",
]

Encoder = AlexNet | ResNet | SplitEncoder | WidenedEncoder


def _resnet(*, image_size: int, **settings: Any) -> ResNet:
    del image_size  # it pads everywhere and ends in a global pool: any size will do
    return ResNet(**settings)


ENCODERS: dict[str, Callable[..., AlexNet | ResNet]] = {
    "conv": partial(AlexNet, with_dense=False),
    "fc": partial(AlexNet, with_dense=True),
    "resnet18": partial(_resnet, blocks=(2, 2, 2, 2), bottleneck=False),
    "resnet34": partial(_resnet, blocks=(3, 4, 6, 3), bottleneck=False),
    "resnet50": partial(_resnet, blocks=(3, 4, 6, 3), bottleneck=True),
}
STEMS = ("cifar", "imagenet")


def make_encoder(
    name: str,
    *,
    width: float,
    stem: str,
    image_size: int,
    dtype: DTypeLike,
    axis_name: str | None,
    remat: bool = False,
    init: str | None = None,
    encoders: Mapping[str, Callable[..., Encoder]] = ENCODERS,
) -> Encoder:
    """Builds an encoder by name.

    Args:
      name: a key of `encoders`.
      width: multiplier of all channel counts.
      stem: `"cifar"` for the first layer made for small images, `"imagenet"` for the original one.
      image_size: height and width of the images.
      dtype: what to compute in (`"float32"`, `"bfloat16"`); parameters and BatchNorm statistics are float32.
      axis_name: mapped axis over which BatchNorm statistics are synchronised, or None for one device.
      remat: whether the backward pass computes the activations inside each block again instead of keeping them.
      init: how convolutions are initialised: `"he"` (He's normal distribution, fan-out) or `"torch"` (PyTorch's
        default, uniform in +-1/sqrt(fan_in)); None for the encoder's own, "he" for ResNets and "torch" for AlexNets.
      encoders: constructors by name.

    Returns:
      A Linen module.

    Raises:
      ValueError: if a value is not one of those allowed.

    Example:
      >>> make_encoder("resnet18", width=1, stem="cifar", image_size=32, dtype="float32", axis_name=None).features
      512
    """
    if name not in encoders:
        raise ValueError(f"name={name!r}; expected one of {', '.join(map(repr, encoders))}")
    if stem not in STEMS:
        raise ValueError(f"stem={stem!r}; expected one of {', '.join(map(repr, STEMS))}")
    require_number("width", width, lambda width: width > 0, "a positive number")
    require_whole("image_size", image_size)
    module = encoders[name](
        width=width, stem=stem, image_size=image_size, dtype=dtype, axis_name=axis_name, remat=remat
    )
    if init is not None:
        module = _initialized(module, name, init)
    if image_size < smallest_image(module):
        expected = f"at least {smallest_image(module)} for {name!r} with stem={stem!r}"
        raise ValueError(f"image_size={image_size}; expected {expected}")
    return module


def _initialized(module: Encoder, name: str, init: str) -> Encoder:
    """The encoder with its convolutions initialised otherwise."""
    if init not in INITIALIZERS:
        raise ValueError(f"init={init!r}; expected one of {', '.join(map(repr, INITIALIZERS))}, or None")
    if not hasattr(module, "initializer"):
        raise ValueError(f"init={init!r}; expected None for {name!r}, which has only its own initialisation")
    return module.clone(initializer=init)


def smallest_image(encoder: nn.Module) -> int:
    """Side in pixels of the smallest images that an encoder takes; one that does not say so takes any.

    Example:
      >>> settings = {"width": 1, "stem": "cifar", "image_size": 64, "dtype": "float32", "axis_name": None}
      >>> [smallest_image(make_encoder(name, **settings)) for name in ("conv", "resnet18")]
      [29, 1]
    """
    return getattr(encoder, "smallest", 1)


def make_split_encoder(name: str, *, width: float, **settings: Any) -> SplitEncoder:
    """Builds the encoder of Lab images: two of half the width, with as many features together as one.

    Args:
      name: as for `make_encoder`, like all that follow.
      width: of both together.
      **settings: everything else.

    Returns:
      A Linen module.

    Example:
      >>> settings = {"stem": "cifar", "image_size": 32, "dtype": "float32", "axis_name": None}
      >>> make_split_encoder("conv", width=1, **settings).features
      256
    """
    return SplitEncoder(*(make_encoder(name, width=width / 2, **settings) for _ in range(2)))
