"""Flags that nobody should give: one sentence, exit code 2, and no file anywhere."""

import importlib
import os
import pathlib

import pytest

from metamask_jax.core.storage import replacing, write_atomically
from metamask_jax.errors import ExportError
from metamask_jax.export.write import export_encoder
from tests.untrained import config_of, run_of

NO_NAMES = ["", " ", "\x00", "a\nb", "\udcff", "x" * 300, "y/" * 3000]
NO_RUNS = [*NO_NAMES, "nothing", "empty", "file", "file/below", "/dev/null"]
COMMANDS = {
    "pretrain": ([], NO_NAMES),
    "evaluate": ([], NO_RUNS),
    "diagnostics": ([], NO_RUNS),
    "report": ([], NO_RUNS),
    "doctor": ([], NO_RUNS),
    "export": (["--out=encoder.npz"], NO_RUNS),
}
FLAGS = {
    "pretrain": [
        *(["--process", "5", "--processes", "2"], ["--process=1"], ["--processes=2"], ["--coordinator=x"]),
        *(["--coordinator="], ["--processes=0"], ["--process=-1"], ["--processes=1e9"], ["--config=nothing"]),
        *(["--config="], ["--config.train.steps"], ["--config.=1"], ["--config.a=1"], ["--config.train.steps=1e400"]),
        *(["--bogus"], ["left"], ["--workdir"], ["--accept-changes=5"], ["--config.data.options.a.b=1"]),
    ],
    "experiments": [
        *([], ["list", "left"], ["nothing"], ["table1", "--seeds=0"], ["table1", "--seeds=x"], ["table1", "--jobs=0"]),
        *(["table1", "--scale=huge"], ["table1", "--only=x"], ["table1", "--cell=nothing"], ["table1", "--out="]),
        *(["table1", "--only=a=b"], ["table1", "--seeds=-1"], ["table1", "--out=a\nb"], ["table1", "--seeds=1.5"]),
    ],
    "evaluate": [
        *([], ["--workdir=empty", "--step=1.5"], ["--workdir=empty", "--protocol=x"], ["--workdir=empty", "--size=0"]),
        *(["--workdir=empty", "--option=x"], ["--workdir=empty", "--seed=x"], ["--workdir=empty", "--step="]),
    ],
    "export": [
        *([], ["--workdir=empty"], ["--workdir=empty", "--out="], ["--workdir=empty", "--out=a", "--format=x"]),
        *(
            ["--workdir=empty", "--verify=nothing"],
            ["--workdir=empty", "--verify=file"],
            ["--workdir=empty", "--out=\x00"],
        ),
        ["--workdir=empty", "--out=a", "--verify=b"],
    ],
    "prepare": [[], ["x"], ["nothing", "--data-dir=d"], ["../..", "--data-dir=d"], ["", "--data-dir=d"]],
    "preview": [["--out="], ["--examples=0"], ["--views=x"], ["--config.data.image_size=0"], ["--dataset="]],
    "doctor": [[], ["--workdir"], ["--workdir=empty", "--json=1"], ["--workdir=empty", "left"]],
}


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with a file and an empty folder, where commands run."""
    monkeypatch.chdir(tmp_path)
    pathlib.Path("file").write_text("x")
    pathlib.Path("empty").mkdir()
    return tmp_path


def refusal(command, arguments, place, capsys):
    """The one sentence of a command that refuses; it has left no file."""
    main = importlib.import_module(f"metamask_jax.cli.{command}").main
    code, said = main(arguments), capsys.readouterr()
    assert code == 2, said.err[-2000:]
    assert said.out == ""
    assert said.err.count("\n") == 1, said.err[-2000:]
    assert len(said.err) < 2000
    assert sorted(path.name for path in place.rglob("*")) == ["empty", "file"]
    return said.err


@pytest.mark.parametrize("command", COMMANDS)
def test_a_folder_that_can_be_no_workdir_is_refused(command, place, capsys, cases):
    more, names = COMMANDS[command]
    cases(len(names))
    for name in names:
        assert refusal(command, [f"--workdir={name}", *more], place, capsys).startswith("--workdir ")


@pytest.mark.parametrize("command", FLAGS)
def test_bad_flags_are_refused(command, place, capsys, cases):
    cases(len(FLAGS[command]))
    for arguments in FLAGS[command]:
        assert refusal(command, arguments, place, capsys)


@pytest.mark.parametrize("kind", ["folder", "pipe", "link to a device"])
def test_only_files_are_replaced(kind, tmp_path, cases):
    cases(3)
    path = tmp_path / "encoder.npz"
    {"folder": path.mkdir, "pipe": lambda: os.mkfifo(path), "link to a device": lambda: path.symlink_to(os.devnull)}[
        kind
    ]()
    before = path.lstat()
    with pytest.raises(FileExistsError, match="is no regular file"), replacing(path):
        pytest.fail("nothing may be written")
    with pytest.raises(FileExistsError):
        write_atomically(path, "x")
    with pytest.raises(ExportError, match=r"encoder\.npz cannot be written, .* is no regular file.*; expected a place"):
        export_encoder(run_of(config_of("conv")), path, format="npz", mask="apart")
    assert path.lstat() == before
    assert list(tmp_path.iterdir()) == [path]
