"""What the experiments show: tables and figures made of given numbers, and the page of results made of the tables."""

import pathlib
import re
import shutil

import numpy as np
import pytest
from scipy.stats import spearmanr

from metamask_jax.cli.experiments import main
from metamask_jax.config import differences, load_config
from metamask_jax.experiments import EXPERIMENTS, scales
from metamask_jax.experiments import runner as runner_module
from metamask_jax.experiments.base import Result, Results, Table
from metamask_jax.experiments.output import comma_separated, comparison, markdown
from metamask_jax.experiments.page import refreshed, tables_in
from metamask_jax.experiments.statistics import (
    Difference,
    adjusted_p,
    detectable,
    difference_text,
    holm,
    mean_text,
    paired_difference,
)
from metamask_jax.reporting import plots

ROOT = pathlib.Path(__file__).parent.parent


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


def test_a_comparison_of_a_single_seed_does_not_worsen_the_others():
    """It has no p-value, so it is no member of Holm's family."""
    tested = {"a": Difference(0.02, 0.01, 3, p=0.01), "b": Difference(0.01, 0.02, 3, p=0.04)}
    single = {"c": paired_difference({0: 0.5}, {0: 0.4}), "d": paired_difference({}, {0: 0.4})}
    assert adjusted_p(tested | single) == adjusted_p(tested) == pytest.approx({"a": 0.02, "b": 0.04})
    assert adjusted_p(single) == {}

    def long_runs(more):
        masked = {"SimCLR + Barlow Twins": (0.6, 0.61, 0.62), "SimCLR": (0.61, 0.615, 0.64)} | more
        return Results(
            [
                Result({"run": run}, seed, {"knn.masked": value, "curve.epoch": [1.0], "curve.accuracy": [value]})
                for run, values in masked.items()
                for seed, value in enumerate(values)
            ]
        )

    alone, beside = (
        {row[0]: row for row in EXPERIMENTS["D"].report(long_runs(more)).tables[0].rows}
        for more in ({}, {"Barlow Twins": (0.5,)})
    )
    assert beside["SimCLR"] == alone["SimCLR"]
    assert (
        beside["SimCLR"][6] == f"{paired_difference({0: 0.01, 1: 0.005, 2: 0.02}, dict.fromkeys(range(3), 0.0)).p:.3f}"
    )
    assert beside["Barlow Twins"][5:7] == ("-10.00", "")


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
    assert by_name["labels of 5 %"][7].startswith("+1.")
    assert by_name["the same batch (the paper's)"][7] == ""
    assert by_name["mask fitted afterwards, labels of 5%"][4] == "+1.00 [+1.00, +1.00]"
    assert found.rows[1][3] == "0.70 ± 0.00 (5)"
    assert few.rows[3] == ("mask learned with these labels, kNN", "", "30.00 ± 0.00 (5)", "")
    assert len(report.figures["judges"].axes) == 1


def test_a_confirmation_runs_the_same_cells_on_seeds_that_were_not_seen_before(capsys):
    def cells(name, seeds):
        assert main([name, "--scale=cpu", f"--seeds={seeds}", "--print-commands"]) == 0
        return set(re.findall(r"--cell=(\S+)", capsys.readouterr().out))

    seen, confirmed = cells("J", 9), cells("JC", 1)
    assert confirmed == {cell for cell in seen if re.search("(no_mask|heads)-seed8$", cell)}


def test_a_confirmation_adjusts_for_the_number_of_sets():
    masked = "labels of 5 %, trial step of the heads"
    items = []
    for dataset, gain in (("confounded_shapes", 0.02), ("confounded_cifar10", 0.0)):
        for seed in range(8, 14):
            values = {"knn.accuracy": 0.4, "knn.masked": 0.4, "linear.accuracy": 0.5}
            items.append(Result({"dataset": dataset, "run": "no mask"}, seed, values))
            own = {"knn.masked": 0.4 + gain + 0.001 * (seed % 3), "agreement.auc": 0.7}
            items.append(Result({"dataset": dataset, "run": masked}, seed, values | own))
    (table,) = EXPERIMENTS["JC"].report(Results(items)).tables
    shapes, cifar = table.rows[1], table.rows[3]
    assert shapes[0].endswith(masked)
    assert shapes[4].startswith("+2.10 [")
    found = paired_difference({s: 0.001 * (s % 3) for s in range(6)}, dict.fromkeys(range(6), 0.0))
    assert cifar[4:6] == (difference_text(found), f"{found.p:.3f}")  # the larger of two p-values stays as it is
    assert float(shapes[5]) < 0.001
    assert shapes[8] == "0.70 ± 0.00 (6)"


