"""`tiny_imagenet`: the 200 classes of 64 x 64 pictures that the paper calls IN-200, from the official zip's layout."""

import io
import pathlib
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow_datasets as tfds

from metamask_jax.data.builders import TinyImagenetOptions, base
from metamask_jax.errors import DataError

_URL = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"


class Archive:
    """The files of a zip or of a folder, named by their path below the one that holds `wnids.txt`."""

    def __init__(self, path: str) -> None:
        names, self._read = _open(pathlib.Path(path))
        roots = [name.removesuffix("wnids.txt") for name in names if name.split("/")[-1] == "wnids.txt"]
        if len(roots) != 1:
            raise DataError(f"{path!r} holds {len(roots)} files 'wnids.txt'; expected one, as in the official zip")
        self._root = roots[0]
        self.names = sorted(name.removeprefix(self._root) for name in names if name.startswith(self._root))

    def read(self, name: str) -> bytes:
        """Returns the contents of a file."""
        return self._read(self._root + name)

    def rows(self, name: str) -> list[list[str]]:
        """Returns the tab-separated fields of the lines of a text file."""
        return [line.split("\t") for line in self.read(name).decode().splitlines() if line.strip()]


def _open(path: pathlib.Path) -> tuple[list[str], Callable[[str], bytes]]:
    """Returns the names of all files, with forward slashes, and how to read one."""
    if path.is_dir():
        names = [file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file()]
        return names, lambda name: (path / name).read_bytes()
    try:
        archive = zipfile.ZipFile(path)
    except (OSError, zipfile.BadZipFile) as e:
        raise DataError(f"path={str(path)!r} is neither a folder nor a whole zip ({e})") from e
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
        present = {name.split("/")[1] for name in archive.names if name.startswith("train/")}
        found = [row[0] for row in archive.rows("wnids.txt") if row[0] in present]
        if unknown := sorted(set(self.options.classes) - set(found)):
            raise DataError(
                f"classes={unknown[0]!r}; expected some of the {len(found)} classes found: {found[0]!r}, ..."
            )
        wnids = sorted(self.options.classes or found)
        self.info.features["label"].names = _class_names(archive, wnids)
        labels = {wnid: label for label, wnid in enumerate(wnids)}
        return {
            "train": self._generate_examples(archive, _training_files(archive.names), labels),
            "validation": self._generate_examples(archive, _validation_files(archive), labels),
        }

    def _generate_examples(
        self, archive: Archive, files: list[tuple[str, str]], labels: dict[str, int]
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        for name, wnid in files:
            if wnid in labels:
                yield name, {"image": io.BytesIO(archive.read(name)), "label": labels[wnid]}


def _class_names(archive: Archive, wnids: list[str]) -> list[str]:
    """Returns a name for each class: its first word, followed by its id where two classes share the word."""
    words = {row[0]: row[1].split(",")[0] for row in archive.rows("words.txt")}
    names = [words.get(wnid, wnid) for wnid in wnids]
    return [name if names.count(name) == 1 else f"{name} ({wnid})" for name, wnid in zip(names, wnids, strict=True)]


def _training_files(names: list[str]) -> list[tuple[str, str]]:
    """Returns each training picture's file and class."""
    return [(name, name.split("/")[1]) for name in names if name.startswith("train/") and name.endswith(".JPEG")]


def _validation_files(archive: Archive) -> list[tuple[str, str]]:
    """Returns each validation picture's file and class."""
    present = set(archive.names)
    listed = [(f"val/images/{row[0]}", row[1]) for row in archive.rows("val/val_annotations.txt")]
    return [(name, wnid) for name, wnid in listed if name in present]


def _download(folder: pathlib.Path) -> str:
    """Returns the official zip, downloaded with a progress bar if it is not there yet."""
    from tqdm import tqdm

    path = folder / "tiny-imagenet-200.zip"
    if path.exists():
        return str(path)
    folder.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    try:
        with tqdm(desc="Downloading Tiny ImageNet", unit="B", unit_scale=True, disable=None) as progress:

            def report(blocks: int, block_size: int, total: int) -> None:
                progress.total = total
                progress.update(blocks * block_size - progress.n)

            urllib.request.urlretrieve(_URL, partial, report)
    except (OSError, urllib.error.URLError) as e:
        raise DataError(f"{_URL} could not be downloaded ({e}); put the zip at {path}, or set path= to it") from e
    partial.rename(path)
    return str(path)
