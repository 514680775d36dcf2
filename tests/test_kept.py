"""Compiled functions that outlive the process: found without tracing, and never taken for another one's."""

import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metamask_jax.config import apply_overrides, load_config
from metamask_jax.core.storage import read_json_lines
from metamask_jax.training import kept
from metamask_jax.training.distributed import replicate
from metamask_jax.training.kept import SUFFIX, Kept
from metamask_jax.training.registry import REGISTRY, validate
from metamask_jax.training.settings import Programs
from tests.runs import run, write_config
from tests.tiny import LENGTH, tiny_config

ROWS = np.arange(12.0, dtype=np.float32).reshape(3, 4)
NUMBERS = replicate({"x": ROWS})


@pytest.fixture(autouse=True)
def _compiled_here():
    """JAX would find these functions among those of earlier tests."""
    jax.config.update("jax_enable_compilation_cache", False)
    yield
    jax.config.update("jax_enable_compilation_cache", True)


def product(numbers):
    return {"sum": jnp.sin(numbers["x"]) @ numbers["x"].T + 1.0}


def never(*arguments):
    raise AssertionError(f"traced for {arguments}")


def left_in(folder, function=product, identity="a"):
    return Kept(jax.jit(function), identity, folder)


def test_a_second_process_finds_what_the_first_has_compiled_and_gets_the_same_bits(tmp_path):
    expected = left_in(tmp_path)(NUMBERS)
    found = left_in(tmp_path, never)
    np.testing.assert_array_equal(found(NUMBERS)["sum"], expected["sum"])
    np.testing.assert_array_equal(found.lower(NUMBERS).compile()(NUMBERS)["sum"], expected["sum"])
    assert len(list(tmp_path.glob(f"*{SUFFIX}"))) == 1


def test_another_identity_shape_type_or_structure_is_another_function(tmp_path):
    left_in(tmp_path)(NUMBERS)
    for numbers in ({"x": ROWS[:2]}, {"x": ROWS.astype(np.int32)}, {"y": ROWS}):
        with pytest.raises(AssertionError, match="traced"):
            left_in(tmp_path, never)(replicate(numbers))
    with pytest.raises(AssertionError, match="traced"):
        left_in(tmp_path, never)({"x": ROWS})  # not on all devices
    with pytest.raises(AssertionError, match="traced"):
        left_in(tmp_path, never, identity="b")(NUMBERS)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("_sources", lambda: "others"), ("_processor", lambda: "another")),
        *(("cores", lambda: 999), ("has_native", lambda: False)),
    ],
)
def test_other_sources_or_another_machine_make_another_function(name, value, tmp_path, monkeypatch):
    left_in(tmp_path)(NUMBERS)
    monkeypatch.setattr(kept, name, value)
    with pytest.raises(AssertionError, match="traced"):
        left_in(tmp_path, never)(NUMBERS)


@pytest.mark.parametrize("variable", ["XLA_FLAGS", "METAMASK_KERNELS"])
def test_other_settings_of_the_environment_make_another_function(variable, tmp_path, monkeypatch):
    left_in(tmp_path)(NUMBERS)
    monkeypatch.setenv(variable, {"XLA_FLAGS": "--xla_dump_to=", "METAMASK_KERNELS": "xla"}[variable])
    with pytest.raises(AssertionError, match="traced"):
        left_in(tmp_path, never)(NUMBERS)


def test_other_settings_of_jax_make_another_function(tmp_path):
    left_in(tmp_path)(NUMBERS)
    jax.config.update("jax_default_matmul_precision", "highest")
    try:
        with pytest.raises(AssertionError, match="traced"):
            left_in(tmp_path, never)(NUMBERS)
    finally:
        jax.config.update("jax_default_matmul_precision", None)


def test_a_damaged_file_is_traced_and_stored_again(tmp_path, caplog):
    expected = left_in(tmp_path)(NUMBERS)
    (path,) = tmp_path.glob(f"*{SUFFIX}")
    good = path.read_bytes()
    for content in (good[:-1], b"", good[:100] + bytes([good[100] ^ 1]) + good[101:]):
        path.write_bytes(content)
        with caplog.at_level(logging.WARNING):
            np.testing.assert_array_equal(left_in(tmp_path)(NUMBERS)["sum"], expected["sum"])
        np.testing.assert_array_equal(left_in(tmp_path, never)(NUMBERS)["sum"], expected["sum"])


def test_a_program_of_a_kernel_that_is_not_kept_any_more_is_traced_again(tmp_path, monkeypatch):
    monkeypatch.setattr(kept._native(), "registered", lambda: ["a kernel of which there is no code"])
    expected = left_in(tmp_path)(NUMBERS)
    np.testing.assert_array_equal(left_in(tmp_path)(NUMBERS)["sum"], expected["sum"])
    with pytest.raises(AssertionError, match="traced"):
        left_in(tmp_path, never)(NUMBERS)


def test_nothing_is_left_of_what_jax_has_itself_read_from_a_file(tmp_path):
    """XLA cannot write all of a program that it has read."""

    class Lowered:
        def compile(self):
            jax.monitoring.record_event(kept._FOUND)
            return jax.jit(product).lower(NUMBERS).compile()

    function = type("", (), {"lower": lambda self, *arguments: Lowered()})()
    Kept(function, "a", tmp_path)(NUMBERS)
    assert not list(tmp_path.iterdir())


def test_functions_of_plugins_and_of_registries_are_not_kept(tmp_path):
    programs, config = Programs(tmp_path), validate(load_config("quickstart"))
    assert isinstance(programs.keep(product, "a", config, None), Kept)
    assert programs.keep(product, "a", config, REGISTRY) is product
    assert programs.keep(product, "a", tiny_config({}), None) is product  # which has a plugin
    assert Programs().keep(product, "a", config, None) is product


def test_a_step_is_kept_for_runs_that_differ_in_numbers(tmp_path):
    programs, config = Programs(tmp_path), validate(load_config("quickstart"))
    step = programs.step(config, **LENGTH)
    assert isinstance(step, Kept)
    assert programs.step(apply_overrides(config, {"optimizer.learning_rate": "0.5"}), **LENGTH) is step
    assert programs.step(apply_overrides(config, {"mask.learn": "false"}), **LENGTH) is not step


@pytest.mark.slow
def test_a_second_run_finds_its_programs_and_has_the_losses_of_the_first(tmp_path):
    """Of a network with native kernels on two devices; nothing is traced, so nothing is left anew."""
    small = {"train.batch_size": 16, "train.steps": 3, "eval.size": 20, "eval.batch_size": 64, "log.every_steps": 1}
    small |= {"encoder.width": 0.25, "loss.drr_head": "(16,16)", "method.head": "(16,16)"}
    flags = [f"--config.{key}={value}" for key, value in small.items()]
    folder, seen = write_config(tmp_path, {}), []
    for name in ("first", "second"):
        code, errors = run(folder, tmp_path / name, "--config=quickstart", *flags, devices=2)
        assert code == 0, errors
        lines = read_json_lines(tmp_path / name / "metrics.jsonl")
        files = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "cache").glob(f"*{SUFFIX}")}
        seen.append(([(line["loss"], line.get("knn_accuracy")) for line in lines], files))
    assert seen[0] == seen[1]
    assert len(seen[0][0]) == 3
    assert len(seen[0][1]) == 2  # the step, and the encoder in evaluation
