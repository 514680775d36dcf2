"""Sets of pictures of one size: decoded once, kept on disk, memory-mapped ever after."""

import dataclasses
import json
import os
import pathlib
import re
import secrets
import shutil
from typing import Any

import numpy as np

from metamask_jax.core.storage import make_temporary_folder
from metamask_jax.data import checksums, pictures
from metamask_jax.data.prepared import Prepared, Records, remove_stale
from metamask_jax.errors import DataError, one_line

_CHUNK = 1000  # records decoded at a time


class DamagedError(DataError):
    """Decoded arrays that are not those that were written; they can be decoded again."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ArraySource:
    """A set of pictures of one size.

    Attributes:
      name: the dataset's name.
      images: uint8 [size, height, width, 3], usually memory-mapped.
      labels: int32 [size], -1 where there is none.
      num_classes: number of classes, 0 without labels.
      class_names: their names.
      factors: what else is stored of each picture, by name, each [size].
    """

    name: str
    images: np.ndarray
    labels: np.ndarray
    num_classes: int
    class_names: tuple[str, ...]
    factors: dict[str, np.ndarray]

    def __len__(self) -> int:
        return len(self.images)

    def gather(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns images uint8 [batch, height, width, 3] and labels int32 [batch]."""
        return self.images[indices], self.labels[indices]

    def first(self, size: int) -> "ArraySource":
        """Returns the source of the first `size` pictures."""
        factors = {name: values[:size] for name, values in self.factors.items()}
        return dataclasses.replace(self, images=self.images[:size], labels=self.labels[:size], factors=factors)

    def take(self, rows: np.ndarray) -> "ArraySource":
        """Returns the source of some of the pictures, in memory, by their indices int [rows]."""
        factors = {name: values[rows] for name, values in self.factors.items()}
        return dataclasses.replace(self, images=self.images[rows], labels=self.labels[rows], factors=factors)


def cache_folder(found: Prepared, split: str, data_dir: str) -> pathlib.Path:
    """Returns where a split's arrays are kept; data or a split that differ have another folder."""
    relative = found.folder.relative_to(data_dir)
    split = re.sub(r"[^\w%+-]", "_", split)
    return pathlib.Path(data_dir, "decoded", *relative.parts[:-1], f"{relative.name}-{found.fingerprint}", split)


def load(folder: pathlib.Path, name: str) -> ArraySource:
    """Loads the arrays that `decode` left in a folder.

    Raises:
      DamagedError: they are not those that were written.
    """
    if problem := checksums.find_damage(folder):
        raise DamagedError(problem)
    try:
        description = json.loads((folder / "description.json").read_text())
        values = dict(np.load(folder / "values.npz"))
        return ArraySource(
            name=name,
            images=np.load(folder / "images.npy", mmap_mode="r"),
            labels=values["labels"],
            num_classes=description["num_classes"],
            class_names=tuple(description["class_names"]),
            factors={key.removeprefix("factor/"): values[key] for key in values if key != "labels"},
        )
    except (OSError, ValueError, KeyError) as error:  # a folder that was changed and sealed by another program
        raise DamagedError(one_line(error)) from error


def decode(records: Records, image_size: tuple[int, int], folder: pathlib.Path) -> ArraySource:
    """Decodes a split and keeps the arrays in a folder, unless that cannot be written.

    Args:
      records: the encoded pictures.
      image_size: their height and width.
      folder: the folder to make, in the place of a damaged one; it appears whole or not at all, so that a second
        process may do the same.
    """
    shape = (len(records), *image_size, 3)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        remove_stale(folder.parent, ".incomplete-*")  # those of other machines
        scratch = make_temporary_folder(folder.parent, prefix=".incomplete-")
    except OSError:  # a data_dir that may only be read: the arrays live in memory, and are decoded again next time
        return _decode(records, np.empty(shape, np.uint8))
    try:
        images = np.lib.format.open_memmap(scratch / "images.npy", "w+", np.uint8, shape)
        source = _decode(records, images)
        images.flush()
        values: dict[str, Any] = {f"factor/{name}": values for name, values in source.factors.items()}
        np.savez(scratch / "values.npz", labels=source.labels, **values)
        description = {"num_classes": source.num_classes, "class_names": source.class_names}
        (scratch / "description.json").write_text(json.dumps(description))
        checksums.seal(scratch)
        try:
            os.rename(scratch, folder)
        except OSError:
            if not folder.exists():  # else another process has just finished the same
                raise
        try:
            return load(folder, source.name)
        except DamagedError:  # one that cannot be removed: what was just decoded stays mapped until the end
            return source
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def discard(folder: pathlib.Path) -> None:
    """Removes a damaged folder; what a running process has mapped of it stays with that process."""
    aside = folder.with_name(f".incomplete-{secrets.token_hex(4)}")
    try:
        os.rename(folder, aside)
    except FileNotFoundError:  # another process did so
        return
    shutil.rmtree(aside, ignore_errors=True)


def _decode(records: Records, images: np.ndarray) -> ArraySource:
    """Decodes all records, the pictures into `images` [size, height, width, 3]."""
    from tqdm import tqdm

    features = records.features
    labels = np.full(len(records), -1, np.int32)
    factors = {name: np.empty(len(records), dtype) for name, dtype in features.factors.items()}
    title = f"Decoding {records.prepared.name}"
    with tqdm(total=len(records), desc=title, unit=" images", leave=False, disable=None) as progress:  # in a terminal
        for start in range(0, len(records), _CHUNK):
            for i, record in enumerate(records.read(range(start, min(start + _CHUNK, len(records)))), start):
                what = f"picture {i} of {records.split!r} of {records.prepared.name!r}"
                images[i] = _fitting(pictures.decode(records.value(record, features.image_key), what), images, what)
                if features.label_key is not None:
                    labels[i] = records.label(record)
                for name, values in factors.items():
                    values[i] = records.value(record, name)
                progress.update()
    return ArraySource(
        name=records.prepared.name,
        images=images,
        labels=labels,
        num_classes=len(features.class_names),
        class_names=features.class_names,
        factors=factors,
    )


def _fitting(pixels: np.ndarray, images: np.ndarray, what: str) -> np.ndarray:
    """The pixels of a picture, refused if they are not as many as those of the others."""
    if pixels.shape != images.shape[1:]:
        size, expected = ("x".join(map(str, shape[:2])) for shape in (pixels.shape, images.shape[1:]))
        raise DataError(f"{what} has {size} pixels; expected {expected}")
    return pixels
