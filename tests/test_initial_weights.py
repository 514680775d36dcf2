"""Runs that begin with given weights: whose they are, what is refused, and that a resumed run needs them no more."""

import json
import pathlib
import shutil
from typing import Any

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict

from metamask_jax import load_encoder
from metamask_jax.cli.pretrain import main
from metamask_jax.config import apply_overrides, to_json
from metamask_jax.core.array_files import WRITERS, Export
from metamask_jax.errors import CheckpointError, ConfigError
from metamask_jax.evaluate.evaluation import evaluate_run
from metamask_jax.evaluate.online import pretrain
from metamask_jax.evaluate.protocols import Settings
from metamask_jax.evaluate.workdir import Run, load_run
from metamask_jax.export import export_encoder, export_folder, zoo_names
from metamask_jax.models.torchvision import to_torchvision
from metamask_jax.training.checkpoint import Checkpoints
from metamask_jax.training.initial import first_state
from metamask_jax.training.registry import REGISTRY, validate
from metamask_jax.training.state import TrainState, init_state
from tests.tiny import register, tiny_config
from tests.untrained import config_of, run_of

NARROW = {"encoder.name": "resnet18", "encoder.width": "0.25", "encoder.stem": "cifar"}  # the box has one of those
WEIGHTS = ("params", "batch_stats", "method_state", "mask")


def moved(state: TrainState, by: float) -> TrainState:
    """The state with other numbers everywhere in its weights."""
    parts = {name: jax.tree.map(lambda x: np.asarray(x) + np.float32(by), getattr(state, name)) for name in WEIGHTS}
    return state.replace(**parts)


def saved(folder: pathlib.Path, config: ConfigDict, states: dict[int, TrainState]) -> pathlib.Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(to_json(config))
    checkpoints = Checkpoints(folder / "checkpoints", keep_last=9, keep_every=None, keep_best=False)
    for step, state in states.items():
        checkpoints.save(step, state, config=to_json(config))
    checkpoints.close()
    return folder


def beginning_with(path: object, config: ConfigDict | None = None, **keys: object) -> ConfigDict:
    overrides = {"init.from": str(path)} | {key.replace("__", "."): str(value) for key, value in keys.items()}
    return validate(apply_overrides((config or tiny_config()).copy_and_resolve_references(), overrides))


def assert_same(found: object, expected: object) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(np.asarray(a), np.asarray(b)), found, expected)


@pytest.fixture(scope="module")
def byol() -> ConfigDict:
    return tiny_config({"method.name": "byol", "method.predictor": "6"})


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory, byol: ConfigDict) -> tuple[pathlib.Path, TrainState]:
    """Another run's workdir, with checkpoints after steps 5 and 9, and the state of the last."""
    fresh = jax.device_get(init_state(byol))
    last = moved(fresh, 0.5)
    return saved(tmp_path_factory.mktemp("other"), byol, {5: moved(fresh, 0.25), 9: last}), last


@pytest.mark.parametrize("format_", ["workdir", "npz", "msgpack"])
def test_the_encoder_is_taken_over_and_all_else_is_as_the_seed_says(other, byol, tmp_path, format_) -> None:
    path, last = other
    if format_ != "workdir":
        path = tmp_path / "encoder"
        mask = {"npz": "folded", "msgpack": "apart"}[format_]  # beside the encoder, and no part of it
        run = Run(tmp_path, byol, last, 9, register(REGISTRY))
        export_encoder(run, path, format=format_, mask=mask)
    state, fresh = first_state(beginning_with(path, byol)), init_state(byol)
    for name in ("params", "batch_stats"):
        assert_same(getattr(state, name)["encoder"], getattr(last, name)["encoder"])
        for part in ("method", "drr_head"):
            assert_same(getattr(state, name)[part], getattr(fresh, name)[part])
    assert_same(state.method_state["encoder"], last.params["encoder"])  # a target starts as a copy of what is trained
    assert_same((state.mask, state.step, state.opt_state), (fresh.mask, fresh.step, fresh.opt_state))


def test_all_weights_are_taken_over_and_the_optimisers_start_afresh(other, byol) -> None:
    path, last = other
    state = first_state(beginning_with(path, byol, init__parts="all"))
    for name in WEIGHTS:
        assert_same(getattr(state, name), getattr(last, name))
    fresh = init_state(byol)
    for name in ("step", "opt_state", "mask_opt_state", "skipped"):
        assert_same(getattr(state, name), getattr(fresh, name))


def test_an_earlier_step_can_be_asked_for(other, byol) -> None:
    path, _ = other
    state = first_state(beginning_with(path, byol, init__step=5))
    expected = moved(jax.device_get(init_state(byol)), 0.25)
    assert_same(state.params["encoder"], expected.params["encoder"])


