"""What the diagnostics look at: the features of a pretrained run, computed when first asked for."""

import dataclasses
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from metamask_jax.data.arrays import ArraySource
from metamask_jax.data.augment import PRESETS
from metamask_jax.data.sources import Source, open_configured
from metamask_jax.evaluate.features import make_extractor
from metamask_jax.evaluate.workdir import Run, features
from metamask_jax.models import ProjectionHead

_VIEWED = 2048  # images that are augmented: a set of large ones would not fit into memory


@dataclasses.dataclass(frozen=True)
class Subject:
    """A run and what to look at it with.

    Attributes:
      run: the run.
      size: at most this many images of either labelled split.
      classifier: `knn` or `linear`, which judges masked features.
      trials: masks a rate.
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
        return features(self.run, self._open("train"))

    @cached_property
    def test(self) -> tuple[np.ndarray, np.ndarray]:
        """Features [test, dim] and labels [test]."""
        return features(self.run, self._source)

    @property
    def has_labels(self) -> bool:
        """Whether the test images have classes."""
        return self.num_classes > 0 and bool(self.test[1].min() >= 0)

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
        config, state = self.run.config, self.run.state
        specs = PRESETS[config.data.augmentation](config.data.image_size)
        images, _ = self._source.gather(np.arange(min(_VIEWED, len(self._source))))
        return np.stack(
            [
                make_extractor(config, view=specs[view % len(specs)], seed=config.train.seed)(
                    state.params, state.batch_stats, images, draw=view
                )
                for view in range(2)
            ]
        )

    @cached_property
    def head(self) -> ProjectionHead | None:
        """The projection head g of the method, if its parameters are those of one such head."""
        config = self.run.config
        head = ProjectionHead(widths=config.method.head, last_norm=True, dtype="float32", axis_name=None)
        like = jax.eval_shape(partial(head.init, train=False), jax.random.key(0), jnp.zeros((2, len(self.weights))))
        return head if _shapes(like["params"]) == _shapes(self.run.state.params["method"]) else None

    def project(self, h: np.ndarray) -> np.ndarray:
        """Projections g(h) [..., out] of (masked) features [..., dim] in inference mode; h itself without a head."""
        if self.head is None:
            return h
        state = self.run.state
        variables = {"params": state.params["method"], "batch_stats": state.batch_stats["method"]}
        flat = h.reshape(-1, h.shape[-1])
        return np.asarray(self.head.apply(variables, flat, train=False)).reshape(*h.shape[:-1], -1)

    @cached_property
    def _source(self) -> Source:
        return self._open("test")

    def _open(self, split: str) -> Source:
        source = open_configured(self.run.config.data, split=split)
        return source.first(min(self.size, len(source)))


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    return {jax.tree_util.keystr(path): leaf.shape for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}
