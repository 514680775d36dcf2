"""`--profile START:STOP`."""

import pytest

from metamask_jax.cli.pretrain import main as pretrain_command
from metamask_jax.core.places import to_place
from metamask_jax.errors import ConfigError
from metamask_jax.evaluate.online import pretrain
from metamask_jax.training.profile import Profiler, Steps
from tests.buckets import GoogleBucket
from tests.tiny import tiny_config


@pytest.mark.parametrize("text", ["5", "0:3", "3:2", "a:b", "1:2:3", "-1:2", ":", "1:" + "9" * 5000])
def test_what_is_no_range_of_steps_is_refused(text, tmp_path, capsys):
    assert pretrain_command([f"--workdir={tmp_path / 'run'}", f"--profile={text}"]) == 2
    assert "expected START:STOP with 1 <= START <= STOP" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_sweep_is_not_traced(tmp_path, capsys):
    assert pretrain_command([f"--workdir={tmp_path / 'run'}", "--profile=1:2", "--seeds=2"]) == 2
    assert "expected a single run" in capsys.readouterr().err


class _Trace:
    """Stands for JAX's profiler, which one test below runs: which steps are inside is what is asked here."""

    def __init__(self, monkeypatch):
        self.events = []
        monkeypatch.setattr("jax.profiler.start_trace", lambda folder: self.events.append("start"))
        monkeypatch.setattr("jax.profiler.stop_trace", lambda: self.events.append("stop"))

    def steps(self, profiler, numbers):
        for step in numbers:
            profiler.before(step, ())
            self.events.append(step)
            profiler.after(step, ())


def test_both_ends_are_in_the_trace_and_it_ends_with_the_run_at_the_latest(tmp_path, monkeypatch):
    trace = _Trace(monkeypatch)
    with Profiler(Steps(2, 3), tmp_path) as profiler:
        trace.steps(profiler, range(1, 6))
    assert trace.events == [1, "start", 2, 3, "stop", 4, 5]
    trace.events.clear()
    with Profiler(Steps(2, 9), tmp_path) as profiler:
        trace.steps(profiler, range(1, 4))
    assert trace.events == [1, "start", 2, 3, "stop"]
    trace.events.clear()
    with Profiler(Steps(2, 3), tmp_path) as profiler:  # a run that goes on from a later step
        trace.steps(profiler, range(3, 5))
    assert trace.events == [3, 4]


@pytest.mark.slow
def test_a_trace_is_in_the_workdir_also_in_a_bucket(tmp_path):
    sizes = {"data.options.train_size": "64", "data.options.test_size": "32"}
    config = tiny_config({"train.steps": "4", "eval.k": "5", "data.dir": str(tmp_path / "data")} | sizes)
    bucket = GoogleBucket()
    with bucket.found_by_this_process():
        for workdir in (tmp_path / "run", to_place("gs://runs/profiled")):
            with pytest.raises(ConfigError, match="expected steps up to 4"):
                pretrain(config, workdir, profile=Steps(3, 5))
            assert not workdir.exists()
            pretrain(config, workdir, profile=Steps(2, 3))
            assert len(list(workdir.glob("profile/plugins/profile/*/*.xplane.pb"))) == 1
    bucket.close()
