"""Reports of workdirs whose files are damaged: a report is written all the same, and says what could not be read."""

import io

import numpy as np
import pytest

from metamask_jax.cli import report


def npz(**arrays):
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


HUGE = b"1" + b"0" * 400
NO_OBJECTS = (b"", b"[]", b"5", b"null", b'"x"', b"{", b"\xff\xfe", b"[" * 10**5, b'{"a":' * 1000)
DAMAGES = {
    "config.json": NO_OBJECTS,
    "result.json": (
        *NO_OBJECTS,
        *(b'{"table": 5}', b'{"table": [5]}', b'{"table": {"a": 1}}', b'{"table": [{"name": 5, "knn": "x"}]}'),
        *(b'{"table": [{"name": [], "knn": {}}]}', b'{"table": [{"name": "a", "knn": [1]}]}'),
    ),
    "evaluation.json": (
        *NO_OBJECTS,
        *(b'{"results": 5}', b'{"results": [5]}', b'{"results": [{}]}', b'{"results": null}', b"{}"),
        b'{"results": [{"protocol": 5, "features": [], "top1": "x"}]}',
    ),
    "report.npz": (b"", b"x", b"PK\x03\x04", npz(a=np.ones(2))[:-9], npz(mask_final=np.array([None]))),
}
# Odd, but nothing a reader need be told: what cannot be drawn is left out.
ODDITIES = {
    "result.json": (b'{"knn_accuracy": "x", "steps": [1], "loss": NaN}', b'{"steps": %s}' % HUGE),
    "metrics.jsonl": (
        *NO_OBJECTS,
        *(b'{"a": 1}\n', b'{"step": "x", "loss": 1}\n', b'{"step": null, "loss": 1}\n', b'{"step": [1], "loss": 1}\n'),
        *(b'{"step": 1, "loss": 1e400}\n', b'{"step": 1, "loss": "x"}\n{"step": 2}\n', b'{"step": NaN, "loss": 1}\n'),
        *(b'\xff\n{"step": 1, "loss": 2}\n', b'{"step": %s, "loss": 1}\n' % HUGE, b'{"step": 1, "loss": %s}\n' % HUGE),
    ),
    "report.npz": (
        *(npz(mask_final=values) for values in (np.zeros(()), np.array("x"), np.ones((2, 2)), np.array([1j, 1]))),
        *(
            npz(correlation=values)
            for values in (np.ones(3), np.ones((2, 3)), np.ones((1, 1)), np.full((2, 2), np.nan))
        ),
        *(npz(singular_values=values) for values in (np.ones((2, 2)), -np.ones(3), np.zeros(3))),
        *(npz(mask_steps=np.ones(3), mask_trajectory=values) for values in (np.ones(5), np.ones((4, 3)))),
        npz(mask_final=np.array([1e308, -1e308])),
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_what_is_damaged_is_named_in_the_report(tmp_path, capsys, cases, name):
    cases(len(DAMAGES[name]))
    for damage in DAMAGES[name]:
        assert f"{name} could not be read: " in written(tmp_path, capsys, name, damage)


@pytest.mark.parametrize("name", ODDITIES)
def test_what_cannot_be_drawn_is_left_out(tmp_path, capsys, cases, name):
    cases(len(ODDITIES[name]))
    for oddity in ODDITIES[name]:
        assert "could not be read" not in written(tmp_path, capsys, name, oddity)


def written(folder, capsys, name, content):
    """The report of a workdir with one such file; the file is as it was."""
    (folder / "config.json").write_text("{}")
    (folder / "metrics.jsonl").write_text('{"step": 1, "knn_accuracy": 0.5}\n')
    (folder / name).write_bytes(content)
    assert report.main([f"--workdir={folder}"]) == 0, capsys.readouterr().err
    assert "Traceback" not in capsys.readouterr().err
    assert (folder / name).read_bytes() == content
    return (folder / "report.html").read_text()
