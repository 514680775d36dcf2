"""Configurations that are damaged, hostile or nonsense: one sentence each."""

import json
import string

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from metamask_jax.config import apply_overrides, default_config, flatten, from_json, load_config, to_json
from metamask_jax.errors import ConfigError
from metamask_jax.evaluate.workdir import read_config
from metamask_jax.training.registry import REGISTRY, validate
from tests.adversarial.inputs import is_one_sentence, outcome

WHOLE = to_json(default_config())
KEYS = sorted(flatten(default_config()))
quick = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def read_or_refuse(text):
    config, refusal = outcome(lambda: validate(from_json(text)))
    if refusal is not None:
        assert is_one_sentence(refusal), refusal
    return config, refusal


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "[]", "{", "null", "5", '"x"', "{}]", "{'a': 1}", "\ufeff{}", "[" * 10**5, '{"a":' * 10**5),
        *('{"train": []}', '{"train": 5}', '{"train": null}', '{"train": {"seed": 1, "seed": 2}}', "9" * 5000),
        *('{"": {}}', '{"train": {"": 1}}', '{"data": {"options": 5}}', '{"data": {"options": {"a": {"b": 1}}}}'),
        *(b"\xff\xfe\x00", b"\x80" * 100, WHOLE.encode("utf-16"), WHOLE.encode()[:-40], b"\x00" * 4096),
    ],
    ids=lambda text: repr(text[:20]),
)
def test_what_is_no_configuration_is_one_sentence(text, cases):
    cases(1)
    assert read_or_refuse(text)[1] is not None


def test_a_configuration_cut_anywhere_is_one_sentence(cases):
    ends = range(0, len(WHOLE) - 1, 7)
    cases(len(ends))
    for end in ends:
        assert read_or_refuse(WHOLE[:end])[1] is not None


@quick
@given(st.binary(max_size=200) | st.text(max_size=200))
@example('{"train": {"seed": 1e400}}')
def test_any_text_is_a_configuration_or_one_sentence(text):
    read_or_refuse(text)


@quick
@given(st.dictionaries(st.sampled_from(KEYS), values, max_size=5))
def test_any_values_are_a_configuration_or_one_sentence(flat):
    tree = {}
    for key, value in flat.items():
        section, _, name = key.rpartition(".")
        (tree.setdefault(section, {}) if section else tree)[name] = value
    read_or_refuse(json.dumps(tree))


@quick
@given(st.integers(0, len(WHOLE) - 1), st.binary(min_size=1, max_size=4))
def test_a_configuration_with_damaged_bytes_is_one_or_one_sentence(place, damage):
    whole = WHOLE.encode()
    read_or_refuse(whole[:place] + damage + whole[place + len(damage) :])


@quick
@given(st.dictionaries(st.text(string.printable, max_size=30), st.text(string.printable, max_size=30), max_size=2))
def test_any_overrides_are_a_configuration_or_one_sentence(overrides):
    _, refusal = outcome(lambda: validate(apply_overrides(default_config(), overrides)))
    assert refusal is None or is_one_sentence(refusal), refusal


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff\xfe", WHOLE.encode()[:100], b'{"tarin": {}}', b'{"train": 5}'])
def test_a_workdir_with_a_damaged_configuration_is_one_sentence(tmp_path, content, cases):
    cases(1)
    (tmp_path / "config.json").write_bytes(content)
    _, refusal = outcome(lambda: read_config(tmp_path))
    assert refusal.startswith(f"--workdir {tmp_path}: config.json ")
    assert is_one_sentence(refusal)
    assert (tmp_path / "config.json").read_bytes() == content


HEAD = """
from ml_collections import ConfigDict, FrozenConfigDict
from ml_collections.config_dict import placeholder
from metamask_jax.config import default_config

class Silent(Exception):
    def __str__(self):
        raise self

def endless():
    return endless()

def deep(node):
    for _ in range(3000):
        node.a = ConfigDict()
        node = node.a

def get_config():
    config = default_config().unlock()
    with config.ignore_type():
        BODY
    return config
"""
BODIES = {
    "raises": "raise ValueError('one\\ntwo')",
    "raises without words": "raise ValueError",
    "raises what cannot be shown": "raise Silent",
    "says much": "raise ValueError('x' * 10**6)",
    "exits": "import sys; sys.exit(0)",
    "exits with words": "raise SystemExit('goodbye')",
    "raises the base of all": "raise BaseException('odd')",
    "ends a generator": "raise GeneratorExit",
    "recurses": "endless()",
    "returns nothing": "return",
    "returns a dict": "return {'train': {'steps': 1}}",
    "returns a class": "return ConfigDict",
    "returns much": "return 'x' * 10**7",
    "is empty": "return ConfigDict()",
    "misses a section": "del config['meta']",
    "misses a key": "del config.eval['k']",
    "has a section too many": "config.mine = ConfigDict({'a': 1})",
    "has a number for a section": "config.train = 5",
    "has a section for a number": "config.eval.k = {'a': 1}",
    "has a class for a value": "config.eval.k = int",
    "has no value": "del config.eval['k']; config.eval.k = placeholder(int, required=True)",
    "changes a name": "config.lock().eval.kk = 5",
    "changes a type": "default_config().eval.k = 'five'",
    "is deep": "deep(config.data.options)",
}


@pytest.mark.parametrize("body", BODIES)
def test_a_config_file_that_misbehaves_is_one_sentence_with_its_name(tmp_path, body, cases):
    cases(1)
    path = tmp_path / "mine.py"
    path.write_text(HEAD.replace("BODY", BODIES[body]))
    _, refusal = outcome(lambda: validate(load_config(str(path)), REGISTRY))
    assert is_one_sentence(refusal), refusal
    assert "mine.py" in refusal


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"\x00", b"\xff\xfe", b"def get_config(", b"get_config = 5", b"def get_config(a, b): pass", b"1 / 0"),
        *(b"import nothing_of_that_name", b"raise SystemExit", b"(" * 500, b"def get_config():\n\t  pass\n \tpass"),
    ],
)
def test_a_config_file_that_is_no_program_is_one_sentence_with_its_name(tmp_path, content, cases):
    cases(1)
    path = tmp_path / "mine.py"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as refusal:
        load_config(str(path))
    assert is_one_sentence(str(refusal.value))
    assert "mine.py" in str(refusal.value)


@pytest.mark.parametrize(
    "source", ["", " ", "/", ".", "/dev/null", "\x00", "a\nb", "x" * 10**5, "..", "quickstart:x", ":"]
)
def test_a_config_that_is_no_file_is_one_sentence(source, cases):
    cases(1)
    with pytest.raises(ConfigError) as refusal:
        load_config(source)
    assert is_one_sentence(str(refusal.value))


def test_a_frozen_configuration_can_be_used(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(HEAD.replace("BODY", "return FrozenConfigDict(config)"))
    assert apply_overrides(load_config(str(path)), {"train.seed": "3"}).train.seed == 3
