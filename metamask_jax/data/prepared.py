"""Datasets that tfds has prepared in a folder: finding, preparing and reading them.

What is prepared is found by the files alone, without importing tfds, which takes a second; reading imports tfds but
never TensorFlow; preparing a public set, which needs TensorFlow, happens in a process of its own.
"""

import contextlib
import dataclasses
import functools
import hashlib
import importlib.util
import io
import json
import logging
import pathlib
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from metamask_jax.core.quiet import without_warnings
from metamask_jax.data import builders, checksums
from metamask_jax.errors import DataError, one_line

_log = logging.getLogger("metamask_jax.data")
_NAME = re.compile(r"(?P<base>\w+)(/(?P<config>[\w.+-]+))?(:(?P<version>\d+\.\d+\.\d+))?")
_VERSION = re.compile(r"\d+\.\d+\.\d+")
_STALE = 3600  # seconds
_OPENING = threading.Lock()  # tfds imports its parts on first use, and threads that do so at once block one another


@dataclasses.dataclass(frozen=True)
class Prepared:
    """One prepared dataset.

    Attributes:
      folder: the folder that holds `dataset_info.json` and the record files.
      name: the dataset's name, without config and version.
      splits: number of examples of each split.
      fingerprint: digest of the dataset's description; another one means other data.
    """

    folder: pathlib.Path
    name: str
    splits: dict[str, int]
    fingerprint: str


def find(name: str, data_dir: str) -> Prepared | None:
    """Returns the newest prepared version of a dataset, or None where there is none.

    Args:
      name: `name`, `name/config`, and either with `:version`, as tfds spells it.
      data_dir: where prepared datasets live.
    """
    match = _parse(name)
    root = pathlib.Path(data_dir) / match["base"]
    config = match["config"] or _default_config(root)
    root = root / config if config else root
    versions = [p for p in root.glob("*.*.*") if _VERSION.fullmatch(p.name) and (p / "dataset_info.json").exists()]
    if match["version"]:
        versions = [p for p in versions if p.name == match["version"]]
    if not versions:
        return None
    folder = max(versions, key=lambda p: tuple(map(int, p.name.split("."))))
    return _describe(folder, match, data_dir)


def _parse(name: str) -> re.Match[str]:
    if match := _NAME.fullmatch(name):
        return match
    raise DataError(f"{name=}; expected a tfds name such as 'cifar10', 'imagenette/160px-v2' or 'cifar10:3.0.2'")


def _default_config(root: pathlib.Path) -> str | None:
    """Returns the config which tfds noted as the default when it prepared the first."""
    path = root / ".config" / "metadata.json"
    if not path.exists():
        return None
    try:
        return str(json.loads(path.read_bytes())["default_config_name"])
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise DataError(
            f"{path} is damaged ({one_line(e)}); expected the set with its config, such as name/config"
        ) from e


def _describe(folder: pathlib.Path, match: re.Match[str], data_dir: str) -> Prepared:
    if checksums.is_sealed(folder) and (problem := checksums.find_damage(folder)):
        raise _damaged(folder, problem)
    try:
        text = (folder / "dataset_info.json").read_bytes()
        info = json.loads(text)
        splits = {s["name"]: sum(map(int, s.get("shardLengths", ()))) for s in info["splits"]}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
        raise _damaged(folder, f"dataset_info.json: {one_line(e)}") from e
    if info.get("fileFormat") != "array_record":
        raise DataError(
            f"{folder} holds {info.get('fileFormat', 'tfrecord')!r} files; expected 'array_record', which can be read "
            f"at random: move the folder away and run `{command(match[0], data_dir)}`"
        )
    return Prepared(folder, match["base"], splits, hashlib.sha256(text).hexdigest()[:8])


def _damaged(folder: pathlib.Path, reason: str) -> DataError:
    return DataError(f"{folder} is damaged ({reason}); delete that folder to have the set prepared again")


def command(name: str, data_dir: str) -> str:
    """Returns the command that prepares a public dataset."""
    return f"python -m metamask_jax.cli.prepare {name} --data_dir={data_dir}"


