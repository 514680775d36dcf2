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
        *(
            b'{"results": [{"protocol": "knn", "step": 1, "dataset": "a", "train_size": 1, "seed": 0, "features": "h", '
            b'"top1": 0.5, "%s}]}' % wrong
            for wrong in (b'interval": 5', b'interval": [1]', b'interval": ["a", "b"]', b'top5": "x"')
        ),
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
        npz(sample_images=np.ones((2, 4, 4, 3)), sample_views=np.ones((2, 2, 4, 4, 3), np.uint8)),  # no bytes
        npz(sample_images=np.ones((2, 4, 4, 3), np.uint8), sample_views=np.ones((2, 3, 4, 4, 3), np.uint8)),
        npz(class_names=np.ones(3), knn_confusion=np.ones((3, 3))),
        npz(class_names=np.array(["a", "b"]), knn_confusion=np.ones((3, 3))),
        npz(map_points=np.ones((4, 3)), map_labels=np.ones(4), map_shares=np.ones(2)),
        npz(map_points=np.full((4, 2), np.nan), map_labels=np.ones(4), map_shares=np.ones(2)),
        npz(knn_interval=np.ones(3), knn_top5=np.ones(2)),
        npz(
            **{"mask_final": np.ones(2), "dimension_indices": np.array([0, 9]), "dimension_spread": np.ones(2)},
            **{"dimension_images": np.ones((2, 1, 4, 4, 3), np.uint8), "dimension_labels": np.ones((2, 1), int)},
        ),
    ),
}


part_or_whole = pytest.mark.parametrize(
    "chosen", [slice(0, None, 3), pytest.param(slice(None), marks=pytest.mark.slow)], ids=["part", "whole"]
)


@pytest.mark.parametrize("name", DAMAGES)
@part_or_whole
def test_what_is_damaged_is_named_in_the_report(tmp_path, capsys, cases, name, chosen):
    cases(len(DAMAGES[name][chosen]))
    for damage in DAMAGES[name][chosen]:
        assert f"{name} could not be read: " in written(tmp_path, capsys, name, damage)


@pytest.mark.parametrize("name", ODDITIES)
@part_or_whole
def test_what_cannot_be_drawn_is_left_out(tmp_path, capsys, cases, name, chosen):
    cases(len(ODDITIES[name][chosen]))
    for oddity in ODDITIES[name][chosen]:
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
