"""`image_folder`: a user's own pictures of any size, labelled by their folder or not at all.

path/cat/1.jpg  path/dog/2.png        the folder is the class
path/1.jpg      path/2.png            no labels
path/train/...  path/test/...         either, in two splits
"""

import io
import logging
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from PIL import Image, ImageOps

from metamask_jax.data.builders import base
from metamask_jax.errors import DataError

_SPLITS = ("train", "test")
_SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"})


class Builder(base.RecordBuilder, skip_registration=True):  # type: ignore[call-arg] # tfds has another of this name
    """Copies the files, or where Pillow's RGB conversion would not show what a viewer shows, PNGs of them."""

    name = "image_folder"
    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES = {"1.0.0": "First release."}  # noqa: RUF012 - tfds' own interface

    def _info(self) -> tfds.core.DatasetInfo:
        features = {"image": tfds.features.Image(encoding_format="png")}
        if classes := sorted({name for files in self._files().values() for _, name in files if name}):
            features["label"] = tfds.features.ClassLabel(names=classes)
        return tfds.core.DatasetInfo(
            builder=self,
            description=f"Pictures in {self.options.path}.",
            features=tfds.features.FeaturesDict(features),
            supervised_keys=("image", "label") if classes else None,
        )

    def _files(self) -> dict[str, list[tuple[pathlib.Path, str | None]]]:
        """Returns each split's files and their classes, None for a file that lies in no class's folder."""
        root = pathlib.Path(self.options.path)
        present = [name for name in _SPLITS if (root / name).is_dir()]
        roots = {name: root / name for name in present} if "train" in present else {"train": root}
        splits = {}
        for split, folder in roots.items():
            files = sorted(p for p in folder.rglob("*") if p.suffix.lower() in _SUFFIXES and p.is_file())
            if not files:
                raise DataError(f"{folder} holds no pictures; expected files such as .jpg or .png, in it or below it")
            classes = [p.relative_to(folder).parts[:-1] for p in files]
            splits[split] = [(p, parts[0] if parts else None) for p, parts in zip(files, classes, strict=True)]
        return splits

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict[str, Any]:
        del dl_manager
        return {split: self._generate_examples(files) for split, files in self._files().items()}

    def _generate_examples(self, files: list[tuple[pathlib.Path, str | None]]) -> Iterator[tuple[str, dict[str, Any]]]:
        unreadable: list[pathlib.Path] = []
        labelled = "label" in self.info.features
        for path, class_name in files:
            try:
                encoded = displayed(path.read_bytes())
            except Exception as e:  # Pillow raises OSError, SyntaxError, ValueError and more
                if self.options.on_error == "refuse":
                    raise DataError(
                        f"{path} is not a readable picture ({e}); on_error='skip' would leave it out"
                    ) from e
                unreadable.append(path)
                continue
            label = {"label": -1 if class_name is None else class_name} if labelled else {}
            yield str(path), {"image": io.BytesIO(encoded), **label}
        if len(unreadable) == len(files):
            raise DataError(f"none of the {len(files)} pictures in {self.options.path} is readable")
        if unreadable:
            names = ", ".join(map(str, unreadable[:5])) + (", ..." if len(unreadable) > 5 else "")
            logging.getLogger(__name__).warning(
                "skipped %d unreadable of %d files: %s", len(unreadable), len(files), names
            )


def displayed(encoded: bytes) -> bytes:
    """Returns a picture whose plain RGB conversion looks as a viewer shows it.

    That is the file itself, unless it is rotated by its EXIF tag, transparent (shown on white) or of more than 8 bits.

    Args:
      encoded: bytes of any picture that Pillow reads; it raises on others.
    """
    with Image.open(io.BytesIO(encoded)) as picture:
        picture.load()
        upright = ImageOps.exif_transpose(picture)
        if picture.mode.startswith(("I", "F")):
            upright = _eight_bits(upright)
        elif picture.mode in ("RGBA", "LA", "PA") or "transparency" in picture.info:
            cover = upright.convert("RGBA")
            upright = Image.alpha_composite(Image.new("RGBA", cover.size, "white"), cover).convert("RGB")
        elif picture.getexif().get(0x0112, 1) == 1:  # the orientation tag
            return encoded
        png = io.BytesIO()
        upright.convert("RGB").save(png, "png")
        return png.getvalue()


def _eight_bits(picture: Image.Image) -> Image.Image:
    """Scales a picture of deep greys by its own greatest value: there is no one convention for its white."""
    values = np.asarray(picture, np.float64)
    return Image.fromarray(np.clip(values * (255 / max(values.max(), 1e-12)), 0, 255).astype(np.uint8))