def test_lookahead_remembers_the_weights_it_began_with(tmp_path) -> None:
    config = tiny_config({"meta.estimator": "lookahead"})
    last = moved(jax.device_get(init_state(config)), 0.5)
    last = last.replace(previous=moved(last.previous, 0.7))
    state = first_state(beginning_with(saved(tmp_path / "run", config, {3: last}), config, init__parts="all"))
    assert_same(state.previous.params, last.params)
    assert_same(state.previous.mask, last.mask)


def torchvision_file(path: pathlib.Path, config: ConfigDict) -> tuple[Any, Any]:
    """Writes an encoder in torchvision's layout, the mask as its last layer; returns parameters and statistics."""
    state = run_of(config).state
    params, stats = (
        jax.tree.map(np.float32, tree["encoder"], is_leaf=lambda x: isinstance(x, np.ndarray))
        for tree in (state.params, state.batch_stats)
    )
    mask_layer = {"fc.weight": np.diag(state.mask), "fc.bias": np.zeros_like(state.mask)}
    tensors = to_torchvision(params, stats, batches=1) | mask_layer
    WRITERS["safetensors"](path, Export(tensors, {"layout": "torchvision"}))
    return params, stats


def test_a_file_in_torchvisions_layout_comes_back_bit_for_bit(tmp_path) -> None:
    config = config_of()
    params, stats = torchvision_file(tmp_path / "encoder", config)
    state = first_state(beginning_with(tmp_path / "encoder", config))
    assert_same(state.params["encoder"], params)
    assert_same(state.batch_stats["encoder"], stats)


def test_an_encoder_in_the_box_comes_back_bit_for_bit() -> None:
    given = load_encoder("zoo:cifar10-simclr-resnet18-narrow").params
    state = first_state(beginning_with("zoo:cifar10-simclr-resnet18-narrow", apply_overrides(tiny_config(), NARROW)))
    assert_same(state.params["encoder"], given["params"])
    assert_same(state.batch_stats["encoder"], given["batch_stats"])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("zoo:lion", f"zoo:lion is not in the box; expected one of zoo:{zoo_names()[0]}"),
        (
            f"zoo:{zoo_names()[0]}",
            f"config.init.from='zoo:{zoo_names()[0]}' has shape (16,) for params.encoder.bn1.bias; expected shape "
            "(32,) for config.encoder.name='resnet18' with config.encoder.width=0.5",
        ),
    ],
)
def test_what_the_box_does_not_have_is_one_sentence_and_exit_code_2(name, message, tmp_path, capsys) -> None:
    changed = NARROW | {"encoder.width": "0.5", "encoder.features": "None"}
    wider = [f"--config.{key}={value}" for key, value in changed.items()]
    data = [f"--config.data.dir={tmp_path / 'data'}", "--config.data.options.train_size=128"]
    command = [
        "--config=quickstart:paper",
        f"--workdir={tmp_path / 'run'}",
        f"--config.init.from={name}",
        *wider,
        *data,
    ]
    assert main(command) == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith(message)
    assert not (tmp_path / "run").exists()


def test_an_exported_folder_gives_its_encoder_and_a_workdir_with_an_exported_file_is_still_one(
    other, byol, tmp_path
) -> None:
    path, last = other
    run = Run(tmp_path / "none", byol, last, 9, register(REGISTRY))
    export_folder(run, tmp_path / "folder")
    workdir = shutil.copytree(path, tmp_path / "run")
    export_encoder(run, workdir / "model.safetensors", format="npz", mask="none")
    for keys in ({"path": tmp_path / "folder"}, {"path": workdir, "init__parts": "all", "init__step": 9}):
        state = first_state(beginning_with(keys.pop("path"), byol, **keys))
        assert_same(state.params["encoder"], last.params["encoder"])


def test_another_depth_is_refused_by_the_first_parameter_too_many_or_too_few(tmp_path) -> None:
    configs = {name: config_of(name) for name in ("resnet18", "resnet34")}
    for name, config in configs.items():
        torchvision_file(tmp_path / name, config)
    with pytest.raises(ConfigError, match=r"for params\.encoder\.layer1\.2\.bn1\.bias; expected no such parameter"):
        first_state(beginning_with(tmp_path / "resnet34", configs["resnet18"]))
    with pytest.raises(ConfigError, match=r"has nothing for params\.encoder\.layer1_2\.bn1\.bias; expected shape"):
        first_state(beginning_with(tmp_path / "resnet18", configs["resnet34"]))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"init__from": "nowhere"}, r"config\.init\.from='nowhere' does not exist; expected the folder of"),
        ({"init__step": 6}, r"config\.init\.step=6; expected None for the newest, or a step that .* has: 5, 9"),
        (
            {"data__image_size": 48},
            r"has shape \(48, 12\) for params\.encoder\.fc\.kernel; expected shape \(108, 12\) for config\.encoder",
        ),
        (
            {"init__parts": "all", "method__head": (8, 7)},
            r"has shape \(6,\) for params\.method\.\S+; expected shape \(7,\)",
        ),
    ],
)
def test_what_does_not_fit_is_one_sentence(other, byol, keys, message) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        first_state(beginning_with(keys.pop("init__from", other[0]), byol, **keys))
    assert "\n" not in str(caught.value)


