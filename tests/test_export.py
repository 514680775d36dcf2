"""Encoders taken out of a run: files of every format, the proof of equality, and the commands."""

import json
import logging
import pathlib
import types

import jax
import numpy as np
import pytest

from metamask_jax.augment.presets import IMAGENET_MEAN, IMAGENET_STD
from metamask_jax.cli.export import main
from metamask_jax.config import apply_overrides, to_json
from metamask_jax.errors import ConfigError, ExportError
from metamask_jax.evaluate.features import make_extractor
from metamask_jax.evaluate.workdir import Run
from metamask_jax.export import export_encoder, load_encoder, read_export, verify_export
from metamask_jax.training.checkpoint import Checkpoints
from metamask_jax.training.registry import REGISTRY, validate
from metamask_jax.training.state import init_state
from tests.tiny import register, tiny_config
from tests.untrained import config_of, run_of


@pytest.fixture(scope="module")
def small() -> Run:
    return run_of(config_of())


@pytest.fixture(scope="module")
def workdir(tmp_path_factory: pytest.TempPathFactory, small: Run) -> pathlib.Path:
    """A working directory with two checkpoints, as training leaves it."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "config.json").write_text(to_json(small.config))
    fresh = init_state(small.config)
    checkpoints = Checkpoints(folder / "checkpoints", keep_last=2, keep_every=None, keep_best=False)
    for step, scale in ((3, 1.0), (7, 1.5)):
        encoder = jax.tree.map(lambda x, scale=scale: scale * x, small.state.params["encoder"])
        state = fresh.replace(
            params=dict(fresh.params) | {"encoder": encoder},
            batch_stats=dict(fresh.batch_stats) | {"encoder": small.state.batch_stats["encoder"]},
            mask=small.state.mask,
        )
        checkpoints.save(step, state, config=to_json(small.config))
    checkpoints.close()
    return folder


@pytest.mark.parametrize("format_", ["safetensors", "npz", "msgpack"])
@pytest.mark.parametrize("mask", ["apart", "folded", "none"])
def test_every_format_comes_back_as_it_was(small: Run, tmp_path: pathlib.Path, format_: str, mask: str) -> None:
    path = tmp_path / "encoder.bin"
    difference = export_encoder(small, path, format=format_, mask=mask)
    assert difference.equal
    if format_ != "safetensors":
        assert difference.largest == 0.0
    export = read_export(path)
    assert [file.name for file in tmp_path.iterdir()] == ["encoder.bin"]
    kernel = small.state.params["encoder"]["layer2_0"]["downsample_0"]["kernel"]
    if format_ == "safetensors":
        np.testing.assert_array_equal(export.arrays["layer2.0.downsample.0.weight"].transpose(2, 3, 1, 0), kernel)
    else:
        np.testing.assert_array_equal(export.arrays["params/layer2_0/downsample_0/kernel"], kernel)
    last = {name for name in export.arrays if name == "mask" or name.startswith("fc")}
    assert len(last) == {"apart": 1, "folded": 2, "none": 0}[mask]
    if mask == "apart":
        np.testing.assert_array_equal(export.arrays["mask"], small.mask_weights)


def test_a_file_says_how_to_use_it(small: Run, tmp_path: pathlib.Path) -> None:
    export_encoder(small, tmp_path / "a.npz", format="npz", mask="apart")
    metadata = read_export(tmp_path / "a.npz").metadata
    assert metadata["encoder"] == {
        "name": "resnet18",
        "width": 0.125,
        "stem": "cifar",
        "dim": 64,
        "trained_in": "float32",
    }
    assert metadata["preprocessing"]["channels"] == ["R", "G", "B"]
    assert metadata["preprocessing"]["mean"] == list(IMAGENET_MEAN)
    assert (metadata["preprocessing"]["image_size"], metadata["preprocessing"]["shortest"]) == (32, 32)
    assert (metadata["step"], metadata["mask"], metadata["layout"]) == (7, "apart", "flax")
    assert metadata["batch_norm_epsilon"] == 1e-5


def test_loading_an_encoder_says_nothing(workdir: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    """Orbax warns of a folder that is read only, which is how it is opened on purpose."""
    with caplog.at_level(logging.WARNING, "absl"):
        load_encoder(workdir)
    assert caplog.text == ""


def test_safetensors_metadata_are_readable_without_this_package(small: Run, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a.safetensors"
    export_encoder(small, path, format="safetensors", mask="none")
    content = path.read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    assert json.loads(header["__metadata__"]["metamask_jax"])["encoder"]["name"] == "resnet18"


@pytest.mark.parametrize("format_", ["safetensors", "npz"])
def test_other_weights_are_not_equal(small: Run, tmp_path: pathlib.Path, format_: str) -> None:
    path = tmp_path / "a"
    export_encoder(small, path, format=format_, mask="apart")
    stats = jax.tree.map(np.copy, small.state.batch_stats)
    stats["encoder"]["layer4_1"]["bn2"]["var"][0] *= 1.01
    state = types.SimpleNamespace(**vars(small.state) | {"batch_stats": stats})
    assert verify_export(path, small).equal
    assert not verify_export(path, small._replace(state=state)).equal
    state = types.SimpleNamespace(**vars(small.state) | {"mask": small.state.mask + 0.01})
    assert not verify_export(path, small._replace(state=state)).equal


def test_runs_of_half_precision_are_compared_in_float32(tmp_path: pathlib.Path) -> None:
    config = config_of()
    config.train.dtype = "bfloat16"
    run = run_of(config)
    difference = export_encoder(run, tmp_path / "a.safetensors", format="safetensors", mask="none")
    assert difference.equal


def test_only_resnets_have_torchvisions_layout(tmp_path: pathlib.Path) -> None:
    run = run_of(config_of("conv"))
    with pytest.raises(ExportError, match=r"encoder.name='conv' with --format safetensors.*; expected a ResNet"):
        export_encoder(run, tmp_path / "a", format="safetensors", mask="none")
    assert export_encoder(run, tmp_path / "a", format="msgpack", mask="folded").largest == 0.0


def test_unknown_formats_and_masks_are_refused(small: Run, tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match=r"format='onnx'; expected one of 'safetensors', 'npz', 'msgpack'"):
        export_encoder(small, tmp_path / "a", format="onnx", mask="none")
    with pytest.raises(ValueError, match=r"mask='on'; expected one of 'apart', 'folded', 'none'"):
        export_encoder(small, tmp_path / "a", format="npz", mask="on")


def test_files_that_are_no_exports_are_refused(small: Run, tmp_path: pathlib.Path) -> None:
    export_encoder(small, tmp_path / "whole", format="safetensors", mask="none")
    cut = (tmp_path / "whole").read_bytes()[:-100]
    zipped = tmp_path / "zipped"
    with zipped.open("wb") as file:
        np.savez(file, a=np.ones(3))
    contents = {"empty": b"", "text": b"hello, world", "cut": cut, "zip": zipped.read_bytes(), "half": b"PK\x03\x04"}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ExportError, match=rf"{name} cannot be read .*; expected one that"):
            read_export(tmp_path / name)
    with pytest.raises(ExportError, match="nothing is not a file"):
        read_export(tmp_path / "nothing")


def test_loaded_encoders_give_the_features_of_evaluation(workdir: pathlib.Path, small: Run) -> None:
    pictures = np.random.default_rng(0).integers(0, 256, (4, 40, 32, 3), np.uint8)
    apply, params, preprocessing = load_encoder(workdir, step=3)
    x = preprocessing(pictures)
    assert x.shape == (4, 32, 32, 3)
    expected = make_extractor(small.config)(small.state.params, small.state.batch_stats, pictures)
    np.testing.assert_allclose(apply(params, x), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(params["mask"], small.mask_weights)
    right_size = pictures[:, 4:36]
    by_hand = (right_size / 255.0 - IMAGENET_MEAN) / IMAGENET_STD
    np.testing.assert_allclose(preprocessing(right_size), by_hand, atol=1e-5)
    assert not np.allclose(apply(load_encoder(workdir).params, x), expected), "the last step is another"


def test_encoders_of_lab_channels_say_so(workdir: pathlib.Path, small: Run) -> None:
    lab = apply_overrides(small.config.copy_and_resolve_references(), {"data.augmentation": "cmc"})
    (workdir / "config.json").write_text(to_json(lab))
    try:
        preprocessing = load_encoder(workdir).preprocessing
    finally:
        (workdir / "config.json").write_text(to_json(small.config))
    assert preprocessing.channels == ("L", "a", "b")
    white = preprocessing(np.full((1, 32, 32, 3), 255, np.uint8))
    np.testing.assert_allclose(white[..., 0], 1.0, atol=1e-3)


def test_the_command_writes_and_proves(
    workdir: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "new" / "encoder.npz"
    assert main(["--workdir", str(workdir), "--out", str(path), "--step", "3"]) == 0
    assert "features equal to those of step 3; largest difference 0.0e+00" in capsys.readouterr().out
    assert read_export(path).metadata["layout"] == "flax", "the suffix is the format"
    assert main(["--workdir", str(workdir), "--verify", str(path)]) == 0
    assert "step 3" in capsys.readouterr().out, "the file's own step, not the last"
    assert main(["--workdir", str(workdir), "--verify", str(path), "--step", "last"]) == 1
    assert "features NOT equal to those of step 7" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--out", "x"], "--workdir"),
        (["--workdir", "{workdir}"], "--out"),
        (["--workdir", "{workdir}", "--out", "x", "--format", "onnx"], "--format 'onnx'; expected one of"),
        (["--workdir", "{workdir}", "--out", "x", "--step", "5"], "--step 5; expected 'last', 'best' or a step"),
        (["--workdir", "{workdir}/no", "--out", "x"], "does not exist; expected the folder of a pretrained run"),
        (["--workdir", "{workdir}", "--verify", "{workdir}/config.json"], "cannot be read"),
        (["--workdir", "{workdir}", "--out", "{workdir}/config.json/a.npz"], "cannot be written"),
    ],
)
def test_bad_input_is_one_sentence(
    workdir: pathlib.Path, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    before = sorted(workdir.iterdir())
    assert main([argument.replace("{workdir}", str(workdir)) for argument in arguments]) == 2
    message = capsys.readouterr().err.strip().splitlines()[-1]
    assert sentence in message
    assert "Traceback" not in message
    assert sorted(workdir.iterdir()) == before


def test_a_path_without_a_run_is_one_sentence(workdir: pathlib.Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere does not exist; expected the folder of a pretrained run"):
        load_encoder(workdir / "nowhere")
    with pytest.raises(ConfigError, match=r"config.json' is a file; expected the folder of a pretrained run"):
        load_encoder(workdir / "config.json")


def test_an_encoder_of_another_registry_is_loaded_with_it(tmp_path: pathlib.Path) -> None:
    registry = REGISTRY.extended(encoders={"mine": register(REGISTRY).encoders["tiny"]})
    config = validate(apply_overrides(tiny_config(), {"encoder.name": "mine"}), registry)
    (tmp_path / "config.json").write_text(to_json(config))
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep_last=1, keep_every=None, keep_best=False)
    checkpoints.save(1, init_state(config, registry=registry), config=to_json(config))
    checkpoints.close()
    apply, params, preprocessing = load_encoder(tmp_path, registry=registry)
    assert apply(params, preprocessing(np.zeros((2, 32, 32, 3), np.uint8))).shape == (2, 12)
    with pytest.raises(ConfigError, match=r"config\.encoder\.name='mine'; expected"):
        load_encoder(tmp_path)
