"""Our own tfds builders, none of which needs TensorFlow, and the options each is made with.

Import `metamask_jax.data.builders.confounded_shapes` or `.tiny_imagenet` to make `tfds.builder(name)` know them. This
module itself imports neither: the name of a prepared set's folder must be known without paying for tfds.
"""

import dataclasses
import functools
import hashlib
import importlib
import os
import pathlib
from typing import Any, ClassVar, Protocol

from metamask_jax.data.builders import folders
from metamask_jax.errors import DataError


class Options(Protocol):
    """What a builder is made with."""

    @property
    def config_name(self) -> str:
        """The tfds config: one name, and so one folder, for one set of pictures."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConfoundedShapesOptions:
    """Options of `confounded_shapes`.

    Attributes:
      image_size: height and width in pixels.
      strength: strength of the confounders, from 0 to 1.
      train_size: number of training pictures.
      test_size: number of test pictures.
    """

    image_size: int = 32
    strength: float = 1.0
    train_size: int = 10_000
    test_size: int = 2_000

    def __post_init__(self) -> None:
        _require_strength(self.strength)
        bounds = {"image_size": (16, 1024), "train_size": (1, 10**7), "test_size": (1, 10**7)}
        for name, (least, most) in bounds.items():
            if not least <= (value := getattr(self, name)) <= most:
                raise DataError(f"{name}={value}; expected {least} to {most} (config.data.options.{name})")

    @property
    def config_name(self) -> str:
        """Every option, spelt out."""
        return f"{self.image_size}px-strength{self.strength:g}-{self.train_size}-{self.test_size}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConfoundedCifar10Options:
    """Options of `confounded_cifar10`.

    Attributes:
      strength: strength of the confounders, from 0, the pictures as they are, to 1.
    """

    strength: float = 1.0
    needs: ClassVar[str] = "cifar10"  # the set whose pictures these are

    def __post_init__(self) -> None:
        _require_strength(self.strength)

    @property
    def config_name(self) -> str:
        """Every option, spelt out."""
        return f"strength{self.strength:g}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TinyImagenetOptions:
    """Options of `tiny_imagenet`.

    Attributes:
      path: the official zip, or the folder it unpacks to; None downloads it.
      classes: WordNet ids to keep, such as `("n01443537",)`; empty keeps every class found.
    """

    path: str | None = None
    classes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.path is not None and not os.path.exists(self.path):
            raise DataError(
                f"path={self.path!r} does not exist; expected the zip or folder of Tiny ImageNet "
                "(config.data.options.path)"
            )

    @property
    def config_name(self) -> str:
        """`full` for the whole official set, else a digest of what was asked for."""
        if self.path is None and not self.classes:
            return "full"
        stamp = () if self.path is None else (os.path.abspath(self.path), os.stat(self.path).st_size)
        return f"part-{_digest(*stamp, *sorted(self.classes))}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageFolderOptions:
    """Options of `image_folder`.

    Attributes:
      path: folder of pictures, of one folder per class, or of `train`, `val` and `test` folders of either.
      on_error: what to do with what cannot be used, such as a damaged file, a link that leads nowhere, or a class whose
        name is no line of text: `skip` it with a report, or `refuse` the folder.
      shorter_side: pictures whose shorter side has more pixels are reduced to so many when they are copied: those of a
        camera take far longer to decode than to learn from. 0 copies all as they are.
    """

    path: str = ""
    on_error: str = "skip"
    shorter_side: int = 0

    def __post_init__(self) -> None:
        if self.on_error not in ("skip", "refuse"):
            raise DataError(f"on_error={self.on_error!r}; expected 'skip' or 'refuse' (config.data.options.on_error)")
        if not 0 <= self.shorter_side <= 8192:
            raise DataError(f"shorter_side={self.shorter_side}; expected 0 to 8192 (config.data.options.shorter_side)")
        if not os.path.isdir(self.path):
            raise DataError(
                f"path={self.path!r} is not a folder; expected a folder of pictures (config.data.options.path)"
            )

    @functools.cached_property
    def config_name(self) -> str:
        """Changes when a picture is added, removed, resized or touched."""
        root = pathlib.Path(self.path)
        stamps = [
            (split, str(picture.path.relative_to(root)), *picture.stamp)
            for split, pictures in folders.scan(root).splits.items()
            for picture in pictures
        ]
        reduced = f"{self.shorter_side}px-" if self.shorter_side else ""
        return f"{self.on_error}-{reduced}{_digest(root.resolve(), *stamps)}"


OPTIONS: dict[str, type[Any]] = {
    "confounded_shapes": ConfoundedShapesOptions,
    "confounded_cifar10": ConfoundedCifar10Options,
    "tiny_imagenet": TinyImagenetOptions,
    "image_folder": ImageFolderOptions,
}


def make_builder(name: str, options: Options, data_dir: str) -> Any:
    """Returns the tfds builder of one of our own sets.

    Args:
      name: a key of `OPTIONS`.
      options: an instance of `OPTIONS[name]`.
      data_dir: where prepared sets live.
    """
    cls = importlib.import_module(f"{__name__}.{name}").Builder
    # tfds refuses a second config object of a name it knows.
    config = cls.get_builder_config(options.config_name) or cls.Config(name=options.config_name, options=options)
    return cls(data_dir=data_dir, config=config)


def _require_strength(strength: float) -> None:
    if not 0 <= strength <= 1:
        raise DataError(f"{strength=}; expected a number from 0 to 1 (config.data.options.strength)")


def _digest(*parts: object) -> str:
    return hashlib.sha256("\n".join(map(repr, parts)).encode()).hexdigest()[:12]
