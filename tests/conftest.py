"""Shared set-up: four forced host devices, so that pmap is real on any machine, and a compiler in a hurry."""

import atexit
import os
import shutil
import tempfile

_FLAGS = (
    "--xla_force_host_platform_device_count=4",
    # Tests compile much and compute little: a training step compiles in a quarter of the time without these.
    "--xla_backend_optimization_level=0",
    "--xla_cpu_use_fusion_emitters=false",
    # The other core has tests of its own to compile: a program in 32 parts, one a thread, takes longer here.
    "--xla_cpu_parallel_codegen_split_count=1",
)
os.environ["XLA_FLAGS"] = " ".join((os.environ.get("XLA_FLAGS", ""), *_FLAGS))
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# The processes of a test run share what they compile: many tests train the same tiny network.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = folder = tempfile.mkdtemp(prefix="metamask_jax_tests_")
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.3"
    atexit.register(shutil.rmtree, folder, ignore_errors=True)

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture
def x64() -> Iterator[None]:
    """Runs a test in double precision, where an exactness claim can be told from rounding."""
    with jax.enable_x64(True):
        yield
