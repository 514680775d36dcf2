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

from collections.abc import Callable, Iterator
from typing import Any

import jax
import pytest


@pytest.fixture
def x64() -> Iterator[None]:
    """Runs a test in double precision, where an exactness claim can be told from rounding."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module", params=["gs", "s3"])
def bucket(request) -> Iterator[Any]:
    """An empty bucket of each kind, in an emulator that this process finds."""
    from tests.buckets import AmazonBucket, GoogleBucket

    found = {"gs": GoogleBucket, "s3": AmazonBucket}[request.param]()
    with found.found_by_this_process():
        yield found
    found.close()


@pytest.fixture
def cases(record_property) -> Iterator[Callable[[int], None]]:
    """Counts the bad inputs that a test tries; the last lines of a test run say how many there were."""
    counted: list[int] = []
    yield counted.append
    record_property("cases", sum(counted))


def pytest_terminal_summary(terminalreporter) -> None:
    reports = (report for report in terminalreporter.getreports("") if getattr(report, "when", None) == "teardown")
    tried = sum(dict(report.user_properties).get("cases", 0) for report in reports)
    if tried:
        terminalreporter.write_line(f"{tried} bad inputs were tried")
