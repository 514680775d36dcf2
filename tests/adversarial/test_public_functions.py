"""Public functions called with what they cannot use: a ValueError or TypeError of one line, or a result."""

import jax.numpy as jnp
import numpy as np
import pytest

import metamask_jax as package
from metamask_jax.config import default_config

Z = np.linspace(-1, 1, 24, dtype=np.float32).reshape(2, 4, 3)
ROWS, OTHERS, LABELS = Z[0], Z[1], np.array([0, 1, 2, 0])

# Every argument by name, each with a value that is right.
RIGHT = {
    "apply_mask": {"h": ROWS, "weights": np.ones(3, np.float32)},
    "cross_entropy": {"logits": ROWS, "labels": np.array([0, 1, 2, 0])},
    "debiased_nt_xent": {"z": Z, "temperature": 0.5, "positive_prior": 0.1, "chunk_size": None},
    "hard_nt_xent": {"z": Z, "temperature": 0.5, "positive_prior": 0.1, "concentration": 1.0},
    "info_nce": {"queries": ROWS, "keys": ROWS, "negatives": OTHERS, "temperature": 0.1},
    "info_nce_in_batch": {"anchors": ROWS, "candidates": OTHERS, "temperature": 0.1},
    "init_mask": {"dim": 3, "activation": "sigmoid"},
    "mask_weights": {"logits": jnp.zeros(3), "activation": "sigmoid"},
    "memory_logits": {"z": ROWS, "positives": OTHERS, "negatives": ROWS, "temperature": 0.1},
    "negative_cosine": {"predictions": Z, "targets": Z},
    "nt_xent": {"z": Z, "temperature": 0.5, "chunk_size": None, "bank": ROWS},
    "redundancy_reduction": {"z": Z, "off_diagonal_weight": 0.1},
    "sinkhorn": {"scores": ROWS, "epsilon": 0.05, "iterations": 3},
    "swapped_prediction": {"z": Z, "prototypes": ROWS, "temperature": 0.1, "epsilon": 0.05, "iterations": 3},
    "validate": {"config": default_config()},
    "load_run": {"workdir": "nothing", "step": "last"},
    "load_encoder": {"workdir": "nothing"},
    "evaluate_run": {"workdir": "nothing", "protocols": ["knn"]},
}
OPENS_FILES = ("load_run", "load_encoder", "evaluate_run")  # Python's own words will do, as for `open`
WRONG = (
    *(
        None,
        True,
        "x",
        "",
        b"x",
        -1,
        0,
        2.5,
        1j,
        float("nan"),
        float("inf"),
        10**400,
        (),
        [],
        {},
        set(),
        object(),
        print,
    ),
    *(
        np.zeros(0),
        np.zeros((0, 4, 3)),
        np.zeros((2, 0, 3)),
        np.float32(1),
        np.ones((2, 4, 3), np.int32),
        np.array("x"),
    ),
    *(np.array([None]), np.ones((2, 4, 3), complex), np.ones((1, 4, 3), np.float32), np.ones(7, np.float32)),
    *([[1.0], [1.0, 2.0]], "nothing/at/all", "\x00", "x" * 300),
)


@pytest.mark.parametrize("name", RIGHT)
def test_a_wrong_argument_is_one_line(name, cases):
    function, right = getattr(package, name), RIGHT[name]
    cases(len(right) * len(WRONG))
    for argument in right:
        for value in WRONG:
            message = refusal(function, {**right, argument: value})
            assert "\n" not in message, (argument, value)
            assert "; expected " in message or not message or name in OPENS_FILES, (argument, value, message)


def refusal(function, arguments):
    try:
        function(**arguments)
    except (TypeError, ValueError) as error:
        return str(error)
    return ""
