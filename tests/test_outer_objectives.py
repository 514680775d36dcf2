"""What judges the mask: another batch, other views or a few labels; exact, on devices, and after a restart."""

import contextlib
import functools
import itertools
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metamask_jax.core.state import Judged
from metamask_jax.core.storage import read_json_lines
from metamask_jax.data import judging
from metamask_jax.data.in_memory import ArraySource
from metamask_jax.data.judging import at_hand, judge_batch_size, labelled_images, with_judges, with_next
from metamask_jax.data.sources import open_configured
from metamask_jax.data.splits import Splits, configured_splits
from metamask_jax.errors import ConfigError
from metamask_jax.evaluate.online import pretrain
from metamask_jax.training.checkpoint import Checkpoints
from metamask_jax.training.compilation import lower_step
from metamask_jax.training.sampling import make_sampler
from metamask_jax.training.settings import Programs
from metamask_jax.training.state import build_model, init_state
from metamask_jax.training.step import Objective
from metamask_jax.training.stream import labelled_source
from tests.references import relative_error
from tests.test_own_folder import pictures
from tests.tiny import LENGTH, doubled_start, step_on, tiny_batch, tiny_config, with_views

CASES = {
    "next": {"meta.outer": "next"},
    "views": {"meta.outer": "views"},
    "neighbors": {"meta.outer": "labels"},
    "linear": {"meta.outer": "labels", "meta.outer_loss": "linear"},
    "labels, heads only": {"meta.outer": "labels", "meta.scope": "head"},
}
# A plain step of the mask at rate one shows the meta-gradient itself; smooth networks allow differences.
SHARED = {
    "data.augmentation": "plain",
    "encoder.name": "smooth",
    "method.head": "(6,)",
    "optimizer.schedule": "constant",
    "mask.momentum": "0",
    "mask.weight_decay": "0",
    "mask.schedule": "constant",
    "meta.trial": "gradient",
    "meta.learning_rate": "0.2",
    "meta.head_learning_rate": "0.3",
}


def noisy_views(images, keys):
    """Two views in float64 whose noise is a function of the keys."""
    noise = jax.vmap(lambda key: jax.random.uniform(key, (2, *images.shape[1:]), jnp.float64))(keys)
    return images.astype(jnp.float64) / 255 + 0.2 * jnp.moveaxis(noise, 1, 0)


