"""What our builders share."""

import dataclasses
from typing import Any

import tensorflow_datasets as tfds


@dataclasses.dataclass
class Config(tfds.core.BuilderConfig):
    """A tfds config that carries the options of the set."""

    options: Any = None


class RecordBuilder(tfds.core.GeneratorBasedBuilder, skip_registration=True):  # type: ignore[call-arg]
    """A builder that writes array_record, which is read at random and written without TensorFlow.

    Subclasses yield encoded pictures as file objects: tfds hands arrays to TensorFlow to encode.
    """

    Config = Config

    def __init__(self, *, file_format: str = "array_record", **kwargs: Any) -> None:
        super().__init__(file_format=file_format, **kwargs)

    @property
    def options(self) -> Any:
        """The options this set is made with."""
        return self.builder_config.options
