"""Configurations: what is accepted, and what the refusal says."""

import pathlib

import pytest

from metamask_jax.config import (
    VARIANTS,
    apply_overrides,
    config_names,
    default_config,
    differences,
    flatten,
    from_json,
    keys,
    load_config,
    official,
    paper,
    to_json,
)
from metamask_jax.errors import ConfigError
from metamask_jax.methods import METHODS
from metamask_jax.training.registry import validate

CONFIGS = pathlib.Path(__file__).parent.parent / "configs"


def test_every_config_file_has_a_name():
    assert config_names() == sorted(path.stem for path in CONFIGS.glob("*.py") if path.stem != "__init__")
    assert {"quickstart", "cifar10_resnet18", "table1"} <= set(config_names())


@pytest.mark.parametrize("name", config_names())
def test_every_config_is_valid_and_survives_json(name):
    config = validate(load_config(name))
    assert differences(config, from_json(to_json(config))) == []


@pytest.mark.parametrize("name", ["quickstart", "cifar10_resnet18:paper", "table1:byol,cifar10,conv,alone"])
def test_a_name_and_the_path_of_its_file_are_the_same_config(name, tmp_path, monkeypatch):
    stem, _, argument = name.partition(":")
    path = str(CONFIGS / f"{stem}.py") + (f":{argument}" if argument else "")
    monkeypatch.chdir(tmp_path)  # names do not depend on where the command is run
    assert differences(load_config(name), load_config(path)) == []


@pytest.mark.parametrize("source", ["quickstrat", "configs/nothing.py", "nothing.py:x", "README.md", ""])
def test_a_config_that_is_not_there_names_those_that_are(source):
    with pytest.raises(ConfigError) as refusal:
        load_config(source)
    name = source.partition(":")[0]
    assert str(refusal.value) == f"--config {name}; expected a Python file or one of {', '.join(config_names())}"


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_table_1_takes_every_method(method, variant):
    assert validate(load_config(f"table1:{method},cifar10,conv,{variant}")).method.name == method


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
        "encoder.init",
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


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("train.lr", "optimizer.learning_rate"),
        ("lr", "optimizer.learning_rate"),
        ("mask.lr", "mask.learning_rate"),
        ("meta.lr", "meta.learning_rate"),
        ("train.learning_rate", "optimizer.learning_rate"),
        ("train.lerning_rate", "optimizer.learning_rate"),
        ("optim.lr", "optimizer.learning_rate"),
        ("wd", "optimizer.weight_decay"),
        ("mask.wd", "mask.weight_decay"),
        ("train.weight_decay", "optimizer.weight_decay"),
        ("train.bs", "train.batch_size"),
        ("batch", "train.batch_size"),
        ("data.batch_size", "train.batch_size"),
        ("epochs", "train.epochs"),
        ("optimizer.epochs", "train.epochs"),
        ("seed", "train.seed"),
        ("data.seed", "train.seed"),
        ("loss.tau", "method.temperature"),
        ("temperature", "method.temperature"),
        ("eval.tau", "eval.temperature"),
        ("dataset", "data.name"),
        ("data.dataset", "data.name"),
        ("arch", "encoder.name"),
        ("train.backbone", "encoder.name"),
        ("model.name", "encoder.name"),
        ("method", "method.name"),
        ("eval.every", "eval.every_epochs"),
        ("estimator", "meta.estimator"),
        ("loss.lambda", "loss.off_diagonal_weight"),
    ],
)
def test_an_unknown_key_names_the_one_that_is_meant(key, meant):
    with pytest.raises(ConfigError) as refusal:
        apply_overrides(default_config(), {key: "1"})
    assert str(refusal.value) == f"config.{key} is unknown; the nearest key is config.{meant}"


def test_an_unknown_key_like_no_other_lists_its_section_or_all_sections():
    with pytest.raises(
        ConfigError, match=r"^config\.guard\.zzz is unknown; expected one of config\.guard\.max_skipped, "
    ):
        apply_overrides(default_config(), {"guard.zzz": "1"})
    with pytest.raises(ConfigError, match=r"^config\.mask is unknown; expected one of config\.mask\.activation, "):
        apply_overrides(default_config(), {"mask": "1"})
    with pytest.raises(ConfigError, match=r"^config\.zzz\.qqq is unknown; expected a key of one of checkpoint, data, "):
        apply_overrides(default_config(), {"zzz.qqq": "1"})


def test_every_alias_leads_to_a_key():
    assert set(keys._ALIASES.values()) <= set(flatten(default_config()))


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
    assert load_config("cifar10_resnet18:paper").meta.estimator == "exact"
    assert load_config("cifar10_resnet18:official").meta.estimator == "finite_difference"
    with pytest.raises(ConfigError) as refusal:
        load_config("cifar10_resnet18:other")
    assert str(refusal.value) == "--config cifar10_resnet18:other: preset='other'; expected 'official' or 'paper'"


def test_differences_name_what_changed():
    config = apply_overrides(default_config(), {"train.seed": "1"})
    assert differences(default_config(), config) == ["train.seed: 0 -> 1"]
