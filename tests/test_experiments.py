"""The experiments at their smallest: every one runs, a grid survives interruption, tables say what they must."""

import contextlib
import io
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from scipy.stats import spearmanr

from metamask_jax.cli.experiments import main
from metamask_jax.config import default_config
from metamask_jax.errors import Interrupted
from metamask_jax.evaluate import online
from metamask_jax.experiments import EXPERIMENTS, identity, scales
from metamask_jax.experiments import runner as runner_module
from metamask_jax.experiments.base import Result, Results, Table
from metamask_jax.experiments.output import comma_separated, comparison, markdown
from metamask_jax.experiments.page import refreshed, tables_in
from metamask_jax.experiments.statistics import (
    Difference,
    detectable,
    difference_text,
    holm,
    mean_text,
    paired_difference,
)
from metamask_jax.reporting import plots

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
        (["T1", "--scale=huge"], "--scale huge; expected one of full, cpu, smoke"),
        (["F8", "--scale=smoke", "--only", "run=Nothing"], "--only run=Nothing; no cell of F8 has these labels"),
        (["F8", "docs/results.md"], "docs/results.md; expected a file only after `page`"),
        (["page"], "page ; expected a Markdown file"),
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


def test_differences_are_paired_by_seed_and_carry_their_noise():
    values, base = {0: 0.50, 1: 0.60, 2: 0.70, 9: 0.0}, {0: 0.40, 1: 0.50, 2: 0.60}
    constant = paired_difference(values, base)
    assert constant.mean == pytest.approx(0.1)
    assert constant.half_width == pytest.approx(0.0, abs=1e-12)
    assert constant.pairs == 3
    noisy = paired_difference({0: 0.5, 1: 0.3}, {0: 0.4, 1: 0.4})
    assert noisy.half_width == pytest.approx(12.706 * np.std([0.1, -0.1], ddof=1) / np.sqrt(2), rel=1e-4)
    assert not noisy.beyond_noise
    assert difference_text(noisy).endswith("within noise")
    assert difference_text(Difference(0.02, 0.01, 3)) == "+2.00 [+1.00, +3.00]"
    assert mean_text({0: 0.5, 1: 0.7}) == "60.00 ± 14.14 (2)"


def test_a_comparison_shows_the_papers_number_and_the_difference_to_the_base():
    results = Results(
        [Result({"run": run}, seed, {"q": v + seed / 100}) for run, v in (("a", 0.5), ("b", 0.6)) for seed in range(3)]
    )
    table = comparison(results, caption="", by="run", names={"b": "B"}, base="a", quantity="q", paper={"b": 86.01})
    assert table.rows[0] == ("a", "51.00 ± 1.00 (3)", "", "")
    assert table.rows[1] == ("B", "61.00 ± 1.00 (3)", "+10.00 [+10.00, +10.00]", "86.01")


def test_a_bar_in_a_cell_does_not_end_the_cell():
    text = markdown(Table("", ("", "|correlation|"), [("a | b", "0.5"), ("c", "0.25")]))
    assert [len(re.findall(r"(?<!\\)\|", line)) for line in text.splitlines()] == [3] * 4
    assert r"\|correlation\|" in text
    values = {"correlation.mean_absolute_off_diagonal": 0.5, "classes.mean_strongest": 1.0}
    values["classes.class_dimension_map"] = [[0.0, 1.0], [1.0, 0.0]]
    (table,) = EXPERIMENTS["F1a"].report(Results([Result({"run": "SimCLR"}, 0, values)])).tables
    assert [len(re.findall(r"(?<!\\)\|", line)) for line in markdown(table).splitlines()] == [4] * 3


@pytest.mark.parametrize("seeds", [(0,), (0, 1, 2), (3, 8)])
def test_dots_stand_around_the_tick_of_their_encoder(seeds):
    values = {"random_masks.rates": [0.0, 0.05, 0.05], "random_masks.accuracies": [0.5, 0.4, 0.6]}
    results = Results([Result({"encoder": name}, seed, values) for name in ("weak", "strong") for seed in seeds])
    (axis,) = EXPERIMENTS["F6"].report(results).figures["weak_strong"].axes
    assert [label.get_text() for label in axis.get_xticklabels()] == ["weak", "strong"]
    for tick, color in zip(axis.get_xticks(), (plots.BLUE, plots.ORANGE), strict=True):
        places = [line.get_xdata() for line in axis.lines if line.get_color() == color]
        assert len({float(place[0]) for place in places}) == len(seeds)
        assert np.mean(places) == pytest.approx(tick)


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


def test_adjusted_p_values_are_holms_and_the_detectable_difference_is_found_as_often_as_it_says():
    from scipy.stats import ttest_rel

    random = np.random.default_rng(0)
    values, base = random.normal(size=(2, 8))
    found = paired_difference(dict(enumerate(values)), dict(enumerate(base)))
    assert found.p == pytest.approx(ttest_rel(values, base).pvalue)
    assert holm([0.01, 0.02, 0.5, 0.9]) == pytest.approx([0.04, 0.06, 1.0, 1.0])
    samples = random.normal(loc=detectable(2.0, 8), scale=2.0, size=(1000, 8))
    shares = [paired_difference(dict(enumerate(row)), dict.fromkeys(range(8), 0.0)).p < 0.05 for row in samples]
    assert np.mean(shares) == pytest.approx(0.8, abs=0.04)


