"""Memory that a process keeps, measured in a fresh one."""

import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
import numpy as np
from metamask_jax.kernels.process import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
faults = []
for _ in range(3):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.ones(2**24)
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(faults[-1])
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="of glibc")
def test_memory_that_was_freed_is_not_cleared_again() -> None:
    def faults(mode: str) -> int:
        output = subprocess.run([sys.executable, "-c", PROGRAM, mode], capture_output=True, text=True, check=True)
        return int(output.stdout)

    assert faults("keep") < faults("default") / 2
