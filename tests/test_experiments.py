"""The experiments at their smallest: every one runs, a grid survives interruption, tables say what they must."""

import contextlib
import io
import json
import os
import pathlib
import shlex
import shutil
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from metamask_jax.cli.experiments import main
from metamask_jax.config import default_config
from metamask_jax.errors import Interrupted
from metamask_jax.evaluate import online
from metamask_jax.evaluate.workdir import load_run
from metamask_jax.experiments import EXPERIMENTS, identity, long_runs, scales
from metamask_jax.experiments import runner as runner_module
from metamask_jax.training.recorder import Recorder

ROOT = pathlib.Path(__file__).parent.parent


def tiny_smoke(method, dataset, encoder):
    """The smoke scale's configuration with an encoder that compiles in seconds."""
    config = scales._smoke(method, dataset, encoder)
    config.plugins = ("tests.tiny",)
    config.encoder.name = "tiny"
    config.meta.estimator = "first_order"  # sooner compiled; experiments about estimators name their own
    return config


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """Runs and data that the tests of this file share."""
    return tmp_path_factory.mktemp("experiments")


@pytest.fixture(scope="session", autouse=True)
def tiny_scale():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(scales.SCALES, "smoke", scales.SCALES["smoke"]._replace(base=tiny_smoke))
        yield


@pytest.fixture(scope="session")
def printed(folder):
    """The commands that F5 prints, and where its cells were run: the first by its command, the rest by the grid's."""
    out = folder / "printed"
    flags = ["F5", "--scale=smoke", f"--out={out}", f"--data_dir={folder / 'data'}"]
    with contextlib.redirect_stdout(io.StringIO()) as text:
        assert main([*flags, "--print-commands"]) == 0
    lines = text.getvalue().splitlines()
    assert main(shlex.split(lines[0])[3:]) == 0
    assert len(list(out.glob("smoke/cells/*/measures/knn.json"))) == 1
    assert main(flags) == 0
    return lines, out


def command(folder, name, *flags):
    return main([name, "--scale=smoke", f"--out={folder / 'out'}", f"--data_dir={folder / 'data'}", *flags])


def test_the_list_has_every_experiment_of_the_paper_and_its_cost(tmp_path, capsys):
    assert main(["list", "--scale=cpu", f"--out={tmp_path}"]) == 0
    printed = capsys.readouterr().out
    ids = ["T1", "T2", "F1a", "F1b", "F2", "F4", "F5", "F6", "T3", "T4", "T5", "T6", "F7", "F8", "TH"]
    assert [line.split()[0] for line in printed.splitlines()[1:16]] == ids
    alphas = next(line.split() for line in printed.splitlines() if line.startswith("F5"))
    assert alphas[1:5] == ["15", "15", f"{15 * 160:,}", "?"]


