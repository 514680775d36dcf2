"""Shared set-up: four forced host devices, so that pmap is real on any machine."""

import os

os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"
os.environ.setdefault("JAX_PLATFORMS", "cpu")

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture
def x64() -> Iterator[None]:
    """Runs a test in double precision, where an exactness claim can be told from rounding."""
    with jax.enable_x64(True):
        yield
