"""What a run refuses before anything is written, and what it lets pass."""

import contextlib
import os

import PIL
import pytest

from metamask_jax.config import apply_overrides, to_json
from metamask_jax.errors import ConfigError
from metamask_jax.evaluate.online import pretrain
from metamask_jax.training import loop, preparation, settings
from metamask_jax.training.workdir import check_workdir
from tests.short_runs import config_for


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


def test_a_batch_the_devices_cannot_share_is_refused(data_dir, tmp_path):
    with pytest.raises(ConfigError, match=r"batch_size=18; expected a multiple of 4, the number of devices"):
        pretrain(config_for(data_dir, train__batch_size=18), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_workdir_that_cannot_be_written_is_refused(data_dir, tmp_path, monkeypatch):
    """A folder of somebody else's: root may write everywhere, so it steps down to another user for the attempt."""
    claim, user = loop.claimed_workdir, os.geteuid()

    @contextlib.contextmanager
    def claim_as_nobody(*args, **how):
        os.seteuid(65534 if user == 0 else user)
        try:
            with claim(*args, **how) as lock:
                yield lock
        finally:
            os.seteuid(user)

    monkeypatch.setattr(loop, "claimed_workdir", claim_as_nobody)
    (tmp_path / "readonly").mkdir(mode=0o555)
    with pytest.raises(ConfigError, match=r"readonly; expected a folder that can be written, but: .*Permission denied"):
        pretrain(config_for(data_dir), tmp_path / "readonly")
    assert not list((tmp_path / "readonly").iterdir())


def test_what_cannot_be_evaluated_is_refused_before_anything_is_written(data_dir, tmp_path):
    with pytest.raises(ConfigError, match=r"config\.eval\.size=1; expected at least 2"):
        pretrain(config_for(data_dir, eval__size=1), tmp_path / "run")
    with pytest.raises(ConfigError, match=r"config\.eval\.k=65; expected at most 64"):
        pretrain(config_for(data_dir, eval__k=65), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_cannot_be_built_is_refused_before_anything_is_written(data_dir, tmp_path, monkeypatch):
    def fail(*args, **settings):
        raise OverflowError("cannot convert float infinity to integer")

    with monkeypatch.context() as patch:
        patch.setattr(preparation, "init_state", fail)
        with pytest.raises(OverflowError):  # of a plugin: its author will want to see where
            pretrain(config_for(data_dir), tmp_path / "run")
        config = apply_overrides(config_for(data_dir), {"plugins": "()", "encoder.name": "resnet18"})
        with pytest.raises(ConfigError, match=r"'resnet18'.* cannot be built \(cannot convert float infinity"):
            pretrain(config, tmp_path / "run")
    monkeypatch.setattr(settings, "make_train_step", lambda config, **how: fail)
    with pytest.raises(OverflowError):
        pretrain(config_for(data_dir), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_configuration_that_was_never_trained_binds_nobody(data_dir, tmp_path):
    (tmp_path / "config.json").write_text(to_json(config_for(data_dir, train__seed=5)))
    check_workdir(tmp_path, config_for(data_dir), accept_changes=False, restart=False)


def test_how_pictures_are_fetched_may_change_when_a_run_goes_on(data_dir, tmp_path):
    (tmp_path / "config.json").write_text(
        to_json(config_for(data_dir, data__options__threads=2, data__options__views=2))
    )
    (tmp_path / "checkpoints" / "5").mkdir(parents=True)

    def go_on(views, **overrides):
        config = config_for(data_dir, data__options__views=views, **overrides)
        check_workdir(tmp_path, config, accept_changes=False, restart=False)

    go_on(views=2)
    go_on(views=2, data__options__threads=64, data__options__processes=3, data__prefetch=9)
    with pytest.raises(ConfigError, match=r"another configuration \(data\.options\.views: 2 -> 3\)"):
        go_on(views=3)


def test_hosts_may_fetch_pictures_in_their_own_ways_but_must_see_the_same(data_dir, monkeypatch):
    compared = {}
    monkeypatch.setattr(preparation.processes, "check_agreement", compared.update)
    preparation._check_agreement(config_for(data_dir, data__options__threads=2, data__options__views=2))
    assert compared["data.options.views"] == 2
    assert compared["pillow"] == PIL.__version__  # whose pixels they see
    assert not compared.keys() & {"data.options.threads", "data.dir", "data.prefetch"}