def test_the_list_takes_its_times_from_finished_runs(tmp_path, monkeypatch, capsys):
    jobs = runner_module.plan(
        EXPERIMENTS["F5"], scales.SCALES["smoke"], seeds=[0], out=tmp_path / "smoke", data_dir="data"
    )
    jobs[0].workdir.mkdir(parents=True)
    (jobs[0].workdir / "result.json").write_text('{"seconds": 60.0}')
    assert main(["list", "--scale=smoke", f"--out={tmp_path}", "--data_dir=data"]) == 0
    alphas = next(line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("F5"))
    assert alphas[1:6] == ["2", "2", "4", "2", "min"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["T9"], "T9; expected list, report, page or one of T1, T2"),
        (["T1", "--scale=huge"], "--scale huge; expected one of full, cpu, day, smoke"),
        (["F8", "--scale=smoke", "--only", "run=Nothing"], "--only run=Nothing; no cell of F8 has these labels"),
        (["F8", "docs/results.md"], "docs/results.md; expected a file only after `page`"),
        (["page"], "page ; expected a Markdown file"),
        (["report", "T9"], "report T9; expected one of T1, T2"),
        (["F8", "--scale=smoke", "--cell", "x"], "--cell x; expected one of SimCLR-seed0"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(flags, message, capsys):
    assert main(flags) == 2
    assert message in capsys.readouterr().err


def test_every_full_scale_cell_is_a_valid_configuration():
    for name, experiment in EXPERIMENTS.items():
        jobs = runner_module.plan(
            experiment, scales.SCALES["full"], seeds=[0], out=pathlib.Path("out"), data_dir="data"
        )
        assert jobs, name


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_runs(name, folder, capsys):
    assert command(folder, name) == 0, capsys.readouterr().err
    written = folder / "out" / "smoke" / name
    text = (written / "README.md").read_text()
    assert "smoke test: two steps" in text
    assert "missing" not in text
    assert (written / "table.csv").read_text().count("\n") >= 2
    for figure in written.glob("*.png"):
        assert f"![{figure.stem}]({figure.name})" in text


def test_a_failed_cell_is_reported_retried_and_does_not_stop_the_rest(folder, printed, tmp_path, monkeypatch, capsys):
    finished = {int(json.loads(path.read_text())["loss"]["alpha"]): path.parent for path in runs_in(printed[1])}

    def by_copy(config, workdir, **how):
        """What training would leave, from the same run elsewhere."""
        shutil.copytree(finished[int(config.loss.alpha)], workdir, ignore=shutil.ignore_patterns("measures"))

    def fail_for_one(config, workdir, **how):
        if config.loss.alpha == 1.0:
            raise RuntimeError("a bad day")
        by_copy(config, workdir, **how)

    shared = ["F5", "--scale=smoke", f"--out={tmp_path}", f"--data_dir={folder / 'data'}"]
    monkeypatch.setattr(online, "pretrain", fail_for_one)
    assert main(shared) == 1
    found = capsys.readouterr()
    assert "failed: MetaMask-1.0-seed0: RuntimeError: a bad day; the same command tries it again" in found.err
    assert "1 of 2 cells are missing" in found.out
    assert "| 100 " in found.out
    monkeypatch.setattr(online, "pretrain", by_copy)
    assert main(shared) == 0
    assert "missing" not in capsys.readouterr().out


def runs_in(out):
    return sorted(out.glob("smoke/cells/*/config.json"))


def test_a_signal_stops_the_grid_and_not_only_its_cell(folder, tmp_path, monkeypatch, capsys):
    started = []

    def interrupted(config, workdir, **how):
        started.append(workdir)
        raise Interrupted(signal.SIGTERM, step=1)

    monkeypatch.setattr(online, "pretrain", interrupted)
    assert main(["F5", "--scale=smoke", f"--out={tmp_path}", f"--data_dir={folder / 'data'}"]) == 128 + signal.SIGTERM
    assert len(started) == 1
    assert "stopped by SIGTERM after step 1; the state is saved" in capsys.readouterr().err


def test_printed_commands_run_one_cell_each(printed):
    lines, out = printed
    assert [shlex.split(line)[:3] for line in lines] == [["python", "-m", "metamask_jax.cli.experiments"]] * 2
    assert len(runs_in(out)) == 2
    assert "missing" not in (out / "smoke" / "F5" / "README.md").read_text()


def test_every_seed_has_a_run_of_its_own(tmp_path):
    jobs = runner_module.plan(EXPERIMENTS["F5"], scales.SCALES["smoke"], seeds=[0, 3], out=tmp_path, data_dir="data")
    assert [(job.config.train.seed, job.config.data.dir) for job in jobs] == [(seed, "data") for seed in (0, 0, 3, 3)]
    assert len({job.workdir for job in jobs}) == 4


def recorded_job():
    """A cell of C1 at the cpu scale: version 0.1.0 kept it in `RECORDED`."""
    cpu = scales.SCALES["cpu"]
    return runner_module.plan(EXPERIMENTS["C1"], cpu, seeds=[0], out=pathlib.Path(), data_dir="data")[0]


RECORDED = "confounded_shapes-conv-simclr-seed0-328a369838"


def test_finished_cells_of_version_0_1_0_are_found():
    assert recorded_job().workdir.name == RECORDED


def test_a_key_that_is_new_changes_a_cells_folder_only_where_it_is_not_the_default(monkeypatch):
    config = recorded_job().config.copy_and_resolve_references().unlock()
    extended = default_config().unlock()
    extended.method.sharpness = None
    extended.train.novelty = 3
    monkeypatch.setattr(identity, "default_config", lambda: extended)
    config.update({"method": {"sharpness": None}, "train": {"novelty": 3}})
    assert identity.folder_name(config) == RECORDED
    config.train.novelty = 4
    assert identity.folder_name(config) != RECORDED


@pytest.mark.slow
def test_a_killed_grid_loses_no_finished_cell_and_gives_the_same_table(folder, tmp_path):
    script = "import sys, tests.test_experiments as t; from metamask_jax.experiments import scales\n"
    script += "from metamask_jax.cli import experiments as m\n"
    script += (
        "scales.SCALES['smoke'] = scales.SCALES['smoke']._replace(base=t.tiny_smoke)\nsys.exit(m.main(sys.argv[1:]))"
    )

    def start(out):
        flags = ["F5", "--scale=smoke", "--seeds=2", f"--out={out}", f"--data_dir={folder / 'data'}"]
        return subprocess.Popen(
            [sys.executable, "-c", script, *flags], cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}
        )

    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert start(whole).wait(timeout=300) == 0
    process = start(broken)
    while len(finished := sorted(broken.glob("smoke/cells/*/measures/knn.json"))) < 2:
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    times = {path: path.stat().st_mtime_ns for path in finished}
    assert start(broken).wait(timeout=300) == 0
    assert {path: path.stat().st_mtime_ns for path in finished} == times
    table = "smoke/F5/table.csv"
    assert (broken / table).read_text() == (whole / table).read_text()


