"""Numbers that are arguments of a compiled step: another learning rate, length or seed is the same program."""

import contextlib
import hashlib

import jax
import numpy as np
import pytest

from metamask_jax.methods import METHODS
from metamask_jax.training import loop
from metamask_jax.training.optimizers import SCHEDULES, make_schedule
from metamask_jax.training.registry import REGISTRY
from metamask_jax.training.settings import Programs, make_program, settings_of
from metamask_jax.training.state import init_state
from tests.tiny import LENGTH, doubled_start, register, step_on, tiny_batch, tiny_config

PLAIN = {"data.augmentation": "plain", "encoder.name": "smooth"}
QUICK = {"data.augmentation": "eval"}  # views without draws take no time to compile
OTHERS = {
    "loss.alpha": "3.0",
    "loss.off_diagonal_weight": "0.01",
    "mask.learning_rate": "0.125",
    "mask.weight_decay": "0.25",
    "method.temperature": "0.5",
    "optimizer.learning_rate": "0.5",
    "optimizer.warmup_epochs": "1.5",
    "optimizer.weight_decay": "0.0625",
    "train.seed": "7",
    "train.steps": "30",
}
# What each method has beside a temperature.
OWN = {
    "byol": {"method.predictor": "7", "method.momentum": "0.5"},
    "cmc": {"data.augmentation": "eval_lab", "data.size": "64", "method.negatives": "8"},
    "dcl": {"method.positive_prior": "0.25"},
    "hcl": {"method.positive_prior": "0.25", "method.concentration": "0.5"},
    "moco": {"method.queue_size": "32", "method.momentum": "0.5"},
    "nnclr": {"method.queue_size": "32", "method.predictor": "7"},
    "simsiam": {"method.predictor": "7"},
    "supervised": {"method.num_classes": "3"},
    "swav": {"method.prototypes": "5", "method.epsilon": "0.25", "method.freeze_epochs": "2.0"},
}


def digest(config, lengths):
    """Of the program of a configuration as another process would hand it to the compiler."""
    state = jax.eval_shape(lambda: init_state(config))
    lowered = jax.jit(make_program(config, **lengths)).lower(state, tiny_batch(), settings_of(config, **lengths))
    return hashlib.sha256(lowered.as_text().encode()).hexdigest()


def test_other_rates_lengths_seeds_and_weights_are_the_same_program():
    """As text: it is what a process looks for among the programs that others have kept."""
    first = digest(tiny_config(QUICK), LENGTH)
    assert digest(tiny_config(QUICK | OTHERS), {"steps_per_epoch": 7, "total_steps": 30}) == first
    assert digest(tiny_config(QUICK | {"mask.learn": "false"}), LENGTH) != first


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "optimizer"),
    [*((method, "sgd") for method in METHODS), ("simclr", "lars"), ("simclr", "adamw")],  # one method for optimisers
)
def test_every_method_takes_its_numbers_as_arguments(method, optimizer):
    fixed = {"method.name": method, "optimizer.name": optimizer} | OWN.get(method, {})
    numbers = {key for key, value in fixed.items() if key in settings_of(tiny_config(QUICK | fixed), **LENGTH)}
    config = tiny_config(QUICK | {key: value for key, value in fixed.items() if key not in numbers})
    assert digest(tiny_config(QUICK | OTHERS | fixed), {"steps_per_epoch": 7, "total_steps": 30}) == digest(
        config, LENGTH
    )


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_a_step_of_arguments_is_that_of_constants_and_each_of_them_has_an_effect():
    constant = {"optimizer.schedule": "constant", "mask.schedule": "constant", "mask.activation": "identity"}
    config, state = doubled_start(tiny_config(PLAIN | OTHERS | constant))
    numbers, program = settings_of(config, **LENGTH), jax.jit(make_program(config, **LENGTH))
    expected, found = step_on(1, config)(state, tiny_batch()), program(state, tiny_batch(), numbers)
    leaves = dict(jax.tree_util.tree_leaves_with_path(found))
    for path, leaf in jax.tree_util.tree_leaves_with_path(expected):
        assert leaves[path].dtype == leaf.dtype, path
        np.testing.assert_allclose(leaves[path], leaf, rtol=1e-12, atol=1e-14, err_msg=jax.tree_util.keystr(path))

    # Those that this configuration has a use for: a constant schedule has no end, no memory its own momentum.
    unused = {"meta.outer_temperature", "optimizer.trust_coefficient", "total_steps"}
    for key in numbers.keys() - unused:
        other = program(state, tiny_batch(), numbers | {key: 2 * numbers[key]})
        pairs = zip(jax.tree.leaves(other), jax.tree.leaves(found), strict=True)
        assert any((np.asarray(a) != np.asarray(b)).any() for a, b in pairs), key
    assert program._cache_size() == 1


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_of_traced_lengths_are_those_of_constant_ones(name):
    numbers = {"learning_rate": 0.3, "steps_per_epoch": 97, "total_steps": 9700, "warmup_epochs": 2.5}
    steps = np.arange(9701, dtype=np.int32)
    traced = jax.jit(lambda numbers: make_schedule(SCHEDULES[name], **numbers)(steps))(numbers)
    constant = make_schedule(SCHEDULES[name], **numbers)(steps)
    np.testing.assert_allclose(traced, constant, rtol=1e-6, atol=1e-7)


def test_code_of_a_plugin_sees_plain_numbers():
    def halving(epoch, epochs):
        return 0.5 ** (epoch // max(int(epochs), 1))

    def counted(config, learning_rate, decayed):
        assert isinstance(config.weight_decay, float)
        return REGISTRY.optimizers["sgd"](config, learning_rate, decayed)

    registry = register(REGISTRY).extended(schedules={"halving": halving}, optimizers={"counted": counted})
    config = tiny_config(QUICK | {"optimizer.schedule": "halving", "optimizer.name": "counted"}, registry)
    numbers = settings_of(config, **LENGTH, registry=registry)
    assert not {"total_steps", "optimizer.weight_decay"} & numbers.keys()
    state = init_state(config, registry=registry)
    jax.eval_shape(make_program(config, **LENGTH, registry=registry), state, tiny_batch(), numbers)


@contextlib.contextmanager
def compilations():
    """Names of the functions that are compiled inside."""
    names = []

    def record(event, seconds, **about):
        del seconds
        if event == "/jax/core/compile/backend_compile_duration":
            names.append(about["fun_name"])

    jax.monitoring.register_event_duration_secs_listener(record)
    yield names
    jax.monitoring.unregister_event_duration_listener(record)


def test_runs_that_differ_in_numbers_share_one_program(tmp_path):
    shared = QUICK | {"data.dir": str(tmp_path), "mask.learn": "false"}
    shared |= {"data.options.train_size": "64", "data.options.test_size": "32"}
    programs = Programs()
    loop.train(tiny_config(shared | {"train.steps": "2"}), tmp_path / "first", programs=programs)
    with compilations() as compiled:
        others = {"optimizer.learning_rate": "0.01", "train.seed": "3", "train.steps": "3"}
        loop.train(tiny_config(shared | others), tmp_path / "second", programs=programs)
    assert set(compiled) <= {"jit(init)"}  # of the first weights
    step = programs.step(tiny_config(shared), **LENGTH)
    assert programs.step(tiny_config(shared | {"loss.drr": "false"}), **LENGTH) is not step
    with compilations() as compiled:
        jax.jit(lambda x: x + 1)(0)
    assert compiled == ["jit(<lambda>)"]
