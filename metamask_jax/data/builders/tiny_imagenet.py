"""`tiny_imagenet`: the 200 classes of 64 x 64 pictures that the paper calls IN-200, from the official zip's layout."""

import hashlib
import http.client
import io
import logging
import pathlib
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Container, Iterator
from typing import Any

import tensorflow_datasets as tfds

from metamask_jax.core.storage import replacing
from metamask_jax.data.builders import TinyImagenetOptions, base
from metamask_jax.errors import DataError, one_line

_log = logging.getLogger(__name__)
_URL = "https://cs231n.stanford.edu/tiny-imagenet-200.zip"
_MD5 = "90528d7ca1a48142e341f4ef8d21d0de"  # of the official zip, as published by the projects that use it


class Archive:
    """The files of a zip or of a folder, named by their path below the one that holds `wnids.txt`."""

    def __init__(self, path: str) -> None:
        self.path = path
        names, self._read = _open(pathlib.Path(path))
        roots = [name.removesuffix("wnids.txt") for name in names if name.split("/")[-1] == "wnids.txt"]
        if len(roots) != 1:
            raise DataError(f"{path!r} holds {len(roots)} files 'wnids.txt'; expected one, as in the official zip")
        self._root = roots[0]
        self.names = sorted(name.removeprefix(self._root) for name in names if name.startswith(self._root))

    def read(self, name: str) -> bytes:
        """Returns the contents of a file."""
        try:
            return self._read(self._root + name)
        except (KeyError, FileNotFoundError) as e:
            raise DataError(f"{self.path!r} holds no file {name!r}; expected one, as in the official zip") from e
        except (OSError, RuntimeError, NotImplementedError, EOFError, zipfile.BadZipFile, zlib.error) as e:
            raise DataError(f"{name!r} of {self.path!r} is damaged ({one_line(e)}); expected the official file") from e

    def rows(self, name: str, fields: int) -> list[list[str]]:
        """Returns the tab-separated fields of the lines of a text file, at least so many of each."""
        try:
            rows = [line.split("\t") for line in self.read(name).decode().splitlines() if line.strip()]
        except UnicodeDecodeError as e:
            raise DataError(f"{name!r} of {self.path!r} is no text; expected the official file") from e
        for i, row in enumerate(rows, start=1):
            if len(row) < fields:
                raise DataError(f"line {i} of {name!r} of {self.path!r} has {len(row)} fields; expected {fields}")
        return rows


def _open(path: pathlib.Path) -> tuple[list[str], Callable[[str], bytes]]:
    """Returns the names of all files, with forward slashes, and how to read one."""
    if path.is_dir():
        names = [file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file()]
        return names, lambda name: (path / name).read_bytes()
    try:
        archive = zipfile.ZipFile(path)
    except (OSError, ValueError, NotImplementedError, zipfile.BadZipFile) as e:
        raise DataError(f"path={str(path)!r} is neither a folder nor a whole zip ({one_line(e)})") from e
    return archive.namelist(), archive.read


