"""Every key of the defaults, given what nobody should give it: a usable configuration comes of it, or one sentence.

The keys are those of `default_config()`, so that a new one is swept without anyone remembering. Nothing is compiled.
The fast tests try a part of the values on each key, and all values on some key; the slow ones try everything.
"""

import json
from functools import cache

import jax
import pytest

from metamask_jax.config import apply_overrides, default_config, flatten, from_json, set_key, to_json
from metamask_jax.config.check import RANGED
from metamask_jax.models import ENCODERS
from metamask_jax.training.registry import REGISTRY, validate
from metamask_jax.training.state import init_state
from tests.adversarial.inputs import JSON, TEXTS, VALUES, is_one_sentence, outcome
from tests.tiny import register

DEFAULTS = default_config()
KEYS = sorted(flatten(DEFAULTS))
OURS = register(REGISTRY)
PARTS = 5
DEEP = ("resnet34", "resnet50")  # as resnet18, and slower to build
part_or_whole = pytest.mark.parametrize(
    "whole", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["part", "whole"]
)


def small(key=""):
    """The defaults with an encoder that is built in milliseconds; plugins are swept without the plugin it is from."""
    config = default_config()
    config.encoder.name = "conv" if key == "plugins" else "tiny"
    return config


def judge(key, make):
    """Validates what `make` gives; a refusal must be one sentence that names the key. Builds what is valid."""
    config, refusal = outcome(lambda: validate(make(), OURS if key != "plugins" else None))
    if refusal is not None:
        assert is_one_sentence(refusal), refusal
        assert key in refusal, refusal
        return
    assert validate(from_json(to_json(config)), OURS) == config
    build(json.dumps({name: value for name, value in flatten(config).items() if may_decide_shapes(name, value)}))


def may_decide_shapes(key, value):
    """Whether networks may depend on a key; what logging and the like depend on is not built again and again."""
    sections = ("encoder.", "method.", "loss.", "mask.", "meta.", "optimizer.", "data.", "train.")
    return key == "encoder.width" if isinstance(value, float) else key.startswith(sections)


@cache
def build(values):
    """Builds networks and state of a valid configuration, shapes only."""
    config = default_config()
    for key, value in json.loads(values).items():
        set_key(config, key, tuple(value) if isinstance(value, list) else value)
    shapes, refusal = outcome(lambda: jax.eval_shape(lambda: init_state(config, registry=OURS)))
    assert refusal is None or is_one_sentence(refusal), refusal
    assert shapes is None or len(jax.tree.leaves(shapes)) > 4


@pytest.mark.parametrize("key", KEYS)
@part_or_whole
def test_every_key_takes_anything_or_says_what_it_takes(key, whole, cases):
    chosen = slice(None) if whole else slice(KEYS.index(key) % PARTS, None, PARTS)
    texts, values, json_values = TEXTS[chosen], VALUES[chosen], JSON[chosen]
    cases(len(texts) + len(values) + len(json_values))
    for text in texts:
        judge(key, lambda text=text: apply_overrides(small(key), {key: text}))
    for value in values:
        judge(key, lambda value=value: assigned(key, value))
    section, _, name = key.rpartition(".")
    for value in json_values:
        text = f'{{"{section}": {{"{name}": {value}}}}}' if section else f'{{"{name}": {value}}}'
        judge(key, lambda text=text: merged(text, key))


def assigned(key, value):
    """The defaults with a value put into a key as a config file would, past the check of types."""
    config = small(key)
    section, _, name = key.rpartition(".")
    node = config[section] if section else config
    with node.unlocked(), node.ignore_type():
        try:
            node[name] = value
        except (OverflowError, TypeError, ValueError):  # the ConfigDict's own refusal, at the line of the user's file
            set_key(config, key, value)
    return config


def merged(text, key):
    config = from_json(text)
    if config.encoder.name == DEFAULTS.encoder.name:
        config.encoder.name = small(key).encoder.name
    return config


@pytest.mark.parametrize("key", KEYS)
def test_every_number_and_text_has_a_range(key):
    """Or it is one of a few names: then `validate` refuses the name "?"."""
    section, _, name = key.rpartition(".")
    kind = (DEFAULTS[section] if section else DEFAULTS).get_type(name)
    if kind is bool or key in RANGED or key == "plugins":
        return
    assert kind is str
    _, refusal = outcome(lambda: validate(apply_overrides(default_config(), {key: "'?'"})))
    assert refusal.startswith(f"config.{key}='?'; expected one of ")


@pytest.mark.parametrize(
    "encoder", [pytest.param(name, marks=[pytest.mark.slow] if name in DEEP else []) for name in ENCODERS]
)
@pytest.mark.parametrize("stem", ["cifar", "imagenet"])
def test_no_valid_picture_size_or_width_fails_later(encoder, stem, cases):
    extremes = [(1, 0.001), (8192, 64)]
    if not encoder.startswith("resnet"):  # those take any size
        extremes += [(size, 0.01) for size in (7, 16, 28, 29, 62, 63, 300)]
    cases(len(extremes))
    for size, width in extremes:
        overrides = {"encoder.stem": stem, "encoder.width": str(width), "data.image_size": str(size)}
        config, refusal = outcome(lambda o=overrides: validate(apply_overrides(small(), o | {"encoder.name": encoder})))
        if refusal is None:
            jax.eval_shape(lambda config=config: init_state(config))
        else:
            assert is_one_sentence(refusal), refusal
            assert f"image_size={size}" in refusal


@pytest.mark.parametrize("method", REGISTRY.methods)
@part_or_whole
def test_every_key_of_every_method_builds_or_says_why_not(method, whole, cases):
    base = {"method.name": method, "data.augmentation": "cmc" if method == "cmc" else "simclr"}
    for number, name in enumerate(REGISTRY.methods[method].defaults):
        key = f"method.{name}"
        texts = ("0", "1", "2", "0.5", "1048576", "16777216", "1e30", "(1,)", "(1048576,)")
        texts = texts if whole else texts[number % 3 :: 3]
        cases(len(texts))
        for text in texts:
            judge(key, lambda key=key, text=text: apply_overrides(small(), base | {key: text}))


@pytest.mark.parametrize(
    ("name", "value"), [("", "1"), ("a.b", "1"), ("path", "b'x'"), ("a\nb", "1"), ("x", "1e400"), ("y" * 10**5, "1")]
)
def test_options_of_a_dataset_are_plain_values_with_plain_names(name, value, cases):
    cases(1)
    _, refusal = outcome(lambda: validate(apply_overrides(default_config(), {f"data.options.{name}": value})))
    assert is_one_sentence(refusal), refusal
