"""Values that no key of a configuration should trip over, and what must come of each."""

import decimal
import pathlib
import re

import numpy as np
from ml_collections import ConfigDict

from metamask_jax.errors import ConfigError, DataError

# As they are typed: `--config.KEY=TEXT`.
TEXTS = (
    *(
        "",
        " ",
        "None",
        "nan",
        "inf",
        "-inf",
        "1e400",
        "-1e400",
        "1e308",
        "1e-320",
        "0",
        "-0.0",
        "0.5",
        "1.0",
        "-1",
        "1",
    ),
    *("2", "7", "64", "2147483647", "2147483648", "9223372036854775808", "9" * 400, "9" * 5000, "1_000", "0x10", "1j"),
    *(
        "true",
        "FALSE",
        "True",
        "x",
        "'x'",
        '"',
        "é漢字",
        "a\nb",
        "\x00",
        "\udcff",
        "x" * 100_000,
        "../..",
        "~",
        "%s{0}",
    ),
    *("()", "(1,)", "(64, 32)", "(0,)", "(-1,)", "(1.5,)", "('a',)", "(True,)", "(None,)", "((1,),)", "(1e400,)"),
    *("(1000000000,)", f"({'8,' * 1000})", "[]", "[8, 4]", "{}", "{'a': 1}", "{1, 2}", "{[]: 1}", "b'x'", "..."),
    *("(" * 300, "[" * 5000, "-" * 5000 + "1", "lambda: 0", "__import__('os')", "1 if 1 else 2", "\\", "a=b"),
)


class Silent:
    """An object that cannot even show itself."""

    def __repr__(self):
        raise RuntimeError("no")


# As a config file may set them.
VALUES = (
    *(None, True, False, 0, -1, 1, 2, 64, 2**31, 2**63, 10**400, -(10**400), 0.0, -0.0, 0.5, 1.5, 1e-320, 1e308),
    *(float("nan"), float("inf"), -float("inf"), 1j, decimal.Decimal(1), np.float32(1), np.int64(8), np.arange(3)),
    *("", "x", "é漢字", "a\nb", "\x00", "\udcff", "x" * 100_000, b"x", pathlib.Path("x")),
    *((), (1,), (64, 32), (0,), (-1,), (1.5,), (True,), ("a",), ((1,),), (10**9,), (8,) * 1000, (float("nan"),)),
    *([], [8, 4], {}, {"a": 1}, {"a": {"b": 1}}, set(), frozenset({1}), range(3), int, Silent(), ConfigDict({"a": 1})),
)

# As they may stand in config.json.
JSON = (
    *("null", "true", "NaN", "Infinity", "-Infinity", "1e400", "0", "-1", "1", "8", "1.5", "0.5", "1e-320", "1e308"),
    *("9" * 400, '""', '"x"', '"\\u0000"', '"\\ud800"', '"a\\nb"', '"' + "x" * 100_000 + '"', "[]", "[8, 4]"),
    *("[0]", "[null]", "[[1]]", "[1.5]", "[1000000000]", "{}", '{"a": 1}', '{"a": {"b": []}}', "[" * 500 + "]" * 500),
)


def outcome(action):
    """What an action gives, or the one sentence with which it refuses; whatever else it raises is a failure."""
    try:
        return action(), None
    except (ConfigError, DataError) as error:
        return None, str(error)


def is_one_sentence(message):
    """Whether it is one short line that says what is allowed."""
    allowed = re.search(r"; expected |; the nearest key is |; see --help|: expected ", message)
    return bool(allowed) and message.isprintable() and len(message) < 1500
