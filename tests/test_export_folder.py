"""Folders for hubs of models: what is in them, what they refuse, and what timm makes of them."""

import importlib
import json
import pathlib
import re
import shlex
import sys
from typing import Any

import numpy as np
import pytest

from metamask_jax import load_encoder
from metamask_jax.cli import evaluate, export
from metamask_jax.config import apply_overrides, differences, load_config, to_json
from metamask_jax.core import encoder_folders
from metamask_jax.errors import ConfigError, ExportError
from metamask_jax.evaluate.workdir import Run
from metamask_jax.export import export_folder, zoo_names
from metamask_jax.export.card import training_command
from metamask_jax.export.hub import published, verify_folder
from metamask_jax.training.registry import validate
from tests.untrained import config_of, features_of, inputs_of, run_of

FILES = ["README.md", "config.json", "mask.safetensors", "model.safetensors"]


def with_workdir(run: Run, folder: pathlib.Path) -> Run:
    return run._replace(workdir=folder)


@pytest.fixture(scope="module")
def small() -> Run:
    return run_of(config_of())


@pytest.fixture(scope="module")
def conv() -> Run:
    return run_of(config_of("conv", width=0.03125))


@pytest.fixture(scope="module")
def exported(small: Run, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    workdir = tmp_path_factory.mktemp("run")
    data = {"step": small.step, "dataset": "cifar10", "train_size": 50_000, "features": "h", "protocol": "knn_k200"}
    entry = data | {"top1": 0.8125, "interval": [0.8, 0.82], "top5": 0.99}
    old = entry | {"step": 1, "top1": 0.125}
    (workdir / "evaluation.json").write_text(json.dumps({"results": [entry, old]}))
    folder = tmp_path_factory.mktemp("exported") / "tiny-resnet"
    assert export_folder(with_workdir(small, workdir), folder).equal
    return folder


def test_a_folder_gives_the_features_of_the_run(exported: pathlib.Path, small: Run) -> None:
    assert sorted(file.name for file in exported.iterdir()) == FILES
    x = inputs_of(small, count=4)
    apply, params, preprocessing = load_encoder(exported)
    expected = features_of(small, x)
    np.testing.assert_allclose(apply(params, x), expected, atol=1e-5 * np.abs(expected).max())
    np.testing.assert_array_equal(params["mask"], small.mask_weights)
    assert preprocessing.image_size == small.config.data.image_size
    assert verify_folder(exported, small).equal


def test_an_encoder_that_is_no_resnet_has_our_own_names(conv: Run, tmp_path: pathlib.Path) -> None:
    assert export_folder(with_workdir(conv, tmp_path / "none"), tmp_path / "conv").largest == 0.0
    x = inputs_of(conv, count=4)
    encoder = load_encoder(tmp_path / "conv")
    np.testing.assert_allclose(encoder.apply(encoder.params, x), features_of(conv, x), atol=1e-6)
    assert "architecture" not in json.loads((tmp_path / "conv" / "config.json").read_text())
    assert "Not measured yet" in (tmp_path / "conv" / "README.md").read_text()


def test_the_card_says_that_labels_judged_the_mask(conv: Run, tmp_path: pathlib.Path) -> None:
    config = conv.config.copy_and_resolve_references()
    config.meta.update(outer="labels", labels=0.25)
    export_folder(with_workdir(conv._replace(config=config), tmp_path / "none"), tmp_path / "out")
    said = (tmp_path / "out" / "README.md").read_text().replace("\n", " ")
    assert "with a mask learned by `exact`, which labels judged (`meta.labels=0.25`)" in said


def test_the_card_has_data_command_and_accuracy_of_this_step(exported: pathlib.Path, small: Run) -> None:
    card = (exported / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: metamask_jax\n")
    assert "# tiny-resnet" in card
    assert "| knn_k200 | cifar10 | 50000 | h | 81.25 | 80.00 to 82.00 | 99.00 |" in card
    assert "12.50" not in card
    assert f"    {training_command(published(small.config))}\n" in card


def test_the_command_of_the_card_gives_the_same_settings(small: Run) -> None:
    for config in (small.config, validate(load_config("quickstart")), validate(load_config("stl10"))):
        _, _, base, *flags = shlex.split(training_command(config).removesuffix(" --workdir runs/mine"))
        overrides = dict(flag.removeprefix("--config.").split("=", 1) for flag in flags)
        again = validate(apply_overrides(load_config(base), overrides))
        free = ("data.dir", "data.prefetch", "log.", "checkpoint.")
        assert [line for line in differences(config, again) if not line.startswith(free)] == []
    assert training_command(validate(load_config("quickstart"))).split()[1:3] == ["--config", "quickstart"]


def test_nothing_of_the_machine_is_published(conv: Run, tmp_path: pathlib.Path) -> None:
    config = conv.config.copy_and_resolve_references()
    config.data.dir = "/home/somebody/data"
    with config.data.options.unlocked():
        config.data.options.path = "/home/somebody/pictures"
    config.init["from"] = "/home/somebody/runs/first"
    export_folder(with_workdir(conv._replace(config=config), tmp_path / "none"), tmp_path / "out")
    assert "began with the weights of another run" in (tmp_path / "out" / "README.md").read_text()
    assert b"somebody" not in b"".join(file.read_bytes() for file in (tmp_path / "out").iterdir())


def test_a_folder_can_be_written_again_but_not_over_something_else(conv: Run, tmp_path: pathlib.Path) -> None:
    run = with_workdir(conv, tmp_path / "none")
    export_folder(run, tmp_path / "out")
    export_folder(run, tmp_path / "out")
    (tmp_path / "out" / "thesis.tex").write_text("precious")
    with pytest.raises(ExportError, match="holds something else; expected a new folder"):
        export_folder(run, tmp_path / "out")
    assert [file.name for file in tmp_path.iterdir()] == ["out"]  # nothing temporary stays


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("config.json", b"{}", "config.json cannot be used"),
        ("config.json", b"\xff", "config.json cannot be used"),
        ("model.safetensors", b"x" * 20, "model.safetensors cannot be read"),
        ("mask.safetensors", b"", "mask.safetensors cannot be read"),
    ],
)
def test_a_damaged_folder_is_refused(exported, tmp_path, file, content, message) -> None:
    for name in FILES:
        (tmp_path / name).write_bytes((exported / name).read_bytes())
    (tmp_path / file).write_bytes(content)
    with pytest.raises(ExportError, match=message):
        load_encoder(tmp_path)


