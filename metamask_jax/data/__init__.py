"""Data: sources of pictures, their order as a function of the step, and batches for each process.

Nothing here imports TensorFlow, and tfds is imported only where a set is opened for the first time.
"""

from metamask_jax.data.loader import Batch, batches, prefetch
from metamask_jax.data.order import batch_indices, steps_per_epoch
from metamask_jax.data.sources import ArraySource, Source, StreamSource, open_source
from metamask_jax.errors import DataError

__all__ = [
    "ArraySource",
    "Batch",
    "DataError",
    "Source",
    "StreamSource",
    "batch_indices",
    "batches",
    "open_source",
    "prefetch",
    "steps_per_epoch",
]
