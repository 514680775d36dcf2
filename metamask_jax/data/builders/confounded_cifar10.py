"""`confounded_cifar10`: the pictures of CIFAR-10 among known confounders."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from metamask_jax.data import pictures, prepared
from metamask_jax.data.builders import ConfoundedCifar10Options, base, confounders, textures
from metamask_jax.errors import DataError

_DESCRIPTION = """The pictures of CIFAR-10 behind a veil of coloured texture, in uneven light. Both are nuisance
factors that two augmented views of one picture share and that say nothing about the class; all factors are stored."""
_SPLITS = ("train", "test")


class Builder(base.RecordBuilder):
    """Reads CIFAR-10 as it is prepared in the same folder; nothing is downloaded."""

    name = "confounded_cifar10"
    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES = {"1.0.0": "First release."}  # noqa: RUF012 - tfds' own interface
    BUILDER_CONFIGS = [  # noqa: RUF012
        base.Config(name=ConfoundedCifar10Options().config_name, options=ConfoundedCifar10Options())
    ]

    def _info(self) -> tfds.core.DatasetInfo:
        plain = self._records("train").features
        features = {
            "image": tfds.features.Image(shape=(*(plain.image_size or ()), 3), encoding_format="png"),
            "label": tfds.features.ClassLabel(names=plain.class_names),
            "texture": tfds.features.ClassLabel(names=textures.TEXTURES),
        } | dict.fromkeys(confounders.CONTINUOUS, np.float32)
        return tfds.core.DatasetInfo(
            builder=self,
            description=_DESCRIPTION,
            features=tfds.features.FeaturesDict(features),
            supervised_keys=("image", "label"),
        )

    def _records(self, split: str) -> prepared.Records:
        found = prepared.find(self.options.needs, str(self._data_dir_root))
        if found is None:
            raise DataError(f"{self.options.needs!r} is not prepared in data_dir={str(self._data_dir_root)!r}")
        return prepared.Records(found, split)

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict[str, Any]:
        del dl_manager
        return {split: self._generate_examples(split, stream) for stream, split in enumerate(_SPLITS)}

    def _generate_examples(self, split: str, stream: int) -> Iterator[tuple[int, dict[str, Any]]]:
        records = self._records(split)
        read = records.read(range(len(records)))
        labels = iter([records.label(record) for record in read])
        plain = (np.asarray(pictures.decode(records.value(r, records.features.image_key), split)) for r in read)
        veiled = confounders.confound(plain, len(records), strength=self.options.strength, stream=stream)
        yield from self.encoded(
            (images, factors | {"label": np.array([next(labels) for _ in images])}) for images, factors in veiled
        )
