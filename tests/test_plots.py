"""What plots show of given numbers."""

import numpy as np
import pytest

from metamask_jax.reporting import feature_plots, plots, run_plots
from metamask_jax.reporting.run_plots import LoggedRun


def test_curves_begin_with_what_was_measured_before_training() -> None:
    logged = plots.Curve(np.array([10, 20]), np.array([0.25, 0.5]))
    curves = {"knn_accuracy": logged, "effective_rank": logged, "loss": logged}
    run = LoggedRun("run", {}, curves, {"knn_accuracy_before": 0.125}, {}, {}, [])
    found = run_plots.from_the_start(run, "knn_accuracy")
    assert found is not None
    assert found.steps.tolist() == [0, 10, 20]
    assert found.values.tolist() == [0.125, 0.25, 0.5]
    assert run_plots.from_the_start(run, "loss") is logged
    assert run_plots.from_the_start(run, "mask_std") is None


def test_bars_of_recognised_classes_are_in_order() -> None:
    axis = feature_plots.recognised(np.array([[6, 4], [1, 9]]), ["ant", "bee"]).axes[0]
    assert [bar.get_width() for bar in axis.patches] == [60.0, 90.0]
    assert [label.get_text() for label in axis.get_yticklabels()] == ["ant", "bee"]


@pytest.mark.parametrize("points", [120, 121, 1000])
def test_long_curves_are_drawn_with_a_running_mean_at_its_own_steps(points: int) -> None:
    curve = plots.Curve(2 * np.arange(points), 3.0 * np.arange(points))  # the mean of a line is the line
    lines = plots.curves({"loss": (curve, plots.BLUE)}, label="loss", log=False, width=plots.WIDTH).axes[0].lines
    assert len(lines) == (1 if points <= 120 else 2)
    steps, values = lines[-1].get_data()
    assert points - points // 40 < len(values) <= points
    np.testing.assert_allclose(values, 1.5 * steps, atol=3.0 if points > 120 else 0)


def test_logarithmic_curves_leave_out_zeros() -> None:
    curve = plots.Curve(np.arange(4), np.array([1.0, 0.0, 0.1, 0.0]))
    axis = plots.curves({"norm": (curve, plots.BLUE)}, label="norm", log=True, width=plots.WIDTH).axes[0]
    assert axis.lines[0].get_xdata().tolist() == [0, 2]
    assert axis.get_yscale() == "log"


@pytest.mark.parametrize("nearly", [0.5, 0.0, 1.0, -3e4])
def test_a_mask_of_nearly_equal_weights_has_a_histogram(nearly):
    weights = np.full(12, nearly, np.float32)
    weights[3] = np.nextafter(weights[3], np.float32(np.inf))
    bars = plots.mask_histogram(weights).axes[0].patches
    assert sum(bar.get_height() for bar in bars) == 12
