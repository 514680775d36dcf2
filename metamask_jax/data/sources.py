"""Where the pictures come from: `open_source`.

A set of one fixed size becomes an array in memory-mapped storage, decoded once (`in_memory`); a set of many sizes is
decoded, cropped and resized each time a picture is asked for (`streams`).
"""

import contextlib
import dataclasses
import logging
import os
import pathlib
from typing import Any

from ml_collections import ConfigDict

from metamask_jax.core.places import is_url
from metamask_jax.data import builders, in_memory, prepared
from metamask_jax.data.in_memory import ArraySource
from metamask_jax.data.options import build
from metamask_jax.data.streams import Streaming, StreamSource
from metamask_jax.errors import DataError, shown

_log = logging.getLogger(__name__)
Source = ArraySource | StreamSource

# Settings that say how the pictures of a run are fetched: which ones they are does not depend on them.
DATA_UNCHANGED_BY = ("data.dir", "data.prefetch", "data.options.threads", "data.options.processes")

_ROLES = {"pretrain": ("unlabelled", "train"), "train": ("train",), "test": ("test", "validation")}
_ROLES_OF = {"imagenet2012": {"test": ("validation",)}}  # its own test split carries no labels


class MissingSplitError(DataError):
    """The set has no split that could play the role."""


def open_source(
    name: str,
    *,
    split: str,
    data_dir: str,
    size: int | None = None,
    view_size: int | None = None,
    **options: Any,
) -> Source:
    """Opens a set of pictures, preparing it first where that is possible.

    Args:
      name: one of our own sets (`confounded_shapes`, `tiny_imagenet`, `image_folder`) or any tfds name of a set of
        labelled or unlabelled pictures.
      split: `pretrain` (what to learn representations from), `train` and `test` (what to evaluate them on), or any
        split of the set as tfds writes it, such as `train[:10%]`.
      data_dir: where prepared sets live; they and the decoded arrays are written there.
      size: keep only the first `size` pictures.
      view_size: height and width that pictures of many sizes come to where the option `image_size` does not say.
      **options: options of our own sets (see `builders.OPTIONS`), and of sets of many sizes (see `streams.Streaming`).

    Returns:
      An `ArraySource`, or for a set of many sizes a `streams.StreamSource`.
    """
    data_dir = _usable_folder(data_dir)
    own_options, streaming = _sort_options(name, options)
    found = _find_or_prepare(name, data_dir, own_options)
    split = _split_of_role(found, split)
    source = _open(found, split, data_dir, streaming, view_size)
    if size is not None and not 1 <= size <= len(source):
        raise DataError(f"{size=}; expected 1 to {len(source)}, the number of pictures in {split!r} of {name!r}")
    return source if size is None else source.first(size)


def open_configured(data: ConfigDict, *, split: str) -> Source:
    """Opens what the `data` section of a configuration asks for.

    `data.size` is for pretraining only. Pictures of many sizes come to `data.image_size`, unless
    `data.options.image_size` says otherwise.
    """
    return open_source(
        data.name,
        split=split,
        data_dir=data.dir,
        size=data.size if split == "pretrain" else None,
        view_size=data.image_size,
        **configured_options(data, split=split),
    )


def configured_options(data: ConfigDict, *, split: str) -> dict[str, Any]:
    """The options of a set in a configuration; `views`, random crops on the host, are for pretraining only."""
    options: dict[str, Any] = data.options.to_dict()
    if split != "pretrain":
        options.pop("views", None)
    return options


