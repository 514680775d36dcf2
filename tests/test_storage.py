"""Files of lines and temporary folders: what a kill or a bad disk leaves of them."""

import logging
import subprocess
import sys

import pytest

from metamask_jax.core.storage import JsonLines, make_temporary_folder, read_json_lines, temporary_folder

LINES = [b'{"step": 1, "loss": 0.5}', b'{"step": 2, "loss": 0.25}', b'{"step": 3, "loss": 0.125}']


@pytest.mark.parametrize("damage", [b'{"step": 2, "lo', b"\xff\xfe\x00", b"[]", b"{}", b'{"step": "2"}', b""])
def test_a_damaged_line_in_the_middle_costs_that_line_alone(tmp_path, caplog, damage):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"\n".join([LINES[0], damage, LINES[2], b""]))
    with caplog.at_level(logging.WARNING, "metamask_jax"):
        assert [line["step"] for line in read_json_lines(path)] == [1, 3]
    assert "1 damaged, left out: line 2" in caplog.text


def test_a_last_line_that_was_cut_off_is_nothing_to_speak_of(tmp_path, caplog):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"\n".join([*LINES[:2], LINES[2][:9]]))
    assert [line["step"] for line in read_json_lines(path)] == [1, 2]
    assert not caplog.text
    lines = JsonLines(path, resume_step=1)
    lines.write(2, {"loss": 1.0})
    lines.close()
    assert [line.get("loss") for line in read_json_lines(path)] == [0.5, 1.0]


def test_a_missing_file_is_empty(tmp_path):
    assert read_json_lines(tmp_path / "metrics.jsonl") == []


def test_a_temporary_folder_goes_with_its_block_and_a_killed_one_with_the_next(tmp_path):
    program = """
import os, pathlib, signal, sys
from metamask_jax.core.storage import temporary_folder
with temporary_folder(pathlib.Path(sys.argv[1]), prefix=".export-") as folder:
    (folder / "half a file").touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False, timeout=60)
    (killed,) = tmp_path.iterdir()
    in_use = make_temporary_folder(tmp_path, prefix=".export-")
    assert not killed.exists()
    (tmp_path / ".export-of-somebody-else").mkdir()
    with temporary_folder(tmp_path, prefix=".export-") as folder:
        assert in_use.exists()  # its process is running
        assert len(list(tmp_path.iterdir())) == 3
    assert not folder.exists()
    assert (tmp_path / ".export-of-somebody-else").exists()
