"""Sets of pictures of many sizes, decoded and cropped on the host each time they are asked for."""

import contextlib
import dataclasses
import functools
import os
import pathlib
import sys
import zipfile
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from metamask_jax.core.storage import replacing
from metamask_jax.data import pictures
from metamask_jax.data.prepared import Records
from metamask_jax.errors import DataError
from metamask_jax.kernels.process import cores

T = TypeVar("T")
MapParts = Callable[
    [Callable[[range], None], Iterable[range]], Iterable[None]
]  # maps a function over parts, as `map` does

_PART = 8  # pictures that a thread takes at a time
_AHEAD = 2  # batches in the making


@dataclasses.dataclass(frozen=True, kw_only=True)
class Streaming:
    """How pictures of many sizes are brought to one.

    Attributes:
      image_size: height and width of what comes out.
      views: random resized crops of each picture in a batch; 0 leaves the cropping to the device, which then gets
        the centred square.
      centre: side of the centred square as a share of the shorter side.
      area: least and greatest share of the area in a random crop.
      aspect: least and greatest width / height of a random crop.
      threads: pictures worked on at a time; as many as there are cores if not given.
      processes: processes that share them; 0 for threads of this one.
    """

    image_size: int
    views: int = 0
    centre: float = 1.0
    area: tuple[float, float] = (0.08, 1.0)
    aspect: tuple[float, float] = (3 / 4, 4 / 3)
    threads: int = dataclasses.field(default_factory=cores)
    processes: int = 0

    def __post_init__(self) -> None:
        bounds = {"image_size": (1, 8192), "views": (0, 64), "threads": (1, 1024), "processes": (0, 1024)}
        for name, (least, most) in bounds.items():
            if not least <= (value := getattr(self, name)) <= most:
                raise DataError(f"{name}={value}; expected {least} to {most} (config.data.options.{name})")
        if not 0 < self.centre <= 1:
            raise DataError(f"centre={self.centre}; expected more than 0 and at most 1")
        if not 0 < self.area[0] <= self.area[1] <= 1:
            raise DataError(f"area={self.area}; expected 0 < least <= greatest <= 1")
        if not 0 < self.aspect[0] <= self.aspect[1]:
            raise DataError(f"aspect={self.aspect}; expected 0 < least <= greatest")