def _sort_options(name: str, options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Splits options into those of our own builder and those of streaming."""
    own = {f.name for f in dataclasses.fields(builders.OPTIONS[name])} if name in builders.OPTIONS else set()
    streaming = {f.name for f in dataclasses.fields(Streaming)}
    for option in options:
        if option not in own | streaming:
            raise DataError(
                f"{option!r} is no option of {name!r}; expected one of {', '.join(sorted(own | streaming))}"
            )
    return (
        {key: value for key, value in options.items() if key in own},
        {key: value for key, value in options.items() if key not in own},
    )


def _open(
    found: prepared.Prepared, split: str, data_dir: str, streaming: dict[str, Any], view_size: int | None
) -> Source:
    """Opens a split: from the decoded arrays if they are there, else by its records."""
    folder = in_memory.cache_folder(found, split, data_dir)
    if folder.exists():
        try:
            return _fixed(in_memory.load(folder, found.name), streaming)
        except in_memory.DamagedError as error:
            _log.warning("%s is of an older version or damaged (%s); the pictures are decoded again", folder, error)
            with contextlib.suppress(OSError):  # a data_dir that may only be read
                in_memory.discard(folder)
    records = prepared.Records(found, split)
    features = records.features
    if features.image_size is not None:
        return _fixed(in_memory.decode(records, features.image_size, folder), streaming)
    if view_size is not None:
        streaming = {"image_size": view_size} | streaming
    if "image_size" not in streaming:
        raise DataError(
            f"image_size is not set; {found.name!r} has pictures of many sizes, which need one to come to "
            "(config.data.image_size)"
        )
    return StreamSource(
        name=found.name,
        records=records,
        size=len(records),
        image_key=features.image_key,
        label_key=features.label_key,
        num_classes=len(features.class_names),
        class_names=features.class_names,
        streaming=build(Streaming, streaming),
        label_file=folder.with_name(f"{folder.name}-labels.npz"),
    )


def _fixed(source: ArraySource, streaming: dict[str, Any]) -> ArraySource:
    """Returns the source if nothing was asked of it that only a set of many sizes can give."""
    size = source.images.shape[1]
    if wrong := {key: value for key, value in streaming.items() if (key, value) != ("image_size", size)}:
        key, value = next(iter(wrong.items()))
        raise DataError(f"{key}={value!r}; {source.name!r} has pictures of one size, {size}, which are not cropped")
    return source


def _find_or_prepare(name: str, data_dir: str, options: dict[str, Any]) -> prepared.Prepared:
    """Returns the prepared dataset; `options` are those of our own builder, none for a public set."""
    if name in builders.OPTIONS:
        if isinstance(options.get("path"), str):
            if is_url(options["path"]):
                raise DataError(f"path={shown(options['path'])}; expected pictures on this machine (data.options.path)")
            options = options | {"path": os.path.expanduser(options["path"])}
        own = build(builders.OPTIONS[name], options)
        full_name = f"{name}/{own.config_name}"
        if (found := prepared.find(full_name, data_dir)) is None:
            if needs := getattr(own, "needs", None):
                _find_or_prepare(needs, data_dir, {})
            prepared.prepare_own(name, own, data_dir)
            found = prepared.find(full_name, data_dir)
    elif (found := prepared.find(name, data_dir)) is None:
        prepared.prepare_public(name, data_dir)
        found = prepared.find(name, data_dir)
    if found is None:
        raise DataError(f"{name!r} was prepared but is not in {data_dir!r}")
    prepared.remove_stale(found.folder.parent, "incomplete.*")
    return found


def _usable_folder(data_dir: str) -> str:
    """The folder's absolute path; refused where a file is in the way."""
    if is_url(data_dir):
        raise DataError(
            f"data_dir={shown(data_dir)}; expected a folder on this machine, such as a mounted bucket's: array_record "
            "reads no URLs (config.data.dir)"
        )
    path = os.path.abspath(os.path.expanduser(data_dir))
    existing = pathlib.Path(path)
    while not os.path.lexists(existing) and existing != existing.parent:
        existing = existing.parent
    if "\0" in path or not existing.is_dir():
        found = "a file" if str(existing) == path else f"{str(existing)!r}, which is a file"
        raise DataError(f"data_dir={shown(data_dir)}; expected a folder, found {found} (config.data.dir)")
    return path


def _split_of_role(found: prepared.Prepared, split: str) -> str:
    """Returns the tfds split of a role; what is no role is taken for a tfds split."""
    candidates = (_ROLES | _ROLES_OF.get(found.name, {})).get(split, (split,))
    present = [candidate for candidate in candidates if candidate in found.splits]
    if split in _ROLES and not present:
        raise MissingSplitError(f"{split=}; {found.name!r} has only {', '.join(map(repr, found.splits))}")
    return present[0] if present else split