REGISTRY = with_views(noisy_views)
BATCH = tiny_batch()
JUDGE = BATCH._replace(images=BATCH.images[::-1] ^ np.uint8(37), labels=(BATCH.positions // 2) % 3)


def batch_of(config):
    return BATCH if config.meta.outer == "views" else Judged(BATCH, JUDGE)


@functools.cache
def first_step(name, devices=1):
    """The configuration, the state before and after the first step, and its metrics."""
    with jax.enable_x64(True):
        config, state = doubled_start(tiny_config(SHARED | CASES[name], REGISTRY), REGISTRY)
        after, metrics = step_on(devices, config, REGISTRY)(state, batch_of(config))
        return config, state, after, metrics


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", CASES)
def test_the_mask_descends_the_difference_of_its_outer_objective(name):
    config, state, after, metrics = first_step(name)
    objective = Objective(config, build_model(config, axis_name=None, registry=REGISTRY), None)
    # With a trial step of the heads alone, the trial starts before the regular step.
    at = state if config.meta.scope == "head" else after
    model_state = {"batch_stats": at.batch_stats, "method_state": state.method_state}
    sample = make_sampler(config, **LENGTH, registry=REGISTRY)(state, batch_of(config))

    @jax.jit
    def outer(mask):
        gradient = jax.grad(lambda params: objective.method_loss(params, mask, model_state, sample)[0])(at.params)
        rates = {"encoder": 0.0 if config.meta.scope == "head" else 0.2, "method": 0.3, "drr_head": 0.3}
        trial = {
            part: jax.tree.map(lambda w, g, part=part: w - rates[part] * g, at.params[part], gradient[part])
            for part in gradient
        }
        return objective.outer_loss(trial, mask, model_state, sample)[0]

    size = 1e-5
    shifts = size * jnp.eye(len(state.mask))
    differences = jnp.stack([outer(state.mask + shift) - outer(state.mask - shift) for shift in shifts]) / (2 * size)
    assert relative_error(state.mask - after.mask, differences) < 1e-6
    assert float(metrics["loss_outer"]) == pytest.approx(float(outer(state.mask)), rel=1e-9)
    # Labels are read off the features: what heads would do in a trial step does not reach them.
    through_trial = float(metrics["meta_second_order_norm"]) > 1e-4 * float(metrics["meta_direct_norm"])
    assert through_trial == (name != "labels, heads only")
    # It is another judge than the batch itself.
    assert float(metrics["loss_outer"]) != pytest.approx(float(metrics["loss_method"]), rel=1e-3)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", CASES)
def test_four_devices_do_what_one_does(name):
    _, _, one, metrics = first_step(name)
    _, _, four, four_metrics = first_step(name, devices=4)
    np.testing.assert_allclose(four.mask, one.mask, rtol=1e-9, atol=1e-12)
    for key, value in metrics.items():
        assert float(four_metrics[key]) == pytest.approx(float(value), rel=1e-8), key


def test_a_batch_without_its_judge_is_refused():
    config = tiny_config({"meta.outer": "next"})
    with pytest.raises(TypeError, match=r"batch is a Batch; expected a Judged for .*config.meta.outer='next'"):
        step_on(1, config)(init_state(config), BATCH)


def run_config(data_dir, overrides):
    return tiny_config(
        {
            "train.steps": "6",
            "data.dir": str(data_dir),
            "data.options.train_size": "64",
            "data.options.test_size": "32",
            "eval.every_epochs": "0",
            "log.every_steps": "1",
            "log.tensorboard": "false",
            "checkpoint.every_steps": "3",
            **overrides,
        }
    )


@pytest.mark.parametrize("overrides", [{"meta.outer": "next"}, {"meta.outer": "labels", "meta.labels": "0.5"}], ids=str)
def test_resumed_is_bit_identical(tmp_path, overrides):
    config = run_config(tmp_path / "data", overrides)
    workdirs = tmp_path / "whole", tmp_path / "resumed"
    pretrain(config, workdirs[0])
    shutil.copytree(*workdirs)
    shutil.rmtree(workdirs[1] / "checkpoints" / "6")
    pretrain(config, workdirs[1])
    expected, found = (
        Checkpoints.for_reading(workdir / "checkpoints").restore(init_state(config), step=6).state
        for workdir in workdirs
    )
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    logs = [read_json_lines(workdir / "metrics.jsonl") for workdir in workdirs]
    assert [line["loss_outer"] for line in logs[1]] == [line["loss_outer"] for line in logs[0]]


def test_labelled_images_are_few_fixed_of_every_class_and_not_of_the_test_split(tmp_path):
    config = run_config(tmp_path, {"meta.outer": "labels", "meta.labels": "20"})
    chosen, again = labelled_source(config), labelled_source(config)
    train, test = (open_configured(config.data, split=split) for split in ("train", "test"))
    assert set(chosen.labels) == set(train.labels)
    assert len(chosen) < 30
    np.testing.assert_array_equal(chosen.images, again.images)
    pictures = {image.tobytes() for image in chosen.images}
    assert pictures <= {image.tobytes() for image in train.images}
    assert not pictures & {image.tobytes() for image in test.images}


@pytest.fixture
def own_pictures(tmp_path):
    """Overrides for a folder of pictures of many sizes in two classes, without a test split."""
    folder = pictures(tmp_path / "pictures", [f"{name}/{i}.png" for name in ("cat", "dog") for i in range(20)])
    return {
        "data.name": "image_folder",
        "data.options.path": str(folder),
        "data.dir": str(tmp_path / "data"),
        "data.augmentation": "eval",
        "meta.outer": "labels",
        "meta.labels": "0.5",
    }


def test_pictures_that_are_held_out_to_be_tested_on_never_judge(own_pictures):
    config = tiny_config(own_pictures)
    splits, chosen = configured_splits(config.data), labelled_source(config)
    assert splits.held_out == 8
    assert np.bincount(chosen.labels).tolist() == [8, 8]
    assert set(chosen.rows) <= set(splits.train.rows)
    assert not set(chosen.rows) & set(splits.test.rows)


@pytest.mark.parametrize("views", ["0", "2"])  # cropped by the device, or by the host
def test_pictures_of_many_sizes_judge_and_few_are_decoded_once(own_pictures, views, tmp_path, monkeypatch):
    size = tiny_config(own_pictures).data.image_size
    overrides = own_pictures | {"train.steps": "3", "eval.every_epochs": "0", "log.every_steps": "1"}
    config, masks, programs = tiny_config(overrides | {"data.options.views": views}), [], Programs()
    for few in (16 * 3 * size**2, 16 * 3 * size**2 - 1):
        monkeypatch.setattr(judging, "_FEW", few)
        labelled = labelled_source(config)
        assert isinstance(at_hand(labelled), ArraySource) == (labelled.size * 3 * size**2 <= few)
        workdir = tmp_path / f"run-{few}"
        pretrain(config, workdir, programs=programs)
        masks.append(Checkpoints.for_reading(workdir / "checkpoints").restore(init_state(config), step=3).state.mask)
    np.testing.assert_array_equal(*masks)
    assert np.ptp(masks[0]) > 0


@pytest.mark.parametrize(("amount", "alone"), [("0.05", True), ("4", False)])
def test_a_run_says_when_one_picture_of_every_class_cannot_judge(own_pictures, amount, alone, tmp_path, caplog):
    config = tiny_config(own_pictures | {"meta.labels": amount, "train.steps": "1", "eval.every_epochs": "0"})
    too_few = pytest.raises(ConfigError, match="gives 2 images; expected at least 4, some for each device")
    with too_few if alone else contextlib.nullcontext():
        pretrain(config, tmp_path / "run")
    assert ("gives one image of every class, so that the mask stays as it is" in caplog.text) == alone


def test_labelled_pictures_come_whole_to_a_program_whose_views_the_host_crops():
    config = tiny_config({"meta.outer": "labels", "data.views": "2"})
    lower_step(config, jax.devices()[:1], (2, config.data.image_size, config.data.image_size, 3))


def unlabelled(count=4):
    images = np.zeros((count, 8, 8, 3), np.uint8)
    labels = np.full(count, -1, np.int32)
    return ArraySource(name="own", images=images, labels=labels, num_classes=0, class_names=(), factors={})


def test_what_cannot_judge_is_refused():
    with pytest.raises(ConfigError, match=r"config.meta.outer='labels' on 'own'; expected a labelled set"):
        labelled_images(Splits(unlabelled(), unlabelled(), False, 0, ""), amount=0.5, seed=0)
    with pytest.raises(ConfigError, match=r"config.meta.labels gives 3 images; expected at least 4"):
        judge_batch_size(3, batch_size=16, parts=4)
    with pytest.raises(ConfigError, match=r"config.meta.outer='labels'; expected 'batch' for .*'lookahead'"):
        tiny_config({"meta.outer": "labels", "meta.estimator": "lookahead"})


def test_streams_come_in_pairs_and_close_what_they_read():
    assert list(with_next(step for step in range(4))) == [(0, 1), (1, 2), (2, 3)]
    streams = (step for step in range(3)), (step for step in itertools.count(10))
    pairs = with_judges(*streams)
    assert next(pairs) == Judged(0, 10)
    pairs.close()
    assert [list(stream) for stream in streams] == [[], []]