def test_a_file_has_no_heads_and_no_steps(other, byol, tmp_path) -> None:
    export_encoder(Run(tmp_path, byol, other[1], 9, register(REGISTRY)), tmp_path / "e", format="npz", mask="none")
    for keys, found in (({"init__parts": "all"}, "parts='all'"), ({"init__step": 9}, "step=9")):
        with pytest.raises(ConfigError, match=rf"config\.init\.{found} with .*, an exported file; expected"):
            first_state(beginning_with(tmp_path / "e", byol, **keys))
    (tmp_path / "text").write_text("no weights")
    with pytest.raises(ConfigError, match="text cannot be read"):
        first_state(beginning_with(tmp_path / "text", byol))


def test_a_folder_without_weights_and_a_damaged_one_are_refused(other, byol, tmp_path) -> None:
    with pytest.raises(ConfigError, match="has no checkpoint; expected a run that has saved at least one"):
        first_state(beginning_with(tmp_path, byol))
    copy = shutil.copytree(other[0], tmp_path / "copy")
    for path in (copy / "checkpoints" / "9" / "state").rglob("*"):
        if path.is_file():
            path.write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"checkpoint 9 cannot be read.*or another config\.init\.step"):
        first_state(beginning_with(copy, byol))


@pytest.fixture(scope="module")
def continued(tmp_path_factory: pytest.TempPathFactory) -> tuple[pathlib.Path, pathlib.Path, ConfigDict, TrainState]:
    """Where weights came from, a run of four steps that began with them, its configuration, and the weights."""
    root = tmp_path_factory.mktemp("continued")
    data = {"data.dir": str(root / "data"), "data.options.train_size": "64", "data.options.test_size": "32"}
    config = tiny_config(data | {"train.steps": "4", "checkpoint.every_steps": "2", "data.augmentation": "eval"})
    source = moved(jax.device_get(init_state(config)), 0.01)
    config = beginning_with(saved(root / "source", config, {1: source}), config, init__parts="all")
    pretrain(config, root / "run")
    return root / "source", root / "run", config, source


@pytest.mark.slow
def test_a_run_says_what_it_began_with_and_goes_on_without_it(continued, tmp_path) -> None:
    source, run, config, _ = continued
    recorded = json.loads((run / "config.json").read_text())["init"]
    assert recorded == {"from": str(source), "parts": "all", "step": None}
    copy = shutil.copytree(run, tmp_path / "copy")
    shutil.rmtree(copy / "checkpoints" / "4")
    hidden = source.rename(source.with_name("hidden"))
    try:
        pretrain(config, copy)  # what it goes on with is in its own checkpoints
        with pytest.raises(ConfigError, match="does not exist"):
            pretrain(config, tmp_path / "new")
        assert not (tmp_path / "new").exists()
    finally:
        hidden.rename(source)
    assert_same(load_run(copy).state, load_run(run).state)


@pytest.mark.slow
def test_the_first_step_starts_at_the_given_weights(continued, tmp_path) -> None:
    """With a learning rate of zero they are still there at the end."""
    source, _, config, given = continued
    still = {"optimizer__learning_rate": 0.0, "mask__learning_rate": 0.0, "train__steps": 1}
    pretrain(beginning_with(source, config, **still), tmp_path)
    state = load_run(tmp_path).state
    assert_same(state.params, given.params)
    assert_same(state.mask, given.mask)


@pytest.mark.slow
def test_such_a_run_is_fine_tuned_on_another_dataset(continued, tmp_path) -> None:
    from PIL import Image

    random = np.random.default_rng(0)
    for split, count in (("train", 20), ("test", 8)):
        for label, shade in (("dark", 40), ("light", 200)):
            (tmp_path / "own" / split / label).mkdir(parents=True)
            for i in range(count):
                pixels = np.clip(random.normal(shade, 20, (32, 32, 3)), 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(tmp_path / "own" / split / label / f"{i}.png")
    _, run, _, _ = continued
    (entry,) = evaluate_run(
        run,
        protocols=["finetune"],
        dataset="image_folder",
        options={"path": str(tmp_path / "own")},
        data_dir=str(tmp_path / "data"),
        settings=Settings(finetune_min_steps=20, finetune_batch_size=16),
    )
    assert entry["top1"] > 0.9
    assert entry["train_size"] == 40