def test_the_quickstart_is_repeated_as_it_is_and_its_mask_judged_by_the_features_of_the_same_run():
    fixed, masked, paper = EXPERIMENTS["Q"].cells(scales.SCALES["cpu"])
    free = ("checkpoint.", "log.", "eval.least_times")
    for cell, source in ((masked, "quickstart"), (paper, "quickstart:paper")):
        changed = [line for line in differences(cell.config, load_config(source)) if not line.startswith(free)]
        assert changed == []
    assert [line.split(":")[0] for line in differences(fixed.config, masked.config)] == ["mask.learn"]
    items = []
    for seed in range(5):
        values = {"knn.accuracy": 0.5 + 0.01 * seed, "knn.masked": 0.5 + 0.01 * seed, "linear.accuracy": 0.5}
        items.append(Result(fixed.labels, seed, values))
        own = {"knn.masked": values["knn.masked"] + 0.02 + 0.001 * (seed % 2), "agreement.auc": 0.7}
        items.append(Result(masked.labels, seed, values | own))
        items.append(Result(paper.labels, seed, values | {"agreement.auc": None}))
    (table,) = EXPERIMENTS["Q"].report(Results(items)).tables
    by_run = {row[0]: row[4:] for row in table.rows}
    assert by_run[fixed.labels["run"]] == ("", "", "", "")
    gain, p, to_fixed, auc = by_run[masked.labels["run"]]
    assert re.fullmatch(r"\+2\.04 \[.*\]", gain)
    assert float(p) < 0.001
    assert to_fixed == gain
    assert auc == "0.70 ± 0.00 (5)"
    assert by_run[paper.labels["run"]][0].startswith("+0.00")


def test_the_page_of_results_shows_the_tables_as_they_are(tmp_path, capsys):
    page, results = ROOT / "docs" / "results.md", ROOT / "docs" / "results"
    text = page.read_text()
    assert refreshed(text, results) == text, "run `python -m metamask_jax.cli.experiments page docs/results.md`"
    shown = set(tables_in(text))
    assert shown == {str(path.relative_to(results)) for path in results.glob("*/*/table*.csv")}

    shutil.copytree(results, tmp_path / "results", ignore=shutil.ignore_patterns("*.png", "cells"))
    (tmp_path / "results.md").write_text(re.sub(r"\d\d\.\d\d", "12.34", text))
    assert main(["page", str(tmp_path / "results.md")]) == 0
    assert "is up to date now" in capsys.readouterr().out
    blocks = re.compile(r"<!-- table .*?<!-- end -->", re.DOTALL)
    assert blocks.findall((tmp_path / "results.md").read_text()) == blocks.findall(text)
    (tmp_path / "results" / "cpu" / "T1" / "table.csv").unlink()
    assert main(["page", str(tmp_path / "results.md")]) == 2
    assert "cpu/T1/table.csv is not in" in capsys.readouterr().err


def test_long_runs_are_compared_under_their_masks_and_show_their_curves():
    items = []
    for run, gain in (("SimCLR", 0.0), ("SimCLR + Barlow Twins", 0.0), ("MetaMask (the paper's judge)", 0.02)):
        for seed in (0, 1, 2):
            noise = 0.001 * ((seed * 2 + len(run)) % 3)
            values = {"knn.accuracy": 0.65, "knn.masked": 0.65 + gain + noise, "knn_k200.accuracy": 0.66}
            values |= {"linear.accuracy": 0.7, "mask.std": 0.1, "cost.seconds": 1800.0}
            values |= {"curve.epoch": [3.0, 6.0], "curve.accuracy": [0.5, 0.6 + seed / 10]}
            items.append(Result({"run": run}, seed, values))
    report = EXPERIMENTS["D"].report(Results(items[:1] + items[3:]))  # two seeds of SimCLR are not there yet
    accuracy, curves = report.tables
    by_name = {row[0]: row for row in accuracy.rows}
    assert by_name["SimCLR"][1] == "65.00 (1)"
    assert by_name["SimCLR"][6:8] == ("", "")
    assert by_name["MetaMask (the paper's judge)"][5].startswith("+2.")
    assert 0.0 < float(by_name["MetaMask (the paper's judge)"][6]) < 0.05
    assert curves.header[:2] == ("epoch", "SimCLR")
    assert [row[:2] for row in curves.rows] == [("3", "50.00"), ("6", "60.00")]
    assert len(report.figures["curves"].axes[0].lines) == 3


@pytest.mark.parametrize(
    ("name", "scale", "seeds"),
    [
        ("J", "cpu", 8),
        ("JC", "cpu", 24),
        *((name, "cpu", 3) for name in ("B", "F1a", "F4", "F6", "T2", "T6")),
        ("D", "day", 3),
        ("Q", "cpu", 10),
    ],
)
def test_tables_of_kept_cells_are_those_that_the_cells_give(name, scale, seeds, tmp_path):
    """Tables of long grids are made again from what is kept of every cell."""
    results = ROOT / "docs" / "results"
    kept, shown = results / "cells" / scale, results / scale / name
    jobs = runner_module.plan(
        EXPERIMENTS[name],
        scales.SCALES[scale],
        seeds=range(EXPERIMENTS[name].first_seed, EXPERIMENTS[name].first_seed + seeds),
        out=tmp_path,
        data_dir="data",
        keep=kept,
    )
    tables = EXPERIMENTS[name].report(runner_module.collect(jobs)).tables
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
