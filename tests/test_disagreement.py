"""Processes that were not started alike: all of them say so, before anything is written."""

import os
import shutil

import pytest

from metamask_jax.version import __version__
from tests.runs import ROOT, assert_refused, free_port, start, start_pair, write_config

SMALL = {"train.steps": "4", "data.options.train_size": "64", "data.options.test_size": "32"}


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    return write_config(tmp_path_factory.mktemp("shared"), SMALL)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ([], ["--config.train.seed=1"], "disagree (train.seed is 0 on process 0 and 1 on process 1)"),
        ([], ["--config.data.options.test_size=31"], "data.options.test_size is 32 on process 0 and 31 on process 1"),
        ([], ["--config.train.batch_size=3"], "config.train.batch_size=3; expected a multiple of 4"),
    ],
)
def test_processes_that_disagree_all_say_so(shared, tmp_path, first, second, message):
    started = start_pair(shared, tmp_path / "run", first, second)
    for process in started:
        _, errors = process.communicate(timeout=120)
        assert_refused(process.returncode, errors, message, tmp_path / "run")


@pytest.mark.slow
def test_processes_of_different_versions_all_say_so(shared, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(ROOT / "metamask_jax", other / "metamask_jax", ignore=shutil.ignore_patterns("__pycache__"))
    (other / "metamask_jax" / "version.py").write_text('__version__ = "0.0.1"\n')
    coordinator, program = f"--coordinator=127.0.0.1:{free_port()}", ("-m", "metamask_jax.cli.pretrain")
    started = [
        start(
            shared,
            tmp_path / "run",
            *(coordinator, "--processes=2", f"--process={i}"),
            program=program,
            environment={"PYTHONPATH": os.pathsep.join(map(str, (*folders, ROOT)))},
        )
        for i, folders in enumerate(((), (other,)))
    ]
    for process in started:
        _, errors = process.communicate(timeout=120)
        message = f"metamask_jax is '{__version__}' on process 0 and '0.0.1' on process 1"
        assert_refused(process.returncode, errors, message, tmp_path / "run")
