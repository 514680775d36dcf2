"""Working directories written before the package was divided into rooms still load, and training goes on in them.

fixtures/workdirs_0.1.0.zip was written by commit 8a7ba04: three steps of a narrow `conv` encoder, SimCLR with the exact
meta-gradient and MoCo by lookahead. The sums below are those that commit found when it read them back.
"""

import pathlib
import zipfile

import jax
import numpy as np
import pytest

from metamask_jax.evaluate.online import pretrain
from metamask_jax.evaluate.workdir import load_run
from metamask_jax.training.checkpoint import Checkpoints
from metamask_jax.training.state import init_state

ARCHIVE = pathlib.Path(__file__).parent / "fixtures" / "workdirs_0.1.0.zip"
SUMS = {"exact": 42819.5816811504, "lookahead": 55774.56834972308}  # of the magnitudes of all numbers in the state


@pytest.fixture
def old(tmp_path):
    with zipfile.ZipFile(ARCHIVE) as archive:
        archive.extractall(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", SUMS)
def test_an_old_state_is_read_whole(old, name):
    run = load_run(old / name)
    found = sum(np.abs(np.asarray(leaf, np.float64)).sum() for leaf in jax.tree.leaves(run.state))
    assert run.step == 3
    assert found == pytest.approx(SUMS[name], rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", SUMS)
def test_an_old_run_goes_on(old, name):
    config = load_run(old / name).config.copy_and_resolve_references()
    config.train.steps, config.data.dir = 5, str(old / "data")
    pretrain(config, old / name, accept_changes=True)  # it is longer than it was meant to be
    state = Checkpoints.for_reading(old / name / "checkpoints").restore(init_state(config), step=5).state
    assert (int(state.step), int(state.skipped)) == (5, 0)
