"""Memory that a process keeps, measured in a fresh one."""

import subprocess
import sys

import pytest

PROGRAM = """
import resource
import numpy as np
from metamask_jax.kernels.process import keep_freed_memory

def faults():
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        np.ones(2**24)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

before = faults()
assert keep_freed_memory()
print(before, faults())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="of glibc")
def test_memory_that_was_freed_is_not_cleared_again() -> None:
    output = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    before, after = map(int, output.stdout.split())
    assert after < before / 2
