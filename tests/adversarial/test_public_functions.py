"""Public functions called with what they cannot use: a ValueError or TypeError of one line that names it, or a result.

The functions and their arguments are those of `metamask_jax.__all__` and of the signatures: a new function has to say
below what it is rightly called with, a new argument is swept without anyone remembering.
"""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import metamask_jax as package
from tests.tiny import tiny_config

Z = np.linspace(-1, 1, 24, dtype=np.float32).reshape(2, 4, 3)
ROWS, OTHERS, LABELS = Z[0], Z[1], np.array([0, 1, 2, 0])


def loss(params, mask):
    """Takes whatever has numbers in it: what is refused is refused by us, not by a user's loss."""
    return sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves((params, mask)))


def learner_loss(params, mask, model_state, batch):
    return loss(params, mask), model_state


WEIGHTS, MASK = jnp.arange(1.0, 4.0), jnp.full(3, 0.5)
MOMENTUM = optax.sgd(0.1, momentum=0.9)
STEP = {"learning_rate": None, "optimizer": MOMENTUM, "opt_state": MOMENTUM.init(WEIGHTS)}
META = {"inner_loss": loss, "outer_loss": loss, "params": WEIGHTS, "mask": MASK, **STEP}
# What is right, for every argument that has no default, and for some that have.
RIGHT = {
    "apply_mask": {"h": ROWS, "weights": np.ones(3, np.float32)},
    "cross_entropy": {"logits": ROWS, "labels": LABELS},
    "debiased_nt_xent": {"z": Z, "bank": ROWS},
    "evaluate_run": {"workdir": "nothing", "protocols": ["knn"]},
    "hard_nt_xent": {"z": Z, "bank": ROWS},
    "info_nce": {"queries": ROWS, "keys": ROWS, "negatives": OTHERS},
    "info_nce_in_batch": {"anchors": ROWS, "candidates": OTHERS},
    "init_mask": {"dim": 3},
    "init_state": {"config": tiny_config()},
    "linear_head": {"h": ROWS, "labels": LABELS},
    "load_encoder": {"workdir": "nothing"},
    "load_run": {"workdir": "nothing"},
    "lookahead_gradient": {"previous_loss": loss, "slope": WEIGHTS, "previous_params": WEIGHTS, "previous_mask": MASK}
    | {"learning_rate": 0.1},
    "make_train_step": {"config": tiny_config(), "steps_per_epoch": 4, "total_steps": 12},
    "mask_weights": {"logits": np.zeros(3, np.float32)},
    "memory_logits": {"z": ROWS, "positives": OTHERS, "negatives": ROWS},
    "meta_gradient": META,
    "meta_gradient_parts": META,
    "metamask": {"total_loss": learner_loss, "method_loss": learner_loss}
    | {"optimizer": optax.sgd(0.1), "mask_optimizer": optax.sgd(0.1)},
    "negative_cosine": {"predictions": Z, "targets": Z},
    "neumann": {"terms": 2},
    "noise_contrastive": {"logits": ROWS},
    "nt_xent": {"z": Z, "bank": ROWS},
    "pretrain": {"config": None, "workdir": "nothing"},
    "redundancy_reduction": {"z": Z},
    "sinkhorn": {"scores": ROWS},
    "soft_nearest_neighbor": {"h": ROWS, "labels": LABELS},
    "swapped_prediction": {"z": Z, "prototypes": ROWS},
    "trial_params": {"inner_loss": loss, "params": WEIGHTS, "mask": MASK, "learning_rate": 0.1},
    "unrolled": {"steps": 2},
    "validate": {"config": tiny_config()},
}
OPENS_FILES = ("load_run", "load_encoder", "evaluate_run", "pretrain")  # Python's own words will do, as for `open`
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


def test_every_public_function_is_swept():
    functions = [name for name in package.__all__ if inspect.isfunction(getattr(package, name))]
    assert sorted(RIGHT) == functions


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.parametrize("parts", [3, pytest.param(1, marks=pytest.mark.slow)], ids=["part", "whole"])
def test_a_wrong_argument_is_one_line(name, parts, cases, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    function = getattr(package, name)
    for number, argument in enumerate(inspect.signature(function).parameters):
        values = WRONG[number % parts :: parts]
        cases(len(values))
        for value in values:
            message = refusal(function, {**RIGHT[name], argument: value})
            assert "\n" not in message, (argument, value)
            # What a function that was given does is its own affair, and so are its words.
            ours = "; expected " in message or name in OPENS_FILES or value is print
            assert not message or ours, (argument, value, message)
    assert not list(tmp_path.iterdir())


def refusal(function, arguments):
    """The words with which a function refuses; none if it does not."""
    try:
        function(**arguments)
    except (TypeError, ValueError, RuntimeError) as error:
        return str(error)
    return ""
