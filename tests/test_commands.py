"""What all commands have in common: their flags, their names, their exit codes."""

import importlib
import json
import pathlib
import subprocess
import sys
import tomllib
import types

import pytest

from metamask_jax.cli import common, prepare, pretrain, preview, report
from metamask_jax.config import differences, load_config
from metamask_jax.errors import ConfigError

ROOT = pathlib.Path(__file__).parent.parent
ENTRY_POINTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]


def refused(code, capsys):
    """The one sentence of a command that refuses its input."""
    error = capsys.readouterr().err
    assert code == 2, error
    assert error.count("\n") == 1, error
    return error.strip()


def test_every_command_has_an_entry_point():
    parts = {"__init__", "common", "terminal", "quickstart", "sweep"}  # the last two belong to metamask-pretrain
    files = {path.stem for path in (ROOT / "metamask_jax" / "cli").glob("*.py")} - parts
    assert {f"metamask-{name.replace('_', '-')}": f"metamask_jax.cli.{name}:main" for name in files} == ENTRY_POINTS


@pytest.mark.parametrize("entry_point", ENTRY_POINTS.values())
def test_an_unknown_flag_is_one_sentence_and_exit_code_2(entry_point, capsys):
    module, _, name = entry_point.partition(":")
    main = getattr(importlib.import_module(module), name)
    positional = {"prepare": ["x"], "experiments": ["list"], "compile_for": ["v5e:2x4"]}
    positional = positional.get(module.removeprefix("metamask_jax.cli."), [])
    required = [] if module.endswith(("pretrain", "preview", "experiments", "compile_for")) else ["--workdir=x"]
    required = ["--data-dir=x"] if module.endswith("prepare") else required
    required += ["--out=x"] if module.endswith("export") else []
    message = refused(main([*positional, *required, "--bogus"]), capsys)
    assert message == "unrecognized arguments: --bogus; see --help"


@pytest.mark.parametrize(
    ("module", "script", "name"),
    [
        ("metamask_jax.cli.report", "/x/metamask_jax/cli/report.py", "python -m metamask_jax.cli.report"),
        (None, "/x/run_pretrain.py", "python run_pretrain.py"),
        (None, "/x/bin/metamask-pretrain", "metamask-pretrain"),
    ],
)
def test_a_command_is_called_what_the_user_typed(monkeypatch, module, script, name):
    main = types.SimpleNamespace(__spec__=None if module is None else types.SimpleNamespace(name=module))
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr(sys, "argv", [script])
    assert common.Parser("").prog == name


@pytest.mark.parametrize("command", [("-m", "metamask_jax.cli.report"), ("run_linear.py",)], ids=" ".join)
def test_help_names_the_command(command):
    done = subprocess.run([sys.executable, *command, "--help"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"usage: python {' '.join(command)} ")


def test_flags_take_hyphens_and_underscores():
    parser = common.Parser("")
    parser.add_argument("--data-dir")
    for flag in (["--data-dir", "a_b"], ["--data_dir", "a_b"], ["--data_dir=a_b"]):
        assert parser.read(flag).data_dir == "a_b"


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--size=0"], "--size 0; expected a whole number >= 1"),
        (["--size=-3"], "--size -3; expected a whole number >= 1"),
        (["--size=many"], "--size many; expected a whole number >= 1"),
        (["--size=1.5"], "--size 1.5; expected a whole number >= 1"),
        (["--step=first"], "--step first; expected a whole number, 'best' or 'last'"),
        (["--size"], "--size expected one argument; see --help"),
        (["left"], "unrecognized arguments: left; see --help"),
    ],
)
def test_bad_values_are_named_with_what_is_allowed(flags, sentence):
    parser = common.Parser("")
    parser.add_run()
    parser.add_argument("--size", type=common.whole_number(1))
    with pytest.raises(ConfigError) as refusal:
        parser.read(["--workdir=x", *flags])
    assert str(refusal.value) == sentence


