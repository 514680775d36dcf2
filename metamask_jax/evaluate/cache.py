"""Features on disk: written once, whole or not at all, and never taken for those of anything else."""

import hashlib
import json
import logging
import pathlib
import struct
import tempfile
import zipfile
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from metamask_jax.core.places import Place
from metamask_jax.core.storage import local_copy, replacing
from metamask_jax.core.types import PyTree
from metamask_jax.data.in_memory import ArraySource
from metamask_jax.data.sources import Source
from metamask_jax.evaluate.features import Allocate
from metamask_jax.version import __version__

_log = logging.getLogger(__name__)
_CHUNK = 4096  # pictures hashed at a time
_IN_MEMORY = 2**30  # bytes of features up to which they are held in memory; more stay on disk
Features = tuple[np.ndarray, np.ndarray]


def cached_features(
    folder: Place,
    extract: Callable[[Allocate], Features],
    *,
    config: ConfigDict,
    encoder: PyTree,
    step: int,
    source: Source,
) -> Features:
    """Features [size, dim] and labels [size] of a source: from the folder if they are there, else extracted and kept.

    Those of a large set stay on disk, memory-mapped. The file's name has the dataset, its size, the step, and a digest
    of everything the features depend on: the encoder's arrays, how it is built and fed, and the pictures. A file that
    cannot be read whole counts as missing. Each of several processes keeps its own rows in a file of its own.

    Args:
      folder: where the files are.
      extract: computes features and labels; gets a function that makes the array for the features.
      config: of the run.
      encoder: pytree of the encoder's parameters and BatchNorm statistics.
      step: at which they were saved.
      source: the pictures.
    """
    digest = hashlib.blake2b(digest_size=8)
    dtype = config.eval.dtype or config.train.dtype
    settings = (config.encoder.to_dict(), config.data.image_size, config.data.augmentation, dtype)
    digest.update(json.dumps([__version__, jax.__version__, *settings]).encode())
    for leaf in jax.tree.leaves(encoder):
        digest.update(np.ascontiguousarray(leaf).tobytes())
    _add_source(digest, source)
    of_all = "" if jax.process_count() == 1 else f"-{jax.process_index()}of{jax.process_count()}"
    path = folder / f"{source.name}-{len(source)}-step{step}-{digest.hexdigest()}{of_all}.npz"
    found = _read(path)
    if found is None:
        found = extract(partial(_allocate, folder))
        _write(path, *found)
    return found


def _add_source(digest: Any, source: Source) -> None:
    """Adds what tells one source from another: its pictures, or the names of their records if these stay on disk."""
    if isinstance(source, ArraySource):
        digest.update(source.labels.tobytes())
        for start in range(0, len(source), _CHUNK):
            digest.update(np.ascontiguousarray(source.images[start : start + _CHUNK]).data)
    else:
        records = source.records
        digest.update(repr((records.prepared.fingerprint, records.split, "eval_view")).encode())
        digest.update(b"" if source.rows is None else source.rows.tobytes())


def _allocate(folder: Place, shape: tuple[int, int], dtype: type) -> np.ndarray:
    """An array for features: in memory, or if it is large in a file that ends with the array."""
    if np.dtype(dtype).itemsize * shape[0] * shape[1] > _IN_MEMORY:
        try:
            folder.mkdir(exist_ok=True)
            with tempfile.TemporaryFile(dir=folder if isinstance(folder, pathlib.Path) else None) as file:
                return np.memmap(file, dtype, "w+", shape=shape)
        except OSError as error:
            _log.warning("features are held in memory: %s", error)
    return np.empty(shape, dtype)


def _read(path: Place) -> Features | None:
    try:
        with local_copy(path) as copy, zipfile.ZipFile(copy) as file:
            if (damaged := file.testzip()) is not None:  # compares a checksum of every array
                raise zipfile.BadZipFile(f"{damaged} is damaged")
            return _array(copy, file, "features"), _array(copy, file, "labels")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        _log.warning("%s cannot be read (%s); the features are extracted again", path, error)
        return None


def _array(path: pathlib.Path, file: zipfile.ZipFile, name: str) -> np.ndarray:
    """An array of an .npz file, memory-mapped if it is large: NumPy stores its arrays as they are."""
    member = file.getinfo(f"{name}.npy")
    with path.open("rb") as raw:
        raw.seek(member.header_offset + 26)
        name_and_extra = struct.unpack("<HH", raw.read(4))
        raw.seek(sum(name_and_extra), 1)
        if member.file_size <= _IN_MEMORY or member.compress_type != zipfile.ZIP_STORED:
            with file.open(member) as whole:
                return np.asarray(np.lib.format.read_array(whole, allow_pickle=False))
        version = np.lib.format.read_magic(raw)
        reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = reader(raw)
        return np.memmap(path, dtype, "r", offset=raw.tell(), shape=shape)


def _write(path: Place, features: np.ndarray, labels: np.ndarray) -> None:
    try:
        path.parent.mkdir(exist_ok=True)
        with replacing(path) as temporary, temporary.open("wb") as file:  # a bare path would get another suffix
            np.savez(file, features=features, labels=labels)
    except OSError as error:  # a workdir that may only be read, or a full disk
        _log.warning("features are not kept: %s", error)