def prepare_own(name: str, options: builders.Options, data_dir: str) -> None:
    """Prepares one of our own datasets, with tfds' progress bars in a terminal but without its messages."""
    here = pathlib.Path.cwd()
    shown = pathlib.Path(data_dir)
    _log.info("preparing %s in %s", name, shown.relative_to(here) if shown.is_relative_to(here) else shown)
    try:
        with contextlib.redirect_stdout(io.StringIO()), without_warnings(), _progress_bars(sys.stderr.isatty()):
            builder = builders.make_builder(name, options, data_dir)
            target = pathlib.Path(builder.data_dir)
            builder.download_and_prepare()
        for remark in builder.remarks:
            _log.warning(remark)
        if target.is_dir():
            checksums.seal(target, size_only=".array_record")
    except DataError:
        raise
    except Exception as e:  # tfds raises many types; what happened is in the message
        raise DataError(f"{name!r} could not be prepared in data_dir={data_dir!r} ({one_line(e)})") from e
    finally:
        for empty in ("downloads/extracted", "downloads"):  # tfds makes them whether or not it downloads anything
            with contextlib.suppress(OSError):
                pathlib.Path(data_dir, empty).rmdir()


@contextlib.contextmanager
def _progress_bars(shown: bool) -> Iterator[None]:
    """Shows tfds' progress bars or not: in a log file they are noise."""
    from tensorflow_datasets.core.utils import tqdm_utils

    before = tqdm_utils._active
    tqdm_utils.display_progress_bar(before and shown)
    try:
        yield
    finally:
        tqdm_utils.display_progress_bar(before)


def remove_stale(folder: pathlib.Path, pattern: str) -> None:
    """Removes unfinished folders that nobody has written to for an hour: a kill left them behind."""
    for path in folder.glob(pattern):
        with contextlib.suppress(OSError):
            if time.time() - max(p.stat().st_mtime for p in (path, *path.rglob("*"))) > _STALE:
                shutil.rmtree(path)


def prepare_public(name: str, data_dir: str) -> None:
    """Prepares a public tfds dataset in another process, so that TensorFlow never enters this one."""
    import tensorflow_datasets as tfds

    try:
        tfds.builder_cls(_parse(name)["base"])
    except tfds.core.DatasetNotFoundError as e:
        own = ", ".join(map(repr, builders.OPTIONS))
        raise DataError(f"{name=}; expected one of {own} or a name that tfds knows, such as 'cifar10'") from e
    if importlib.util.find_spec("tensorflow") is None:
        raise DataError(
            f"{name!r} is not prepared in data_dir={data_dir!r} and preparing it needs TensorFlow, once: run "
            f"`pip install 'metamask_jax[prepare]'` and `{command(name, data_dir)}`, or copy the folder of a prepared "
            f"{name!r} there"
        )
    done = subprocess.run(
        [sys.executable, "-m", "metamask_jax.cli.prepare", name, f"--data_dir={data_dir}"], check=False
    )
    if done.returncode:
        raise DataError(f"preparing {name!r} in data_dir={data_dir!r} failed for the reason printed above")
    if (found := find(name, data_dir)) is not None:
        checksums.seal(found.folder, size_only=".array_record")


@dataclasses.dataclass(frozen=True)
class Features:
    """Which features of a record are the picture, its label, and other numbers.

    Attributes:
      image_key: feature that holds the encoded picture.
      image_size: height and width, None where they vary.
      label_key: feature that holds the class, None without labels.
      class_names: names of the classes.
      factors: NumPy type of every other feature that is one number, by name.
    """

    image_key: str
    image_size: tuple[int, int] | None
    label_key: str | None
    class_names: tuple[str, ...]
    factors: dict[str, np.dtype]


class _Opened(NamedTuple):
    """What tfds gives: the `DatasetInfo`, the source of serialised records, and how to parse one."""

    info: Any
    source: Any
    parse: Callable[[bytes], Any]


