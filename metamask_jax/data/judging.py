"""The images that judge the mask: those of the next step, or a few labelled ones."""

import contextlib
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from metamask_jax.core.state import Judged
from metamask_jax.data.in_memory import ArraySource
from metamask_jax.data.loader import Batch
from metamask_jax.data.sources import Source
from metamask_jax.data.splits import Splits
from metamask_jax.data.subsets import stratified_subset
from metamask_jax.errors import ConfigError

# Sets the choice and the order of the labelled images apart from the order of training.
_SEED = 0x6A7564
_FEW = 2**28  # bytes of pictures that are kept in memory


def labelled_images(splits: Splits, *, amount: float, seed: int) -> Source:
    """A random part of the labelled pictures, drawn class by class: the same for the same seed.

    Args:
      splits: of the set; those that features are tested on, held out or of a test split, are left alone.
      amount: how many images, or up to one which share of them.
      seed: of the run.
    """
    source = splits.train
    if not splits.labelled:
        raise ConfigError(
            f"config.meta.outer='labels' on {source.name!r}; expected a labelled set of two classes or more"
        )
    if amount > len(source):
        raise ConfigError(f"config.meta.labels={amount:g}; expected at most {len(source)}, the labelled images")
    return source.take(judge_rows(source.labels, amount=amount, seed=seed))


def at_hand(source: Source) -> Source:
    """The same pictures, decoded once and for all where they are few, because they come again and again."""
    if isinstance(source, ArraySource) or len(source) * 3 * source.streaming.image_size**2 > _FEW:
        return source
    with ThreadPoolExecutor(source.streaming.threads) as workers:
        images, labels = source.gather(np.arange(len(source)), workers.map)
    return ArraySource(
        name=source.name,
        images=images,
        labels=labels,
        num_classes=source.num_classes,
        class_names=source.class_names,
        factors={},
    )


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