@dataclasses.dataclass(frozen=True, kw_only=True)
class StreamSource:
    """A set of pictures of many sizes.

    Attributes:
      name: the dataset's name.
      records: the encoded pictures.
      size: how many of them are used.
      image_key: feature that holds the picture.
      label_key: feature that holds the label, None without labels.
      num_classes: number of classes, 0 without labels.
      class_names: their names.
      factors: empty: of a large set only pictures and labels are read.
      streaming: how the pictures are brought to one size.
      rows: which records are used, int [size]; None for the first ones.
      label_file: where the labels of all records are kept once they are read; None to read them each time.
      view: how `gather` brings pictures to one size, instead of as `streaming` says; of evaluation.
    """

    name: str
    records: Records
    size: int
    image_key: str
    label_key: str | None
    num_classes: int
    class_names: tuple[str, ...]
    streaming: Streaming
    factors: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    rows: np.ndarray | None = None
    label_file: pathlib.Path | None = None
    view: pictures.CentreView | pictures.RandomView | None = None

    def __len__(self) -> int:
        return self.size

    def gather(self, indices: np.ndarray, map_parts: MapParts = map) -> tuple[np.ndarray, np.ndarray]:
        """Decodes pictures and resizes their centred squares, or shows them as `view` says.

        Args:
          indices: which pictures, int [batch].
          map_parts: maps a function over the parts of the work.

        Returns:
          Images uint8 [batch, image_size, image_size, 3] and labels int32 [batch].
        """
        rows = self._rows(np.asarray(indices))
        size = self.view.image_size if self.view else self.streaming.image_size

        def show(n: int, pixels: np.ndarray, image: np.ndarray) -> None:
            if isinstance(self.view, pictures.CentreView):
                image[:] = pictures.centre_view(pixels, self.view)
            elif self.view is not None:
                image[:] = pictures.random_view(pixels, self.view, int(rows[n]))
            else:
                box = pictures.centre_box(pictures.size_of(pixels), self.streaming.centre)
                image[:] = pictures.crop(pixels, box, size)

        return self._show(rows, (size, size, 3), show, map_parts)

    def gather_crops(
        self, indices: np.ndarray, map_parts: MapParts = map, *, seed: int, step: int, positions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Decodes pictures and draws `streaming.views` random resized crops of each.

        Args:
          indices: which pictures, int [batch].
          map_parts: maps a function over the parts of the work.
          seed: of the run.
          step: of the run.
          positions: places in the global batch, int [batch]; a crop is a function of these, seed and step.

        Returns:
          Images uint8 [batch, views, image_size, image_size, 3] and labels int32 [batch].
        """
        options = self.streaming

        def show(n: int, pixels: np.ndarray, images: np.ndarray) -> None:
            draws, size = pictures.uniform_draws(seed, step, int(positions[n]), options.views), pictures.size_of(pixels)
            for image, uniform in zip(images, draws, strict=True):
                box = pictures.random_box(size, uniform, area=options.area, aspect=options.aspect)
                image[:] = pictures.crop(pixels, box, options.image_size)

        rows = self._rows(np.asarray(indices))
        return self._show(rows, (options.views, options.image_size, options.image_size, 3), show, map_parts)

    @functools.cached_property
    def labels(self) -> np.ndarray:
        """Labels int32 [size]; the very first use reads the whole set, and its pictures with them."""
        every = _kept_labels(self.label_file, len(self.records))
        if every is None:
            chunks = (range(start, min(start + 1000, len(self.records))) for start in range(0, len(self.records), 1000))
            every = np.concatenate([self._labels(self.records.read(chunk)) for chunk in chunks])
            _keep_labels(self.label_file, every)
        return every[self._rows(np.arange(self.size))]

    def first(self, size: int) -> "StreamSource":
        """Returns the source of the first `size` pictures."""
        return dataclasses.replace(self, size=size, rows=None if self.rows is None else self.rows[:size])

    def take(self, rows: np.ndarray) -> "StreamSource":
        """Returns the source of some of the pictures, by their indices int [rows]."""
        return dataclasses.replace(self, size=len(rows), rows=self._rows(rows))

    def _rows(self, indices: np.ndarray) -> np.ndarray:
        """The records of pictures."""
        return indices if self.rows is None else self.rows[indices]

    def _show(
        self,
        rows: np.ndarray,
        shape: tuple[int, ...],
        show: Callable[[int, np.ndarray, np.ndarray], None],
        map_parts: MapParts,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Decodes records; `show(n, pixels, image)` writes what is to be seen of the n-th, an array of a shape."""
        images, labels = np.empty((len(rows), *shape), np.uint8), np.empty(len(rows), np.int32)

        def part(places: range) -> None:
            for n in places:
                record = self.records.read_one(rows[n])
                what = f"picture {rows[n]} of {self.records.split!r} of {self.name!r}"
                show(n, pictures.decode(self.records.value(record, self.image_key), what), images[n])
                labels[n : n + 1] = self._labels([record])

        for _ in map_parts(part, [range(start, min(start + _PART, len(rows))) for start in range(0, len(rows), _PART)]):
            pass  # what a part raises is raised here
        return images, labels

    def _labels(self, features: list[Any]) -> np.ndarray:
        if self.label_key is None:
            return np.full(len(features), -1, np.int32)
        return np.array([self.records.label(f) for f in features], np.int32)


def _kept_labels(path: pathlib.Path | None, size: int) -> np.ndarray | None:
    """The labels in a file, int32 [size]; None if it has no such labels or is damaged: they are then read again."""
    try:
        with np.load(path or os.devnull, allow_pickle=False) as file:  # a zip file, with a checksum
            labels = np.asarray(file["labels"])
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
    return labels if labels.shape == (size,) and labels.dtype == np.int32 else None


def _keep_labels(path: pathlib.Path | None, labels: np.ndarray) -> None:
    """Keeps the labels in a file, unless it cannot be written."""
    if path is None:
        return
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary, temporary.open("wb") as file:  # a bare path would get another suffix
            np.savez(file, labels=labels)


def map_steps(
    make: Callable[..., T], *, start: int, stop: int | None, streaming: Streaming
) -> Generator[T, None, None]:
    """Yields `make(step)` or `make(step, map_parts)` for each step in order, computed ahead.

    Args:
      make: makes what belongs to a step; `map_parts`, if given, maps a function over the parts of the work.
      start: the first step.
      stop: the step after the last; None goes on without end.
      streaming: how many threads and processes there are.
    """
    steps = range(start, sys.maxsize if stop is None else stop)
    return (_by_processes if streaming.processes else _by_threads)(make, steps, streaming)


def _by_threads(make: Callable[..., T], steps: range, streaming: Streaming) -> Generator[T, None, None]:
    """All threads work on the first step that is not done; the parts of the next one fill their pauses."""
    workers, makers = ThreadPoolExecutor(streaming.threads, "decode"), ThreadPoolExecutor(_AHEAD, "make")
    ahead: deque[Future[T]] = deque()
    try:
        for step in steps:
            ahead.append(makers.submit(make, step, workers.map))
            if len(ahead) == _AHEAD:
                yield ahead.popleft().result()
        for made in ahead:
            yield made.result()
    finally:
        workers.shutdown(cancel_futures=True)
        makers.shutdown(cancel_futures=True)


def _by_processes(make: Callable[..., T], steps: range, streaming: Streaming) -> Generator[T, None, None]:
    """Each process works on steps of its own."""
    import grain
    from absl import flags

    if not flags.FLAGS.is_parsed():  # grain's workers read absl flags, which only absl programs parse
        flags.FLAGS.mark_as_parsed()
    threads = -(-streaming.threads // streaming.processes)
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=threads)
    made = grain.MapDataset.range(steps.start, steps.stop).map(make).to_iter_dataset(options)
    iterator = iter(made.mp_prefetch(grain.MultiprocessingOptions(num_workers=streaming.processes)))
    try:
        yield from iterator
    finally:
        iterator.close()
