"""The check-up of a workdir finds every damage, and nothing where there is none."""

import json
import pathlib

import pytest

from metamask_jax.cli import doctor
from metamask_jax.kernels.programs import write_sealed


@pytest.fixture(autouse=True)
def programs(tmp_path, monkeypatch):
    """A folder of compiled programs that is the test's own."""
    folder = tmp_path / "programs"
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(folder))
    write_sealed(folder / "some.o", b"code")
    return folder


def snapshot(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def check(workdir, capsys):
    """Exit code and what was found, by part; the workdir is as it was."""
    before = snapshot(workdir)
    code = doctor.main([f"--workdir={workdir}", "--json"])
    assert snapshot(workdir) == before
    report = json.loads(capsys.readouterr().out)
    assert report["fine"] == (code == 0)
    return code, {finding["part"]: finding for finding in report["findings"]}


def damaged(findings):
    return {part for part, finding in findings.items() if finding["state"] == "damaged"}


def flip(path):
    """Flips bits in the middle of a file."""
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 8] = bytes(byte ^ 0x55 for byte in content[middle : middle + 8])
    path.write_bytes(bytes(content))


def largest(folder):
    return max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)


def test_a_whole_workdir_is_fine(workdir, capsys):
    code, findings = check(workdir, capsys)
    assert (code, damaged(findings)) == (0, set())
    assert {finding["state"] for finding in findings.values()} == {"fine"}
    assert findings["checkpoint ratings"]["detail"] == "step 12 is the best by kNN"
    assert findings["metrics.jsonl"]["detail"] == "12 lines up to step 12"
    assert findings["data confounded_shapes"]["detail"].startswith("64 pictures")
    assert doctor.main([f"--workdir={workdir}"]) == 0
    assert capsys.readouterr().out.endswith("\nnothing is damaged\n")


def test_a_run_that_has_just_begun_is_fine(workdir, capsys):
    for path in workdir.iterdir():
        if path.name not in ("config.json", "checkpoints"):
            path.rename(workdir.parent / path.name)
    (workdir / "checkpoints").rename(workdir.parent / "checkpoints")
    code, findings = check(workdir, capsys)
    assert (code, damaged(findings)) == (0, set())
    assert findings["checkpoints"]["detail"] == "none was saved yet"


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        *(("config.json", text) for text in (b"", b"[]", b"\xff", b'{"train": {"seed": "x"}}')),
        *(("metrics.jsonl", text) for text in (b"\xff\n", b"{}\n", b'{"step": 2}\n{"step": 1}\n', b"[]\n[]\n")),
        *(("masks.jsonl", text) for text in (b'{"step": 1}\nx\n{"step": 3}\n', b'{"step": "one"}\n')),
        *(("result.json", text) for text in (b"", b"[]", b"{", b"\xff")),
        *(("evaluation.json", text) for text in (b"", b"5", b"[" * 10**5)),
        *(("report.npz", text) for text in (b"", b"x", b"PK\x03\x04")),
        *(("features/some.npz", text) for text in (b"", b"PK")),
    ],
)
def test_a_damaged_file_is_found_with_what_can_be_done(workdir, capsys, cases, name, damage):
    cases(1)
    (workdir / name).write_bytes(damage)
    code, findings = check(workdir, capsys)
    assert (code, damaged(findings)) == (1, {name})
    assert findings[name]["detail"].isprintable()


@pytest.mark.parametrize("name", ["report.npz", "features/some.npz"])
def test_flipped_bits_in_arrays_are_found(workdir, capsys, cases, name):
    cases(1)
    flip(workdir / name)
    assert damaged(check(workdir, capsys)[1]) == {name}


def test_flipped_bits_in_a_checkpoint_are_found_and_the_whole_one_before_is_named(workdir, capsys, cases):
    cases(1)
    flip(largest(workdir / "checkpoints" / "12"))
    code, findings = check(workdir, capsys)
    assert (code, damaged(findings)) == (1, {"checkpoint 12"})
    assert findings["checkpoint 12"]["remedy"] == "the command that started the run goes on from step 8"


def test_checkpoints_are_checked_without_a_configuration_too(workdir, capsys, cases):
    cases(1)
    (workdir / "config.json").write_bytes(b"{")
    flip(largest(workdir / "checkpoints" / "8"))
    assert damaged(check(workdir, capsys)[1]) == {"config.json", "checkpoint 8"}


def test_without_a_whole_checkpoint_a_new_start_is_advised(workdir, capsys):
    for step in (4, 8, 12):
        flip(largest(workdir / "checkpoints" / str(step)))
    findings = check(workdir, capsys)[1]
    assert "--restart" in findings["checkpoint 12"]["remedy"]


def test_data_that_are_gone_are_no_damage_and_are_not_made(workdir, capsys):
    text = (workdir / "config.json").read_text()
    elsewhere = workdir.parent / "nothing"
    config = json.loads(text)
    config["data"]["dir"] = str(elsewhere)
    (workdir / "config.json").write_text(json.dumps(config))
    code, findings = check(workdir, capsys)
    assert code == 0
    assert findings["data confounded_shapes"]["state"] == "absent"
    assert not elsewhere.exists()


def test_a_damaged_program_is_found_and_left(workdir, programs, capsys):
    flip(programs / "some.o")
    code, findings = check(workdir, capsys)
    assert (code, damaged(findings)) == (1, {"compiled programs"})
    assert (programs / "some.o").exists()


@pytest.mark.parametrize("name", ["nothing", "file"])
def test_what_is_no_workdir_is_one_sentence(tmp_path, monkeypatch, capsys, name):
    monkeypatch.chdir(tmp_path)
    pathlib.Path("file").write_text("x")
    assert doctor.main([f"--workdir={name}"]) == 2
    assert capsys.readouterr().err == f"--workdir {name} has no config.json; expected the folder of a run\n"
