"""Configurations: what is accepted, and what the refusal says."""

import pathlib

import pytest

from metamask_jax.config import (
    apply_overrides,
    default_config,
    differences,
    from_json,
    load_config,
    official,
    paper,
    to_json,
)
from metamask_jax.errors import ConfigError
from metamask_jax.training.registry import validate

CONFIGS = sorted(pathlib.Path(__file__).parent.parent.glob("configs/*.py"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_file_is_valid_and_survives_json(path):
    config = validate(load_config(str(path)))
    assert differences(config, from_json(to_json(config))) == []


def test_overrides_reach_every_kind_of_value():
    config = apply_overrides(
        default_config(),
        {
            "train.steps": "7",
            "loss.alpha": "3",
            "mask.learn": "false",
            "encoder.name": "conv",
            "loss.drr_head": "(64, 32)",
            "data.options.path": "pictures/",
        },
    )
    validate(config)
    assert (config.train.steps, config.loss.alpha, config.mask.learn) == (7, 3, False)
    assert (config.encoder.name, config.loss.drr_head) == ("conv", (64, 32))
    assert config.data.options.path == "pictures/"


def test_presets_take_opposite_sides_of_every_difference():
    sides = differences(official(default_config()), paper(default_config()))
    assert [line.split(":")[0] for line in sides] == [
        "eval.masked",
        "loss.alpha",
        "loss.centered",
        "loss.off_diagonal_weight",
        "loss.unbiased",
        "mask.activation",
        "meta.estimator",
        "meta.trial",
    ]
    validate(official(default_config()))
    validate(paper(default_config()))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("trian.steps", "3", r"config\.trian\.steps is unknown; the nearest key is config\.train\.steps"),
        ("train.batchsize", "3", r"the nearest key is config\.train\.batch_size"),
        ("train.steps", "many", r"config\.train\.steps='many'; expected a value of type int"),
        ("train.steps", "1.5", r"config\.train\.steps=1\.5; expected a value of type int"),
        ("train.epochs", "None", r"config\.train\.epochs=None; expected a value of type int"),
        ("loss.drr_head", "(64, 'x')", r"config\.loss\.drr_head=\(64, 'x'\); expected a value of type tuple"),
        ("loss.drr_head", "()", r"config\.loss\.drr_head=\(\); expected a non-empty tuple"),
        ("mask.activation", "relu", r"config\.mask\.activation='relu'; expected one of 'sigmoid', 'identity'"),
        ("meta.estimator", "exakt", r"config\.meta\.estimator='exakt'; expected one of 'exact'"),
        ("encoder.name", "vit", r"config\.encoder\.name='vit'; expected one of 'conv'"),
        ("method.temperature", "0", r"config\.method\.temperature=0\.0; expected a number > 0"),
        ("optimizer.momentum", "1", r"config\.optimizer\.momentum=1\.0; expected a number in \[0, 1\)"),
        ("train.batch_size", "1", r"config\.train\.batch_size=1; expected a whole number >= 2"),
        ("train.accumulate", "3", r"config\.train\.batch_size=256; expected a multiple of config\.train\.accumulate=3"),
        ("mask.learn", "1", r"config\.mask\.learn=1; expected a value of type bool"),
    ],
)
def test_what_is_wrong_is_said(key, value, message):
    with pytest.raises(ConfigError, match=message):
        validate(apply_overrides(default_config(), {key: value}))


@pytest.mark.parametrize("key", ["train.accumulate", "meta.every"])
def test_lookahead_is_refused_what_it_cannot_do(key):
    lookahead = {"meta.estimator": "lookahead"}
    validate(apply_overrides(default_config(), lookahead))
    with pytest.raises(ConfigError, match=rf"config\.{key}=2; expected 1 for config\.meta\.estimator='lookahead'"):
        validate(apply_overrides(default_config(), lookahead | {key: "2"}))


def test_no_loss_at_all():
    with pytest.raises(ConfigError, match="expected at least one of the two losses"):
        validate(apply_overrides(default_config(), {"loss.drr": "false", "loss.alpha": "0"}))


def test_a_config_file_that_fails_is_named(tmp_path):
    path = tmp_path / "broken.py"
    path.write_text("def get_config():\n    return default_config()\n")
    with pytest.raises(ConfigError, match=r"broken\.py; expected get_config\(\) to work, but: name 'default_config'"):
        load_config(str(path))


def test_a_config_files_own_argument():
    path = next(str(path) for path in CONFIGS if path.stem == "cifar10_resnet18")
    assert load_config(f"{path}:paper").meta.estimator == "exact"
    assert load_config(f"{path}:official").meta.estimator == "finite_difference"
    with pytest.raises(ConfigError, match="expected 'official' or 'paper'"):
        load_config(f"{path}:other")


def test_differences_name_what_changed():
    config = apply_overrides(default_config(), {"train.seed": "1"})
    assert differences(default_config(), config) == ["train.seed: 0 -> 1"]
