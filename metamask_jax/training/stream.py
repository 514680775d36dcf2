"""The batches of a run, as a function of the step they begin with."""

from collections.abc import Generator
from functools import partial

import jax
from ml_collections import ConfigDict

from metamask_jax.core.state import Judged, Pair
from metamask_jax.data.judging import at_hand, judge_batch_size, judge_seed, labelled_images, with_judges, with_next
from metamask_jax.data.loader import Batch, batches, prefetch, with_previous
from metamask_jax.data.sources import Source
from metamask_jax.data.splits import configured_splits
from metamask_jax.training import distributed
from metamask_jax.training.state import has_judge, looks_ahead


def labelled_source(config: ConfigDict) -> Source:
    """The labelled images that may judge the mask: never any that features are tested on."""
    return labelled_images(configured_splits(config.data), amount=config.meta.labels, seed=config.train.seed)


def batch_stream(
    config: ConfigDict, source: Source, *, start_step: int, total_steps: int
) -> Generator[Batch | Pair | Judged]:
    """This process's share of the batches after step `start_step`, already on its way to the devices."""
    slices = partial(
        batches, process_index=jax.process_index(), process_count=jax.process_count(), start_step=start_step
    )
    ahead = partial(prefetch, depth=config.data.prefetch, transfer=partial(jax.tree.map, distributed.to_devices))
    common = {"seed": config.train.seed, "batch_size": config.train.batch_size}
    steps = total_steps - start_step
    if looks_ahead(config):
        first = max(0, start_step - 1)
        stream = ahead(slices(source, **common | {"start_step": first}, num_steps=total_steps - first))
        return with_previous(stream, from_start=start_step == 0)
    if not has_judge(config):
        return ahead(slices(source, **common, num_steps=steps))
    if config.meta.outer == "next":
        return with_next(ahead(slices(source, **common, num_steps=steps + 1)))
    return with_judges(ahead(slices(source, **common, num_steps=steps)), _judges(config, slices, ahead, steps))


def _judges(config: ConfigDict, slices: partial, ahead: partial, steps: int) -> Generator[Batch]:
    """Labelled images, in an order of their own."""
    labelled = at_hand(labelled_source(config))
    size = judge_batch_size(
        len(labelled), batch_size=config.train.batch_size, parts=jax.device_count() * config.train.accumulate
    )
    judges: Generator[Batch] = ahead(
        slices(labelled, seed=judge_seed(config.train.seed), batch_size=size, num_steps=steps)
    )
    return judges
