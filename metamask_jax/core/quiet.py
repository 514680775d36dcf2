"""Libraries that warn of what is meant: their warnings are kept out of our users' notebooks and logs."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_warnings() -> Iterator[None]:
    """Keeps warnings of tfds and Orbax, which log through absl, to themselves; errors are told."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(max(level, logging.ERROR))
    try:
        yield
    finally:
        logger.setLevel(level)
