"""Checkpoints: bit-exact, whole or not at all, and clear about what is wrong with them."""

import logging
import os
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metamask_jax.errors import CheckpointError
from metamask_jax.training.checkpoint import Checkpoints, WriteError


def state(seed=0, dim=300):
    rng = np.random.default_rng(seed)
    return {
        "params": {"kernel": jnp.asarray(rng.normal(size=(dim, 50)), jnp.float32), "half": jnp.ones(3, jnp.bfloat16)},
        "opt_state": (jnp.asarray(rng.normal(size=dim), jnp.float32), ()),
        "step": jnp.asarray(seed, jnp.int32),
    }


def open_checkpoints(folder, **keep):
    return Checkpoints(folder, **({"keep_last": 2, "keep_every": None, "keep_best": False} | keep))


def save(checkpoints, step, *, metric=None):
    checkpoints.save(step, state(step), config="{}")
    if metric is not None:
        checkpoints.rate(step, metric)


def assert_equal(found, expected):
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    assert [leaf.dtype for leaf in jax.tree.leaves(found)] == [leaf.dtype for leaf in jax.tree.leaves(expected)]


def damage(folder, step):
    """Overwrites the middle of the largest file of a checkpoint."""
    files = [path for path in (folder / str(step)).rglob("*") if path.is_file()]
    largest = max(files, key=lambda path: path.stat().st_size)
    content = bytearray(largest.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 64] = os.urandom(64)
    largest.write_bytes(bytes(content))


def test_comes_back_bit_for_bit_in_another_process_lifetime(tmp_path):
    checkpoints = open_checkpoints(tmp_path)
    save(checkpoints, 3)
    checkpoints.close()
    restored = open_checkpoints(tmp_path).restore_latest(state(0))
    assert restored.step == 3
    assert restored.metadata["config"] == "{}"
    assert_equal(restored.state, state(3))


def test_an_empty_folder_has_nothing_to_restore(tmp_path):
    assert open_checkpoints(tmp_path).restore_latest(state()) is None


def test_keeps_the_last_the_best_and_the_spaced(tmp_path):
    checkpoints = open_checkpoints(tmp_path, keep_last=1, keep_every=4, keep_best=True)
    for step, metric in enumerate([None, 0.1, 0.9, 0.3, None, 0.2, None]):
        if step:
            save(checkpoints, step, metric=metric)
    checkpoints.close()
    assert open_checkpoints(tmp_path, keep_last=1, keep_every=4, keep_best=True).steps() == [2, 4, 6]


def test_the_state_is_copied_before_save_returns(tmp_path):
    """Training donates its buffers to the next step while the checkpoint is still being written."""
    step = jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf * 0, tree), donate_argnums=0)
    checkpoints = open_checkpoints(tmp_path)
    tree = state(1)
    checkpoints.save(1, tree, config="{}")
    step(tree)
    checkpoints.close()
    assert_equal(open_checkpoints(tmp_path).restore_latest(state(0)).state, state(1))


@pytest.mark.parametrize("how", ["overwritten", "file missing", "folder emptied", "digest misspelt"])
def test_a_damaged_newest_falls_back_saying_so(tmp_path, caplog, how):
    checkpoints = open_checkpoints(tmp_path)
    save(checkpoints, 1)
    save(checkpoints, 2)
    checkpoints.close()
    if how == "overwritten":
        damage(tmp_path, 2)
    elif how == "file missing":
        shutil.rmtree(tmp_path / "2" / "state")
    elif how == "digest misspelt":  # damage that leaves it JSON
        path = tmp_path / "2" / "metadata" / "metadata"
        path.write_text(path.read_text().replace('"digest"', '"digesu"'))
    else:
        for path in (tmp_path / "2" / "state").rglob("*"):
            if path.is_file():
                path.write_bytes(b"")

    checkpoints = open_checkpoints(tmp_path)
    with caplog.at_level(logging.WARNING, logger="metamask_jax"):
        restored = checkpoints.restore_latest(state())
    assert restored.step == 1
    assert_equal(restored.state, state(1))
    assert "checkpoint 2" in caplog.text
    assert "the one before is tried" in caplog.text
    save(checkpoints, 2)  # training comes by again
    checkpoints.close()
    assert_equal(open_checkpoints(tmp_path).restore_latest(state()).state, state(2))


