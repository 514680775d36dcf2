"""A forward pass of torchvision's ResNets that uses their names and axes and none of our own modules."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jax import lax

BATCH_NORM_EPSILON = 1e-5


@jax.jit
def torchvision_features(tensors: Mapping[str, jax.Array], x: jax.Array) -> jax.Array:
    """What torchvision's ResNet with these tensors gives in inference mode, [batch, dim].

    Depth, kind of block, width and stem follow from the tensors. It ends in the pool, or in `fc` if there is one.

    Args:
      tensors: by torchvision's names.
      x: input [batch, channels, height, width].
    """

    def conv(x: jax.Array, name: str, stride: int) -> jax.Array:
        weight = tensors[f"{name}.weight"]
        pad = (weight.shape[-1] // 2,) * 2
        return lax.conv_general_dilated(
            x,
            weight,
            (stride, stride),
            (pad, pad),
            dimension_numbers=("NCHW", "OIHW", "NCHW"),
            precision=lax.Precision.HIGHEST,
        )

    def norm(x: jax.Array, name: str) -> jax.Array:
        weight, bias, mean, var = (
            tensors[f"{name}.{part}"][:, None, None] for part in ("weight", "bias", "running_mean", "running_var")
        )
        return (x - mean) * lax.rsqrt(var + BATCH_NORM_EPSILON) * weight + bias

    def block(x: jax.Array, name: str, stride: int) -> jax.Array:
        bottleneck = f"{name}.conv3.weight" in tensors
        strides = (1, stride, 1) if bottleneck else (stride, 1)
        y = x
        for i, step in enumerate(strides, start=1):
            y = norm(conv(y, f"{name}.conv{i}", step), f"{name}.bn{i}")
            y = jax.nn.relu(y) if i < len(strides) else y
        if f"{name}.downsample.0.weight" in tensors:
            x = norm(conv(x, f"{name}.downsample.0", stride), f"{name}.downsample.1")
        return jax.nn.relu(x + y)

    imagenet_stem = tensors["conv1.weight"].shape[-1] == 7
    x = jax.nn.relu(norm(conv(x, "conv1", 2 if imagenet_stem else 1), "bn1"))
    if imagenet_stem:
        pads = ((0, 0), (0, 0), (1, 1), (1, 1))
        x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 3, 3), (1, 1, 2, 2), pads)
    places = {tuple(map(int, name[5:].split(".")[:2])) for name in tensors if name.startswith("layer")}
    for stage, i in sorted(places):
        x = block(x, f"layer{stage}.{i}", 2 if stage > 1 and i == 0 else 1)
    x = x.mean((2, 3))
    if "fc.weight" in tensors:
        x = jnp.matmul(x, tensors["fc.weight"].T, precision=lax.Precision.HIGHEST) + tensors["fc.bias"]
    return x