class Builder(base.RecordBuilder):
    """Copies the JPEG files as they are."""

    name = "tiny_imagenet"
    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES = {"1.0.0": "First release."}  # noqa: RUF012 - tfds' own interface
    BUILDER_CONFIGS = [base.Config(name="full", options=TinyImagenetOptions())]  # noqa: RUF012

    def _info(self) -> tfds.core.DatasetInfo:
        return tfds.core.DatasetInfo(
            builder=self,
            description="Tiny ImageNet: 500 training and 50 validation pictures of each of 200 ImageNet classes.",
            features=tfds.features.FeaturesDict(
                {
                    "image": tfds.features.Image(shape=(64, 64, 3), encoding_format="jpeg"),
                    "label": tfds.features.ClassLabel(),  # the classes are those found in the archive
                }
            ),
            supervised_keys=("image", "label"),
        )

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict[str, Any]:
        del dl_manager
        archive = Archive(self.options.path or _download(pathlib.Path(self.data_dir_root, "downloads")))
        files = _training_files(archive.names)
        listed, present = [row[0] for row in archive.rows("wnids.txt", 1)], {wnid for _, wnid in files}
        found = [wnid for wnid in listed if wnid in present]
        if not found:
            raise DataError(
                f"{archive.path!r} holds no training pictures of the {len(listed)} classes in its wnids.txt; expected "
                "train/WNID/images/*.JPEG, as in the official zip"
            )
        if unknown := sorted(set(self.options.classes) - set(found)):
            raise DataError(
                f"classes={unknown[0]!r}; expected some of the {len(found)} classes found: {found[0]!r}, ..."
            )
        if len(found) < len(listed) and not self.options.classes:
            _log.warning("%s holds pictures of %d of its %d classes", archive.path, len(found), len(listed))
        wnids = sorted(self.options.classes or found)
        self.info.features["label"].names = _class_names(archive, wnids)
        labels = {wnid: label for label, wnid in enumerate(wnids)}
        return {
            "train": self._generate_examples(archive, files, labels),
            "validation": self._generate_examples(archive, _validation_files(archive, labels), labels),
        }

    def _generate_examples(
        self, archive: Archive, files: list[tuple[str, str]], labels: dict[str, int]
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        for name, wnid in files:
            if wnid in labels:
                yield name, {"image": io.BytesIO(archive.read(name)), "label": labels[wnid]}


def _class_names(archive: Archive, wnids: list[str]) -> list[str]:
    """Returns a name for each class: its first word, followed by its id where two classes share the word."""
    words = {row[0]: row[1].split(",")[0] for row in archive.rows("words.txt", 2)}
    names = [words.get(wnid, wnid) for wnid in wnids]
    return [name if names.count(name) == 1 else f"{name} ({wnid})" for name, wnid in zip(names, wnids, strict=True)]


def _training_files(names: list[str]) -> list[tuple[str, str]]:
    """Returns each training picture's file and class."""
    return [(name, name.split("/")[1]) for name in names if name.startswith("train/") and name.endswith(".JPEG")]


def _validation_files(archive: Archive, wnids: Container[str]) -> list[tuple[str, str]]:
    """Returns the file and class of each validation picture of some classes."""
    present = set(archive.names)
    rows = archive.rows("val/val_annotations.txt", 2)
    listed = [(f"val/images/{row[0]}", row[1]) for row in rows if row[1] in wnids]
    found = [(name, wnid) for name, wnid in listed if name in present]
    if not found:
        raise DataError(f"{archive.path!r} holds no validation pictures of its classes; expected val/images/*.JPEG")
    if len(found) < len(listed):
        _log.warning("%s holds %d of the %d validation pictures of its classes", archive.path, len(found), len(listed))
    return found


def _download(folder: pathlib.Path) -> str:
    """Returns the official zip, downloaded with a progress bar if it is not there yet."""
    from tqdm import tqdm

    path = folder / "tiny-imagenet-200.zip"
    instead = f"put the zip at {path}, or set path= to it (config.data.options.path)"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(path) as partial:
            try:
                with tqdm(desc="Downloading Tiny ImageNet", unit="B", unit_scale=True, disable=None) as progress:

                    def report(blocks: int, block_size: int, total: int) -> None:
                        progress.total = total
                        progress.update(blocks * block_size - progress.n)

                    urllib.request.urlretrieve(_URL, partial, report)
            except (OSError, http.client.HTTPException) as e:
                raise DataError(f"{_URL} could not be downloaded ({one_line(e)}); {instead}") from e
            _check_digest(partial, f"what {_URL} gave is not the official file: {instead}")
        return str(path)
    _check_digest(path, f"{path} is not the official file: delete it, or {instead}")
    return str(path)


def _check_digest(path: pathlib.Path, message: str) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if found != _MD5:
        raise DataError(f"{message} (its MD5 is {found}; expected {_MD5})")
