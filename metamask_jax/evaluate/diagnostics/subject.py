"""What the diagnostics look at: the features of a pretrained run, computed when they are first needed."""

import dataclasses
from functools import cached_property
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from metamask_jax.augment import Augmentation, CustomViews, ViewSpec
from metamask_jax.data.in_memory import ArraySource
from metamask_jax.data.sources import Source
from metamask_jax.data.splits import Splits, configured_splits
from metamask_jax.evaluate.features import make_extractor
from metamask_jax.evaluate.workdir import Run, features
from metamask_jax.models import ProjectionHead
from metamask_jax.training.registry import Registry

_VIEWED = 2048  # images that are augmented: a set of large ones would not fit into memory
_VIEWED_MANY_TIMES, _MANY = 1000, 10  # and those of which LiDAR sees many views


@dataclasses.dataclass(frozen=True)
class Subject:
    """A run and how to look at it.

    Attributes:
      run: the run.
      size: at most this many images of either labelled split.
      classifier: `knn` or `linear`, which judges masked features.
      trials: random masks per rate.
    """

    run: Run
    size: int
    classifier: str
    trials: int

    @property
    def weights(self) -> np.ndarray:
        """The mask's weights [dim]."""
        return self.run.mask_weights

    @cached_property
    def train(self) -> tuple[np.ndarray, np.ndarray]:
        """Features [train, dim] and labels [train]."""
        return features(self.run, self.open("train"))

    @cached_property
    def test(self) -> tuple[np.ndarray, np.ndarray]:
        """Features [test, dim] and labels [test]."""
        return features(self.run, self._source)

    @property
    def has_labels(self) -> bool:
        """Whether the images have classes to tell apart."""
        return self._splits.labelled and bool(self.test[1].min() >= 0)

    @property
    def num_classes(self) -> int:
        """Number of classes; 0 without labels."""
        return self._source.num_classes

    @property
    def class_names(self) -> tuple[str, ...]:
        """Their names."""
        return self._source.class_names

    @property
    def factors(self) -> dict[str, np.ndarray]:
        """Known nuisance factors of the test images, [test] each, by name; those that do not vary are left out."""
        if not isinstance(self._source, ArraySource):
            return {}
        return {name: values for name, values in self._source.factors.items() if np.ptp(values) > 0}

    @cached_property
    def views(self) -> np.ndarray:
        """Features [2, count, dim] of two augmented views of the first test images."""
        return self._augmented(views=2, size=_VIEWED)

    @cached_property
    def many_views(self) -> np.ndarray:
        """Features [10, count, dim] of augmented views of the first test images, as LiDAR takes them."""
        return self._augmented(views=_MANY, size=_VIEWED_MANY_TIMES)

    def _augmented(self, *, views: int, size: int) -> np.ndarray:
        config, state = self.run.config, self.run.state
        images, _ = self._source.gather(np.arange(min(size, len(self._source))))
        extractors = [
            make_extractor(config, view=view, seed=config.train.seed, registry=self.run.registry)
            for view in training_views(config, self.run.registry)
        ]
        extract = (extractors[i % 2] for i in range(views))
        return np.stack([f(state.params, state.batch_stats, images, draw=i) for i, f in enumerate(extract)])

    @property
    def has_head(self) -> bool:
        """Whether the method has a projection head."""
        return self._head is not None

    def project(self, h: np.ndarray) -> np.ndarray:
        """Projections g(h) [..., out] of (masked) features [..., dim] in inference mode; h itself without a head."""
        if self._head is None:
            return h
        head, variables = self._head
        flat = h.reshape(-1, h.shape[-1])
        return np.asarray(head.apply(variables, flat, train=False)).reshape(*h.shape[:-1], -1)

    @cached_property
    def _head(self) -> tuple[ProjectionHead, dict[str, Any]] | None:
        """The projection head with its parameters, which are the method's only ones or those under "head"."""
        params, batch_stats = (
            tree["method"].get("head", tree["method"]) for tree in (self.run.state.params, self.run.state.batch_stats)
        )
        layers = sum(name.startswith("fc") for name in params)
        if layers == 0 or not all(name.startswith(("fc", "bn")) for name in params):
            return None
        widths = tuple(params[f"fc{i}"]["kernel"].shape[1] for i in range(1, layers + 1))
        head = ProjectionHead(widths=widths, last_norm=f"bn{layers}" in params, dtype="float32", axis_name=None)
        return head, {"params": params, "batch_stats": batch_stats}

    def open(self, split: str) -> Source:
        """The images of a labelled split, `train` or `test`."""
        source = self._splits.train if split == "train" else self._splits.test
        return source.first(min(self.size, len(source)))

    @cached_property
    def _splits(self) -> Splits:
        return configured_splits(self.run.config.data)

    @cached_property
    def _source(self) -> Source:
        return self.open("test")


def training_views(config: ConfigDict, registry: Registry) -> list[ViewSpec | Augmentation]:
    """The first two views that training showed of an image; one that the augmentation repeats appears twice."""
    views = registry.augmentations[config.data.augmentation](config.data.image_size)
    if isinstance(views, CustomViews):
        full = views.full
        return [lambda images, keys, i=i: full(images, keys)[i : i + 1] for i in range(2)]  # type: ignore[misc]
    return [views[i % len(views)] for i in range(2)]
