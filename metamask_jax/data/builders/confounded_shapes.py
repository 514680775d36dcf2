"""`confounded_shapes`: the embedded default set, ten shapes among known confounders."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from metamask_jax.data.builders import ConfoundedShapesOptions, base, shapes, textures

_DESCRIPTION = """Ten shapes under rotation, scale and position. Background texture, colours and light are nuisance
factors that two augmented views of one picture share; all factors are stored with it."""


class Builder(base.RecordBuilder):
    """Renders the pictures; nothing is downloaded."""

    name = "confounded_shapes"
    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES = {"1.0.0": "First release."}  # noqa: RUF012 - tfds' own interface
    BUILDER_CONFIGS = [  # noqa: RUF012
        base.Config(name=ConfoundedShapesOptions().config_name, options=ConfoundedShapesOptions())
    ]

    def _info(self) -> tfds.core.DatasetInfo:
        size = self.options.image_size
        features = {
            "image": tfds.features.Image(shape=(size, size, 3), encoding_format="png"),
            "label": tfds.features.ClassLabel(names=shapes.SHAPES),
            "texture": tfds.features.ClassLabel(names=textures.TEXTURES),
        } | dict.fromkeys(shapes.CONTINUOUS, np.float32)
        return tfds.core.DatasetInfo(
            builder=self,
            description=_DESCRIPTION,
            features=tfds.features.FeaturesDict(features),
            supervised_keys=("image", "label"),
        )

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict[str, Any]:
        del dl_manager
        return {
            "train": self._generate_examples(self.options.train_size, stream=0),
            "test": self._generate_examples(self.options.test_size, stream=1),
        }

    def _generate_examples(self, count: int, stream: int) -> Iterator[tuple[int, dict[str, Any]]]:
        options = self.options
        yield from self.encoded(
            shapes.render(count, image_size=options.image_size, strength=options.strength, stream=stream)
        )