def test_all_damaged_is_an_error_not_a_fresh_start_however_often_it_is_tried(tmp_path):
    checkpoints = open_checkpoints(tmp_path)
    save(checkpoints, 1)
    checkpoints.close()
    damage(tmp_path, 1)
    for _ in range(2):
        with pytest.raises(CheckpointError, match=r"none of the checkpoints \[1\] can be read"):
            open_checkpoints(tmp_path).restore_latest(state())
    assert [path.name for path in tmp_path.iterdir()] == ["1"]


def test_the_same_step_damaged_again_is_set_aside_beside_the_first(tmp_path):
    for _ in range(3):
        checkpoints = open_checkpoints(tmp_path)
        if 1 not in checkpoints.steps():
            save(checkpoints, 1)
        save(checkpoints, 2)
        checkpoints.close()
        damage(tmp_path, 2)
        assert open_checkpoints(tmp_path).restore_latest(state()).step == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2.damaged", "2.damaged-2", "2.damaged-3"]


def test_what_cannot_be_written_is_raised_by_the_next_save_and_leaves_the_one_before(tmp_path, monkeypatch):
    checkpoints = open_checkpoints(tmp_path)
    save(checkpoints, 1)
    checkpoints.wait()
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints._steps, "write", lambda *args, **kwargs: [][0])
        save(checkpoints, 2)
        with pytest.raises(WriteError, match=r"a checkpoint cannot be written: list index out of range"):
            save(checkpoints, 3)
    assert checkpoints.steps() == [1]
    checkpoints.close()


def test_another_models_checkpoint_is_named(tmp_path):
    checkpoints = open_checkpoints(tmp_path)
    save(checkpoints, 1)
    checkpoints.close()
    message = r"checkpoint 1 has \(300,\) for opt_state\.0; expected shape \(7,\)"
    with pytest.raises(CheckpointError, match=message):
        open_checkpoints(tmp_path).restore_latest(state(dim=7))
    assert open_checkpoints(tmp_path).steps() == [1]  # whole, only another's: not set aside


def test_what_a_killed_save_left_behind_is_cleared_away(tmp_path):
    checkpoints = open_checkpoints(tmp_path)
    save(checkpoints, 1)
    checkpoints.close()
    shutil.copytree(tmp_path / "1", tmp_path / "2.orbax-checkpoint-tmp")
    checkpoints = open_checkpoints(tmp_path)
    assert checkpoints.steps() == [1]
    save(checkpoints, 2)
    checkpoints.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2"]
    assert_equal(open_checkpoints(tmp_path).restore_latest(state()).state, state(2))


def test_killed_while_an_old_one_is_removed_nothing_half_is_left(tmp_path, monkeypatch):
    """Half a checkpoint by its own name would be offered by `--step`, and could not be rated."""
    checkpoints = open_checkpoints(tmp_path, keep_last=1, keep_best=True)
    save(checkpoints, 1)
    checkpoints.wait()
    monkeypatch.setattr(shutil, "rmtree", lambda path: shutil.move(path / "metadata", tmp_path.parent) and [][0])
    save(checkpoints, 2)
    with pytest.raises(WriteError):  # in place of the kill
        checkpoints.wait()
    monkeypatch.undo()
    assert Checkpoints.for_reading(tmp_path).steps() == [2]
    checkpoints = open_checkpoints(tmp_path, keep_last=1, keep_best=True)
    save(checkpoints, 3)
    checkpoints.close()
    assert [path.name for path in tmp_path.iterdir()] == ["3"]