def test_bad_choices_are_named_with_what_is_allowed():
    parser = common.Parser("")
    parser.add_argument("--mask", choices=("apart", "none"))
    with pytest.raises(ConfigError, match=r"^--mask 'on'; expected one of '?apart'?, '?none'?$"):
        parser.read(["--mask=on"])


def test_steps_are_numbers_or_names():
    assert [common.saved_step(text) for text in ("12", "best", "last")] == [12, "best", "last"]


def test_overrides_are_taken_apart_from_flags():
    flags, overrides = common.split_overrides(["--config=x", "--config.data.options.a=b=c", "--step", "1"])
    assert (flags, overrides) == (["--config=x", "--step", "1"], {"data.options.a": "b=c"})
    with pytest.raises(ConfigError, match=r"--config\.train\.steps; expected --config\.KEY=VALUE"):
        common.split_overrides(["--config.train.steps"])


def test_an_error_that_nobody_expected_keeps_its_traceback(capsys):
    def fail(arguments):
        raise KeyError("surprise")

    assert common.guarded(fail, []) == 1
    assert "Traceback" in (error := capsys.readouterr().err)
    assert "surprise" in error


def test_arguments_are_those_of_the_process_unless_given(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["command", "--a"])
    found = []
    common.guarded(lambda arguments: found.append(list(arguments)) or 0, None)
    common.guarded(lambda arguments: found.append(list(arguments)) or 0, [])
    assert found == [["--a"], []]


def test_pretraining_without_arguments_is_the_quickstart(monkeypatch, tmp_path):
    from metamask_jax.cli import quickstart

    started = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(quickstart, "run_quickstart", lambda config, workdir: started.append((config, workdir)))
    assert pretrain.main([]) == 0
    ((config, workdir),) = started
    assert differences(config, load_config("quickstart")) == []
    assert workdir == "runs/quickstart"


def test_a_report_is_written_anew(tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps({"train": {"seed": 17}}))
    (tmp_path / "report.html").write_text("old")
    assert report.main([f"--workdir={tmp_path}"]) == 0
    assert capsys.readouterr().out == f"wrote {tmp_path / 'report.html'}\n"
    assert "<td>17</td>" in (tmp_path / "report.html").read_text()


def test_a_report_of_what_is_no_run_is_refused(tmp_path, capsys):
    sentence = f"--workdir {tmp_path} has no config.json; expected the folder of a run"
    assert refused(report.main([f"--workdir={tmp_path}"]), capsys) == sentence
    assert list(tmp_path.iterdir()) == []
    assert "has no config.json" in refused(report.main([f"--workdir={tmp_path / 'none'}"]), capsys)


def test_preparing_a_set_that_nobody_knows_is_refused(tmp_path, capsys):
    message = refused(prepare.main(["nothing", f"--data_dir={tmp_path}"]), capsys)
    assert message == "nothing; expected a name that tfds knows, such as cifar10"


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (
            ModuleNotFoundError("No module named 'tensorflow'"),
            "No module named 'tensorflow'; expected what `pip install",
        ),
        (RuntimeError("two\nlines"), "cifar10 could not be prepared, RuntimeError: two lines"),
    ],
)
def test_whatever_stops_a_preparation_is_one_sentence(monkeypatch, tmp_path, capsys, error, sentence):
    import tensorflow_datasets as tfds

    def fail(*arguments, **options):
        raise error

    monkeypatch.setattr(tfds, "builder", fail)
    assert sentence in refused(prepare.main(["cifar10", f"--data_dir={tmp_path}"]), capsys)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--examples=0"], "--examples 0; expected a whole number >= 1"),
        (["--step=-1"], "--step -1; expected a whole number >= 0"),
        (["--config=nothing"], "--config nothing; expected a Python file or one of "),
        (["--config.train.lr=1"], "config.train.lr is unknown; the nearest key is config.optimizer.learning_rate"),
        (["--views=many"], "config.data.views='many'; expected a value of type int"),
    ],
)
def test_a_preview_refuses_bad_input(capsys, flags, sentence):
    assert refused(preview.main(flags), capsys).startswith(sentence)