def test_the_table_of_judges_compares_masked_features_with_none_and_adjusts_for_their_number():
    runs = ("no mask", "the same batch (the paper's)", "labels of 5 %")
    gains = {"no mask": 0.0, "the same batch (the paper's)": -0.01, "labels of 5 %": 0.02}
    items = []
    for run in runs:
        for seed in range(5):
            noise = 0.001 * ((seed * 7 + len(run)) % 5)
            values = {"knn.accuracy": 0.4, "knn.masked": 0.4 + gains[run] + noise, "linear.accuracy": 0.5}
            values |= {"mask.std": 0.1, "agreement.auc": 0.7, "agreement.auc_chance": 0.04, "agreement.dominated": 200}
            values |= {"agreement.with_difference": None, "few_labels.masked": 0.3, "few_labels.probe": 0.35}
            for share in (0.01, 0.05, 1.0):
                for name in ("fitted", "few", "few_fitted", "probe"):
                    values[f"rivals.{name}_{share:g}"] = 0.41
            items.append(Result({"dataset": "confounded_shapes", "run": run}, seed, values))
    report = EXPERIMENTS["J"].report(Results(items))
    accuracy, found, few = report.tables
    by_name = {row[0]: row for row in accuracy.rows}
    assert by_name["labels of 5 %"][4].startswith("+2.")
    assert float(by_name["labels of 5 %"][5]) < 0.001
    assert by_name["mask fitted afterwards, labels of 5%"][4] == "+1.00 [+1.00, +1.00]"
    assert found.rows[1][3] == "0.70 ± 0.00 (5)"
    assert few.rows[3] == ("mask learned with these labels, kNN", "", "30.00 ± 0.00 (5)", "")
    assert len(report.figures["judges"].axes) == 1


def test_the_page_of_results_shows_the_tables_as_they_are(tmp_path, capsys):
    page, results = ROOT / "docs" / "results.md", ROOT / "docs" / "results"
    text = page.read_text()
    assert refreshed(text, results) == text, "run `python -m metamask_jax.cli.experiments page docs/results.md`"
    shown = set(tables_in(text))
    assert shown == {str(path.relative_to(results)) for path in results.glob("*/table*.csv")}

    shutil.copytree(results, tmp_path / "results", ignore=shutil.ignore_patterns("*.png", "cells"))
    (tmp_path / "results.md").write_text(re.sub(r"\d\d\.\d\d", "12.34", text))
    assert main(["page", str(tmp_path / "results.md")]) == 0
    assert "is up to date now" in capsys.readouterr().out
    blocks = re.compile(r"<!-- table .*?<!-- end -->", re.DOTALL)
    assert blocks.findall((tmp_path / "results.md").read_text()) == blocks.findall(text)
    (tmp_path / "results" / "T1" / "table.csv").unlink()
    assert main(["page", str(tmp_path / "results.md")]) == 2
    assert "T1/table.csv is not in" in capsys.readouterr().err


def test_tables_of_kept_cells_are_those_that_the_cells_give(tmp_path):
    """The study of judges: its table is made again from what is kept of every cell."""
    kept, shown = ROOT / "docs" / "results" / "cells", ROOT / "docs" / "results" / "J"
    if not shown.exists():
        pytest.skip("no cell of J is kept yet")
    jobs = runner_module.plan(
        EXPERIMENTS["J"], scales.SCALES["cpu"], seeds=range(8), out=tmp_path, data_dir="data", keep=kept / "cpu"
    )
    tables = EXPERIMENTS["J"].report(runner_module.collect(jobs)).tables
    made = {f"table{number or ''}.csv": comma_separated(table) for number, table in enumerate(tables)}
    assert made == {path.name: path.read_text() for path in shown.glob("*.csv")}


def test_measures_are_ranked_by_how_they_rank_the_runs() -> None:
    random = np.random.default_rng(0)
    items = []
    for i, name in enumerate("abcdefghij"):
        noise = {"effective_rank": 10.0 + i, "lidar": float(random.normal()), "alpha_req": 1.0 + 0.1 * i}
        values = {f"spectrum.{key}": {"unmasked": value} for key, value in noise.items()}
        values |= {"alignment.unmasked": {"alignment": 0.0, "uniformity": 0.1 * i}, "knn.accuracy": i / 20}
        items.append(Result({"run": name}, 0, values | {"linear.accuracy": 0.2 + 0.01 * i}))
    correlations, runs = EXPERIMENTS["L"].report(Results(items)).tables
    found = {name: (spearman, kendall) for name, spearman, kendall in correlations.rows}
    assert found["RankMe"] == ("+1.00 [+1.00, +1.00]", "+1.00")
    assert found["alpha-ReQ, near 1"][1] == "-1.00"
    assert found["uniformity"][1] == "-1.00"
    assert found["alignment"] == ("+nan [+nan, +nan]", "+nan")
    expected = spearmanr([item.values["spectrum.lidar"]["unmasked"] for item in items], np.arange(10)).statistic
    assert found["LiDAR"][0].startswith(f"{expected:+.2f} [")
    assert [row[:2] for row in runs.rows][:2] == [("a", "20.00 (1)"), ("b", "21.00 (1)")]
