"""Writing an encoder to a file, and the proof that the file gives the same features."""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from metamask_jax.core.array_files import WRITERS, Export, read_export
from metamask_jax.core.places import to_place
from metamask_jax.core.storage import replacing
from metamask_jax.errors import ExportError
from metamask_jax.evaluate.workdir import Run
from metamask_jax.export.encoder import LoadedEncoder, encoder_of
from metamask_jax.export.torchvision import BATCH_NORM_EPSILON, torchvision_features
from metamask_jax.models.torchvision import to_torchvision
from metamask_jax.version import __version__

FORMATS = tuple(WRITERS)
MASKS = ("apart", "folded", "none")
TOLERANCE = 1e-5
_PICTURES = 16  # shown to both sides of the proof


class Difference(NamedTuple):
    """How features from a file differ from the checkpoint's.

    Attributes:
      largest: absolute difference, infinite if they are not of the same shape.
      scale: largest absolute feature of the checkpoint.
    """

    largest: float
    scale: float

    @property
    def equal(self) -> bool:
        """Whether the difference is rounding."""
        return self.largest <= TOLERANCE * self.scale


def export_encoder(run: Run, path: str | os.PathLike[str], *, format: str, mask: str) -> Difference:
    """Writes a run's encoder, reads it back, and lets the file appear only if it gives the checkpoint's features.

    Args:
      run: the pretrained run.
      path: the file to write.
      format: `safetensors`, in the layout of torchvision's ResNets; or `npz` or `msgpack`, in that of our own modules.
      mask: `apart`, as an array `mask` [dim] beside the encoder; `folded`, as a last linear layer `fc` whose matrix is
        diagonal, so that features come out masked; or `none`. (No other layer can take the mask: the features are a
        sum of two branches, of which one may be the block's input itself.)

    Returns:
      The difference that was found, mere rounding.
    """
    for name, value, allowed in (("format", format, FORMATS), ("mask", mask, MASKS)):
        if value not in allowed:
            raise ValueError(f"{name}={value!r}; expected one of {', '.join(map(repr, allowed))}")
    place = to_place(path)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with replacing(place) as temporary:
            WRITERS[format](temporary, collect(run, torchvision=format == "safetensors", mask=mask))
            difference = verify_export(temporary, run)
            if not difference.equal:
                raise ExportError(
                    f"{path} would give other features than the checkpoint, by {difference.largest:.1e}; "
                    f"expected at most {TOLERANCE:g} of the largest feature, {difference.scale:.3g}"
                )
    except OSError as error:
        raise ExportError(f"{path} cannot be written, {error}; expected a place for a new file") from error
    return difference


def verify_export(path: str | os.PathLike[str], run: Run) -> Difference:
    """Compares features from a file with those of a checkpoint, in float32, on pictures of noise.

    A file in torchvision's layout is read as torchvision would, by names and axes alone.
    """
    export = read_export(path)
    encoder = in_float32(run)
    random = np.random.default_rng(0)
    pictures = random.integers(0, 256, (_PICTURES, *(encoder.preprocessing.image_size,) * 2, 3), np.uint8)
    x = encoder.preprocessing(pictures)
    expected = np.asarray(encoder.apply(encoder.params, x))
    pairs = [(_features(export, encoder, x), expected)]
    if export.metadata["mask"] == "folded":
        pairs = [(pairs[0][0], expected * encoder.params["mask"])]
    elif export.metadata["mask"] == "apart":
        pairs.append((export.arrays["mask"], encoder.params["mask"]))
    largest = max(np.abs(a - b).max() if a.shape == b.shape else np.inf for a, b in pairs)
    return Difference(float(largest), float(np.abs(pairs[0][1]).max()))


def collect(run: Run, *, torchvision: bool, mask: str) -> Export:
    """What goes into a file, in torchvision's layout or in our own; `mask` as for `export_encoder`."""
    encoder = encoder_of(run)
    params, stats, weights = (encoder.params[key] for key in ("params", "batch_stats", "mask"))
    diagonal, zeros = np.diag(weights), np.zeros_like(weights)
    if torchvision:
        if not is_resnet(params):
            raise ExportError(
                f"config.encoder.name={run.config.encoder.name!r} with --format safetensors, torchvision's layout of a "
                "ResNet; expected a ResNet, or --format npz or msgpack"
            )
        arrays = to_torchvision(params, stats, batches=run.step * run.config.data.views)
        last = {"fc.weight": diagonal, "fc.bias": zeros}
    else:
        arrays = flatten_dict({"params": params, "batch_stats": stats}, sep="/")
        arrays = {name: np.asarray(value) for name, value in arrays.items()}
        last = {"fc/kernel": diagonal, "fc/bias": zeros}
    arrays |= {"apart": {"mask": weights}, "folded": last, "none": {}}[mask]
    settings = {key: value for key, value in run.config.encoder.to_dict().items() if value is not None}
    metadata: dict[str, Any] = {
        "layout": "torchvision" if torchvision else "flax",
        "encoder": settings | {"dim": len(weights), "trained_in": run.config.train.dtype},
        "batch_norm_epsilon": BATCH_NORM_EPSILON,
        "preprocessing": dataclasses.asdict(encoder.preprocessing),
        "mask": mask,
        "step": run.step,
        "version": __version__,
    }
    return Export(arrays, metadata)


def is_resnet(params: Mapping[str, Any]) -> bool:
    """Whether an encoder's parameters are those of a ResNet, which torchvision's layout has names for."""
    return "conv1" in params and "layer1_0" in params


def in_float32(run: Run) -> LoadedEncoder:
    """The run's encoder computing in float32, whatever it was trained in: a file has no say in that."""
    config = run.config.copy_and_resolve_references()
    config.train.dtype = "float32"
    return encoder_of(run._replace(config=config))


def _features(export: Export, encoder: LoadedEncoder, x: jax.Array) -> np.ndarray:
    """Features [batch, dim] that a file gives for input [batch, height, width, channels]."""
    arrays = {name: array for name, array in export.arrays.items() if name != "mask"}
    if export.metadata["layout"] == "torchvision":
        floats = {name: array for name, array in arrays.items() if array.dtype == np.float32}
        return np.asarray(torchvision_features(floats, x.transpose(0, 3, 1, 2)))
    params = unflatten_dict(arrays, sep="/")
    h = np.asarray(encoder.apply(params, x))
    return h @ params["fc"]["kernel"] + params["fc"]["bias"] if "fc" in params else h
