"""The images that judge the mask: those of the next step, or a few labelled ones."""

import contextlib
from collections.abc import Generator

import numpy as np

from metamask_jax.core.state import Judged
from metamask_jax.data.in_memory import ArraySource
from metamask_jax.data.loader import Batch
from metamask_jax.data.sources import Source
from metamask_jax.data.subsets import stratified_subset
from metamask_jax.errors import ConfigError

# Sets the choice and the order of the labelled images apart from the order of training.
_SEED = 0x6A7564


def labelled_images(source: Source, *, amount: float, seed: int) -> ArraySource:
    """A random part of a labelled set, drawn class by class: the same for the same seed.

    Args:
      source: a labelled split, never that of the test images.
      amount: how many images, or up to one which share of them.
      seed: of the run.
    """
    if not isinstance(source, ArraySource) or source.num_classes == 0 or source.labels.min() < 0:
        raise ConfigError(
            f"config.meta.outer='labels' on {source.name!r}; expected a labelled set of pictures that fits into memory"
        )
    if amount > len(source):
        raise ConfigError(f"config.meta.labels={amount:g}; expected at most {len(source)}, the labelled images")
    return source.take(judge_rows(source.labels, amount=amount, seed=seed))


def judge_rows(labels: np.ndarray, *, amount: float, seed: int) -> np.ndarray:
    """The rows, in order, that `labelled_images` draws from a set of these labels [size]."""
    fraction = amount if amount <= 1 else amount / len(labels)
    return stratified_subset(labels, fraction=fraction, seed=seed + _SEED)


def judge_seed(seed: int) -> int:
    """The seed of the order in which labelled images come, another one than that of the training images."""
    return (seed + _SEED) % 2**31


def judge_batch_size(images: int, *, batch_size: int, parts: int) -> int:
    """As many labelled images per step as there are training images, if there are so many; a multiple of `parts`."""
    size = min(images, batch_size) // parts * parts
    if size < 2:
        raise ConfigError(
            f"config.meta.labels gives {images} images; expected at least {max(2, parts)}, some for each device"
        )
    return size


def with_next(stream: Generator[Batch]) -> Generator[Judged]:
    """Yields each batch with the one after it, which judges it; closing it closes the stream."""
    with contextlib.closing(stream):
        present = None
        for following in stream:
            if present is not None:
                yield Judged(present, following)
            present = following


def with_judges(stream: Generator[Batch], judges: Generator[Batch]) -> Generator[Judged]:
    """Yields batches with those that judge them; closing it closes both streams."""
    with contextlib.closing(stream), contextlib.closing(judges):
        for batch, judge in zip(stream, judges, strict=False):
            yield Judged(batch, judge)
