"""What our builders share."""

import dataclasses
import io
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from PIL import Image


@dataclasses.dataclass
class Config(tfds.core.BuilderConfig):
    """A tfds config that carries the options of the set."""

    options: Any = None


class RecordBuilder(tfds.core.GeneratorBasedBuilder, skip_registration=True):  # type: ignore[call-arg]
    """A builder that writes array_record, which is read at random and written without TensorFlow.

    Subclasses yield encoded pictures as file objects: tfds hands arrays to TensorFlow to encode.

    Attributes:
      remarks: what there is to say of the pictures once tfds' progress bars are gone, which it would tear.
    """

    Config = Config

    def __init__(self, *, file_format: str = "array_record", **kwargs: Any) -> None:
        super().__init__(file_format=file_format, **kwargs)
        self.remarks: list[str] = []

    def encoded(
        self, chunks: Iterable[tuple[np.ndarray, dict[str, np.ndarray]]]
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yields the examples of chunks of images uint8 [chunk, height, width, 3] and of features [chunk] by name."""
        key = 0
        for images, features in chunks:
            for i, image in enumerate(images):
                png = io.BytesIO()
                Image.fromarray(image).save(png, "png")
                png.seek(0)
                yield key, {"image": png, **{name: values[i] for name, values in features.items()}}
                key += 1

    @property
    def options(self) -> Any:
        """The options this set is made with."""
        return self.builder_config.options
