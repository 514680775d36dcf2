"""Settings of the process: what is kept, measured in a fresh one."""

import os
import subprocess
import sys

import pytest

from metamask_jax.ops import process

PROGRAM = """
import resource, sys
import numpy as np
from metamask_jax.ops.process import keep_freed_memory
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


def test_flags_of_the_user_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "keep_freed_memory", lambda: True)
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=true")
    process.tune_cpu_process()
    assert os.environ["XLA_FLAGS"] == "--xla_cpu_use_fusion_emitters=true"
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_max_isa=AVX2")
    process.tune_cpu_process()
    assert os.environ["XLA_FLAGS"] == "--xla_cpu_max_isa=AVX2 --xla_cpu_use_fusion_emitters=false"
