"""`image_folder`: a user's own pictures of any size, labelled by their folder or not at all.

path/cat/1.jpg  path/dog/2.png                    the folder is the class
path/1.jpg      path/2.png                        no labels
path/train/...  path/val/...    path/test/...     either, in splits
"""

import functools
import io
import logging
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from PIL import Image, ImageOps

from metamask_jax.data.builders import base, folders
from metamask_jax.data.pictures import reason
from metamask_jax.errors import DataError

_log = logging.getLogger(__name__)
_FILTER = Image.Resampling.BICUBIC


class Builder(base.RecordBuilder, skip_registration=True):  # type: ignore[call-arg] # tfds has another of this name
    """Copies the files, or where Pillow's RGB conversion would not show what a viewer shows, PNGs of them."""

    name = "image_folder"
    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES = {"1.0.0": "First release."}  # noqa: RUF012 - tfds' own interface

    def _info(self) -> tfds.core.DatasetInfo:
        features = {"image": tfds.features.Image(encoding_format="png")}
        pictures = [picture for split in self._found.splits.values() for picture in split]
        if classes := sorted({picture.class_name for picture in pictures if picture.class_name}):
            features["label"] = tfds.features.ClassLabel(names=classes)
        return tfds.core.DatasetInfo(
            builder=self,
            description=f"Pictures in {folders.named(self.options.path)}.",
            features=tfds.features.FeaturesDict(features),
            supervised_keys=("image", "label") if classes else None,
        )

    @functools.cached_property
    def _found(self) -> folders.Found:
        return folders.scan(self.options.path)

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict[str, Any]:
        del dl_manager
        if problems := self._found.problems:
            if self.options.on_error == "refuse":
                raise DataError(f"{problems[0]}; on_error='skip' would leave that out")
            _log.warning("left out of %s: %s", folders.named(self.options.path), _listed(problems))
        return {split: self._generate_examples(pictures) for split, pictures in self._found.splits.items()}

    def _generate_examples(self, pictures: list[folders.Picture]) -> Iterator[tuple[str | bytes, dict[str, Any]]]:
        unreadable: list[str] = []
        labelled = "label" in self.info.features
        for path, class_name, _ in pictures:
            try:
                encoded = displayed(path.read_bytes(), self.options.shorter_side)
            except Exception as e:  # Pillow raises OSError, SyntaxError, ValueError and more
                if self.options.on_error == "refuse":
                    raise DataError(
                        f"{folders.named(path)} is not a readable picture ({reason(e)}); on_error='skip' would leave "
                        "it out"
                    ) from e
                unreadable.append(folders.named(path))
                continue
            label = {"label": -1 if class_name is None else class_name} if labelled else {}
            yield _key(str(path)), {"image": io.BytesIO(encoded), **label}
        if len(unreadable) == len(pictures):
            raise DataError(f"none of the {len(pictures)} pictures in {folders.named(self.options.path)} is readable")
        if unreadable:
            self.remarks.append(f"skipped {len(unreadable)} unreadable of {len(pictures)} files: {_listed(unreadable)}")


def _key(path: str) -> str | bytes:
    """What tfds orders the pictures by, which is text or, of a path that is no text, bytes."""
    return path if path.isprintable() else os.fsencode(path)


def _listed(items: list[str]) -> str:
    return ", ".join(items[:5]) + (f" and {len(items) - 5} more" if len(items) > 5 else "")


def displayed(encoded: bytes, shorter_side: int = 0) -> bytes:
    """Returns a picture whose plain RGB conversion looks as a viewer shows it.

    That is the file itself, unless it is rotated by its EXIF tag, transparent (shown on white), of more than 8 bits or
    too large.

    Args:
      encoded: bytes of any picture that Pillow reads; it raises on others.
      shorter_side: to which a larger picture is reduced; 0 for as it is.
    """
    with Image.open(io.BytesIO(encoded)) as picture:
        too_large = 0 < shorter_side < min(picture.size)
        if too_large:  # a JPEG can be decoded at a fraction of its size: twice what is wanted leaves room for a filter
            scale = 2 * shorter_side / min(picture.size)
            picture.draft(None, (round(scale * picture.width), round(scale * picture.height)))
        picture.load()
        upright = ImageOps.exif_transpose(picture)
        if picture.mode.startswith(("I", "F")):
            upright = _eight_bits(upright)
        elif picture.mode in ("RGBA", "LA", "PA") or "transparency" in picture.info:
            cover = upright.convert("RGBA")
            upright = Image.alpha_composite(Image.new("RGBA", cover.size, "white"), cover).convert("RGB")
        elif picture.getexif().get(0x0112, 1) == 1 and not too_large:  # the orientation tag
            return encoded
        upright = upright.convert("RGB")
        if too_large:
            scale = shorter_side / min(upright.size)
            upright = upright.resize((round(scale * upright.width), round(scale * upright.height)), _FILTER)
        png = io.BytesIO()
        upright.save(png, "png")
        return png.getvalue()


def _eight_bits(picture: Image.Image) -> Image.Image:
    """Scales a picture of deep greys by its own greatest value: there is no one convention for its white."""
    values = np.asarray(picture, np.float64)
    return Image.fromarray(np.clip(values * (255 / max(values.max(), 1e-12)), 0, 255).astype(np.uint8))
