"""What lies in a folder of pictures: its splits and classes, and what cannot be used. Nothing is read but names."""

import os
import pathlib
import unicodedata
from collections.abc import Iterator
from typing import NamedTuple

from metamask_jax.errors import DataError

_SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"})
# What a folder that is a split may be called, in any capitalisation.
_SPLITS = {
    "train": "train",
    "training": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "test": "test",
    "testing": "test",
}


class Picture(NamedTuple):
    """A file that looks like a picture.

    Attributes:
      path: the file.
      class_name: the folder of its class; None if it lies in no class's folder.
      stamp: its size in bytes and when it was last changed, in nanoseconds.
    """

    path: pathlib.Path
    class_name: str | None
    stamp: tuple[int, int]


class Found(NamedTuple):
    """What lies in a folder.

    Attributes:
      splits: the pictures of each split, in the order of their paths.
      problems: sentences about what was left out.
    """

    splits: dict[str, list[Picture]]
    problems: list[str]


def scan(path: str | pathlib.Path) -> Found:
    """Lists the pictures in a folder.

    Names that begin with a dot are left alone, as elsewhere. Links are followed, but not in circles.

    Args:
      path: a folder of pictures, of one folder per class, or of `train`, `test` and `validation` folders of either.

    Raises:
      DataError: there is no picture, or it is not clear which folders are splits.
    """
    root, problems = pathlib.Path(path), list[str]()
    splits = {
        split: _classified(folder, _pictures(folder, problems), problems)
        for split, folder in _split_folders(root, problems).items()
    }
    for split, pictures in splits.items():
        if not pictures:
            where = root if len(splits) == 1 else f"{split}/ of {named(root)}"
            left_out = f" ({problems[0]})" if problems else ""
            raise DataError(
                f"{named(where)} holds no pictures{left_out}; expected files such as .jpg or .png, in it or below it"
            )
    return Found(splits, problems)


def named(path: object) -> str:
    r"""A path as text of one line, whatever bytes are in it.

    Example:
      >>> named("photos/a.jpg"), named("photos/a" + chr(10) + ".jpg")
      ('photos/a.jpg', "'photos/a\\n.jpg'")
    """
    text = str(path)
    return text if text.isprintable() else ascii(text)


def _split_folders(root: pathlib.Path, problems: list[str]) -> dict[str, pathlib.Path]:
    """The folder of each split; the whole folder is `train` where it has no such folders."""
    # Unlike an entry's own methods, those of os.path take a link that leads to itself for nothing.
    folders = [pathlib.Path(entry.path) for entry in _entries(root, []) if os.path.isdir(entry.path)]
    splits: dict[str, pathlib.Path] = {}
    others: list[str] = []
    for folder in folders:
        split = _SPLITS.get(folder.name.lower())
        if split in splits:
            raise DataError(
                f"{named(root)} has the folders {splits[split].name!r} and {folder.name!r}; expected one of them"
            )
        if split is not None:
            splits[split] = folder
        elif next(_pictures(folder, []), None):
            others.append(folder.name)
    if not splits:
        return {"train": root}
    if "train" not in splits or others:
        beside = f"the folder {others[0]!r} beside it" if others else "no folder train/"
        raise DataError(
            f"{named(root)} has a folder {next(iter(splits.values())).name!r} and {beside}; expected train/ and, if "
            "wanted, val/ and test/, and no others: a class of such a name needs another one"
        )
    loose = [entry.name for entry in _entries(root, []) if os.path.isfile(entry.path) and _is_picture(entry.name)]
    problems += [f"{named(root / name)} lies beside train/, in no split" for name in loose]
    return splits


def _classified(folder: pathlib.Path, pictures: Iterator[Picture], problems: list[str]) -> list[Picture]:
    """The pictures of a split in the order of their paths, without those of classes whose name cannot be kept."""
    kept, refused = [], dict[str, int]()
    for picture in sorted(pictures):
        parts = picture.path.relative_to(folder).parts[:-1]
        if parts and not _can_be_kept(parts[0]):
            refused[parts[0]] = refused.get(parts[0], 0) + 1
        else:
            kept.append(picture._replace(class_name=parts[0] if parts else None))
    problems += [
        f"{count} pictures of the class {name!a}, whose name is not UTF-8 text on one line"
        for name, count in refused.items()
    ]
    return kept


def _can_be_kept(class_name: str) -> bool:
    """Whether a name survives the text file in which names of classes are kept, one per line."""
    return class_name == class_name.strip() and not any(
        unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") for character in class_name
    )


def _pictures(
    folder: pathlib.Path, problems: list[str], above: frozenset[tuple[int, int]] = frozenset()
) -> Iterator[Picture]:
    """The pictures in a folder and below it, without their classes; `above` has the folders that lead here."""
    status = folder.stat()
    here = (status.st_dev, status.st_ino)
    if here in above:
        problems.append(f"{named(folder)} leads back to a folder above it")
        return
    for entry in _entries(folder, problems):
        path = pathlib.Path(entry.path)
        try:
            status = entry.stat()
        except OSError as error:
            problems.append(f"{named(path)} is a link that leads nowhere ({error.strerror})")
            continue
        if entry.is_dir():
            yield from _pictures(path, problems, above | {here})
        elif _is_picture(entry.name):
            if entry.is_file():
                yield Picture(path, None, (status.st_size, status.st_mtime_ns))
            else:
                problems.append(f"{named(path)} is no ordinary file")


def _entries(folder: pathlib.Path, problems: list[str]) -> list[os.DirEntry[str]]:
    """What lies in a folder, by name, without what is hidden."""
    try:
        with os.scandir(folder) as entries:
            return sorted((e for e in entries if not e.name.startswith(".")), key=lambda entry: entry.name)
    except OSError as error:
        problems.append(f"{named(folder)} cannot be listed ({error.strerror})")
        return []


def _is_picture(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in _SUFFIXES