def _open(prepared: Prepared, split: str) -> _Opened:
    import tensorflow_datasets as tfds
    from tensorflow_datasets.proto import tf_example_pb2

    try:
        builder = tfds.builder_from_directory(prepared.folder)
    except Exception as e:
        raise _damaged(prepared.folder, one_line(e)) from e
    raw = tfds.decode.DeserializeMethod.RAW_BYTES
    try:
        source = builder.as_data_source(split, deserialize_method=raw)
    except Exception as e:  # tfds raises a different type for each way a split can be wrong
        if split in prepared.splits:
            raise _damaged(prepared.folder, one_line(e)) from e
        reason = str(e).splitlines()[0]
        raise DataError(
            f"{split=}; expected one of {', '.join(map(repr, prepared.splits))} of {prepared.name!r}, or a slice of "
            f"one such as 'train[:10%]' ({reason})"
        ) from e
    return _Opened(builder.info, source, tf_example_pb2.Example.FromString)


class Records:
    """The records of one split, read at random; opened on first use, so that it can be sent to another process."""

    def __init__(self, prepared: Prepared, split: str) -> None:
        self.prepared, self.split = prepared, split
        self._opened: _Opened | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"prepared": self.prepared, "split": self.split, "_opened": None}

    def _open(self) -> _Opened:
        with _OPENING:
            if self._opened is None:
                self._opened = _open(self.prepared, self.split)
            return self._opened

    @functools.cached_property
    def features(self) -> Features:
        """What the records hold."""
        import tensorflow_datasets as tfds

        info = self._open().info
        kinds = dict(info.features.items())
        image_keys = [k for k, kind in kinds.items() if isinstance(kind, tfds.features.Image)]
        label_keys = [k for k, kind in kinds.items() if isinstance(kind, tfds.features.ClassLabel)]
        supervised = info.supervised_keys or ("image", "label")
        image_keys, label_keys = ([k for k in keys if k in supervised] or keys for keys in (image_keys, label_keys))
        if not image_keys:
            raise DataError(f"{self.prepared.name!r} holds no pictures; it has {', '.join(kinds)}")
        label_key = label_keys[0] if label_keys else None
        factors = {
            k: np.dtype(kind.np_dtype)
            for k, kind in sorted(kinds.items())
            if k not in (image_keys[0], label_key) and kind.shape == () and np.dtype(kind.np_dtype).kind in "iufb"
        }
        names = tuple(kinds[label_key].names) if label_key else ()
        height, width = kinds[image_keys[0]].shape[:2]
        return Features(image_keys[0], (height, width) if height and width else None, label_key, names, factors)

    def __len__(self) -> int:
        return len(self._open().source)

    def read(self, indices: Iterable[int]) -> list[Any]:
        """Returns the features of records, each a mapping from name to a protocol buffer list of values."""
        with self._reading() as opened:
            records = opened.source.__getitems__([int(i) for i in indices])
            return [opened.parse(record).features.feature for record in records]

    def read_one(self, index: int) -> Any:
        """Returns the features of one record, in this thread: `read` starts others, which is slow for large records."""
        with self._reading() as opened:
            return opened.parse(opened.source[int(index)]).features.feature

    @contextlib.contextmanager
    def _reading(self) -> Iterator[_Opened]:
        opened = self._open()
        try:
            yield opened
        except Exception as e:  # array_record and protobuf raise many types
            raise _damaged(self.prepared.folder, f"{self.split!r} cannot be read: {one_line(e)}") from e

    def value(self, record: Any, name: str) -> Any:
        """The one value of a feature of a record."""
        feature = record[name]
        for values in (feature.bytes_list.value, feature.int64_list.value, feature.float_list.value):
            if values:
                return values[0]
        raise _damaged(self.prepared.folder, f"a record of {self.split!r} has no {name!r}")

    def label(self, record: Any) -> int:
        """The class of a record, -1 if it has none."""
        label, classes = int(self.value(record, self.features.label_key or "")), len(self.features.class_names)
        if not -1 <= label < classes:
            raise _damaged(
                self.prepared.folder, f"a record of {self.split!r} has the label {label} of {classes} classes"
            )
        return label