def test_what_was_measured_of_a_finished_cell_outlives_its_workdir(tmp_path, monkeypatch, capsys):
    def plan(folder):
        return runner_module.plan(
            EXPERIMENTS["F5"],
            scales.SCALES["smoke"],
            seeds=[0],
            out=tmp_path / folder,
            data_dir="data",
            keep=tmp_path / "kept",
        )

    first, second = plan("out")
    for job, accuracy in ((first, 0.25), (second, 0.5)):
        job.write("knn", {"accuracy": accuracy, "masked": None})
    first.keep()
    again = plan("elsewhere")
    assert [job.missing() for job in again] == [[], ["knn"]]
    (found,) = runner_module.collect(again).items
    assert found.values == {"knn.accuracy": 0.25, "knn.masked": None}
    again[0].write("knn", {"accuracy": 0.75})  # measured anew, which counts
    assert again[0].values()["knn"] == {"accuracy": 0.75}


def test_a_report_of_one_scale_leaves_the_tables_of_others_alone(tmp_path, capsys):
    tables, kept = tmp_path / "tables", tmp_path / "kept"
    flags = [f"--out={tmp_path / 'out'}", f"--tables={tables}", f"--keep={kept}", "--data_dir=data", "--seeds=1"]
    accuracies = {"smoke": 0.25, "cpu": 0.75}
    for scale, accuracy in accuracies.items():
        jobs = runner_module.plan(
            EXPERIMENTS["F5"], scales.SCALES[scale], seeds=[0], out=tmp_path, data_dir="data", keep=kept / scale
        )
        jobs[0].write("knn", {"accuracy": accuracy, "masked": accuracy})
        jobs[0].keep()
        others = {path: path.read_bytes() for path in tables.rglob("*") if path.is_file()}
        assert main(["report", f"--scale={scale}", *flags]) == 0
        assert f"written to {tables / scale / 'F5'}" in capsys.readouterr().out
        assert others == {path: path.read_bytes() for path in others}
    for scale, accuracy in accuracies.items():
        assert f"{100 * accuracy:.2f} (1)" in (tables / scale / "F5" / "table.csv").read_text()
    assert {path.name for path in tables.iterdir()} == set(accuracies)
    assert main(["report", "T1", "--scale=cpu", *flags]) == 0
    assert "F5" not in capsys.readouterr().out


def test_a_long_run_that_breaks_off_goes_on_bit_for_bit(folder, tmp_path, monkeypatch, capsys):
    def longer(*cell):
        config = tiny_smoke(*cell)
        config.train.steps, config.checkpoint.every_steps = 6, 2
        config.eval.every_epochs = 1
        return config

    def run(out):
        flags = ["--only=run=SimCLR", f"--out={out}", f"--data_dir={folder / 'data'}"]
        return main(["D", "--scale=smoke", *flags])

    def breaks_off(recorder, step, *args, **how):
        if step == 4:  # of which nothing is written, so that the checkpoint after step 2 counts
            raise RuntimeError("the lights went out")
        after(recorder, step, *args, **how)

    after = Recorder.after
    monkeypatch.setitem(scales.SCALES, "smoke", scales.SCALES["smoke"]._replace(base=longer))
    monkeypatch.setattr(long_runs, "_MEASURES", ("curve",))
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert run(whole) == 0
    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "after", breaks_off)
        assert run(broken) == 1
    assert "the lights went out; the same command tries it again" in capsys.readouterr().err
    assert run(broken) == 0
    states = [load_run(next(out.glob("smoke/cells/*"))).state for out in (whole, broken)]
    jax.tree.map(np.testing.assert_array_equal, *states)
    measured = "smoke/cells/*/measures/curve.json"
    assert next(broken.glob(measured)).read_text() == next(whole.glob(measured)).read_text()