def test_weights_of_another_network_are_refused(exported: pathlib.Path, tmp_path: pathlib.Path) -> None:
    for name in FILES:
        (tmp_path / name).write_bytes((exported / name).read_bytes())
    content = json.loads((tmp_path / "config.json").read_text())
    content["metamask_jax"]["config"]["encoder"]["width"] = 0.25
    (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(ExportError, match=r"has \(.*\) for .*; expected \(.*\), by the encoder in config\.json"):
        load_encoder(tmp_path)


def test_encoders_in_the_box_go_by_their_names(exported, monkeypatch, tmp_path, small) -> None:
    box = tmp_path / "zoo"
    box.mkdir()
    exported_copy = box / "tiny"
    exported_copy.mkdir()
    for name in FILES:
        (exported_copy / name).write_bytes((exported / name).read_bytes())
    monkeypatch.setattr(encoder_folders, "BOX", box)
    assert zoo_names() == ["tiny"]
    np.testing.assert_array_equal(load_encoder("zoo:tiny").params["mask"], small.mask_weights)
    with pytest.raises(ConfigError, match="zoo:tin is not in the box; expected one of zoo:tiny"):
        load_encoder("zoo:tin")


def test_a_folder_can_be_evaluated_without_a_workdir(conv, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = conv.config.copy_and_resolve_references()
    overrides = {"data.name": "confounded_shapes", "data.dir": str(tmp_path / "data"), "data.options.train_size": "60"}
    run = conv._replace(config=validate(apply_overrides(config, overrides | {"data.options.test_size": "30"})))
    export_folder(with_workdir(run, tmp_path / "none"), tmp_path / "encoder")
    flags = ["--encoder", "encoder", "--protocol", "knn_official", "--data-dir", str(tmp_path / "data")]
    assert evaluate.main(flags) == 0, capsys.readouterr().err
    assert "knn_official" in capsys.readouterr().out
    entries = json.loads((tmp_path / "runs" / "encoder" / "evaluation.json").read_text())["results"]
    assert {entry["features"] for entry in entries} == {"h", "h*m"}
    assert sorted(file.name for file in (tmp_path / "encoder").iterdir()) == FILES
    assert evaluate.main(["--encoder", "nowhere"]) == 2
    assert "--encoder nowhere; expected a folder that metamask-export" in capsys.readouterr().err
    assert export.main(["--workdir", "x", "--format", "hf", "--mask", "none", "--out", "y"]) == 2
    assert "expected apart" in capsys.readouterr().err


def test_of_an_encoder_of_own_pictures_one_is_asked_where_they_are(conv, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = validate(apply_overrides(conv.config.copy_and_resolve_references(), {"data.name": "image_folder"}))
    export_folder(with_workdir(conv._replace(config=config), tmp_path / "none"), tmp_path / "encoder")
    card = (tmp_path / "encoder" / "README.md").read_text()
    assert "--protocol knn,linear --option path=PICTURES\n" in card
    assert "--workdir runs/mine --config.data.options.path=PICTURES\n" in card
    assert evaluate.main(["--encoder", "encoder"]) == 2
    assert capsys.readouterr().err == (
        "--encoder encoder was trained on a folder of pictures, which it does not name; expected --option path=FOLDER\n"
    )


def import_timm() -> Any:
    """timm, where it is installed; its torchvision may be built for a device that is not there."""
    torch = pytest.importorskip("torch")
    if importlib.util.find_spec("timm") is None or importlib.util.find_spec("torchvision") is None:
        pytest.skip("timm is not installed")
    library = torch.library.Library("torchvision", "FRAGMENT")
    for _ in range(9):  # operators of detection, which no ResNet uses, are declared where their code cannot be loaded
        try:
            importlib.import_module("torchvision")
            break
        except RuntimeError as error:
            missing = re.search(r"operator torchvision::(\w+) does not exist", str(error))
            if missing is None:
                raise
            library.define(f"{missing[1]}(Tensor x) -> Tensor")
            for name in [name for name in sys.modules if name.startswith("torchvision")]:
                del sys.modules[name]
    return importlib.import_module("timm"), torch, library


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_timm_gives_the_same_features(name: str, tmp_path: pathlib.Path) -> None:
    timm, torch, _ = import_timm()
    run = run_of(config_of(name, width=1.0, stem="imagenet", image_size=64))
    export_folder(with_workdir(run, tmp_path / "none"), tmp_path / "out")
    x = inputs_of(run)
    images = torch.from_numpy(np.array(x).transpose(0, 3, 1, 2))
    expected = features_of(run, x)
    by_file = timm.create_model(name, num_classes=0, checkpoint_path=str(tmp_path / "out" / "model.safetensors"))
    by_folder = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True)
    for model in (by_file, by_folder):
        with torch.no_grad():
            found = model.eval()(images).numpy()
        np.testing.assert_allclose(found, expected, atol=1e-4 * np.abs(expected).max())
    settings = timm.data.resolve_data_config(model=by_folder)
    assert list(settings["input_size"]) == [3, 64, 64]
    assert list(settings["mean"]) == list(load_encoder(tmp_path / "out").preprocessing.mean)


def test_only_where_timm_has_the_architecture_it_is_named(exported: pathlib.Path, small: Run) -> None:
    assert small.config.encoder.width < 1
    assert "architecture" not in json.loads((exported / "config.json").read_text())
    assert "timm" not in (exported / "README.md").read_text()
    assert to_json(published(small.config))
