"""What methods remember: queues, moving averages, and how a batch's memory reaches them."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from metamask_jax.config import apply_overrides, default_config
from metamask_jax.errors import ConfigError
from metamask_jax.methods import METHODS, Clock, Method, Output, Recipe, Variables, queue
from metamask_jax.methods.byol import cosine_momentum
from metamask_jax.training.optimizers import make_optimizer
from metamask_jax.training.registry import validate
from metamask_jax.training.state import init_state
from tests.methods.conftest import BATCH, NEEDS, REGISTRY, method_config
from tests.tiny import step_on, tiny_config


def rows(*values):
    """Unit vectors that can be told apart."""
    return jnp.array([[np.cos(v), np.sin(v)] for v in values])


def angles(found):
    return [round(float(np.arctan2(y, x)), 3) for x, y in found]


push = jax.jit(queue.push)  # one program is sooner compiled than its operations one by one


class TestQueue:
    empty = queue.Queue(rows(0.1, 0.1, 0.1, 0.1, 0.1), jnp.zeros((), jnp.int32))

    def test_the_newest_overwrite_the_oldest_around_the_end(self):
        first = push(self.empty, rows(1.0, 1.1, 1.2))
        assert angles(first.rows) == [1.0, 1.1, 1.2, 0.1, 0.1]
        second = push(first, rows(2.0, 2.1, 2.2))
        assert angles(second.rows) == [2.2, 1.1, 1.2, 2.0, 2.1]
        assert int(second.next) == 1

    @pytest.mark.parametrize("count", [5, 7, 13])
    def test_of_more_rows_than_there_is_room_for_the_last_stay(self, count):
        pushed = push(push(self.empty, rows(1.0, 1.1)), rows(*(2.0 + 0.01 * i for i in range(count))))
        oldest_first = jnp.roll(pushed.rows, -int(pushed.next), axis=0)
        assert angles(oldest_first) == [round(2.0 + 0.01 * i, 3) for i in range(count - 5, count)]

    def test_one_by_one_is_the_same_as_all_at_once(self):
        values = [0.2 * i for i in range(8)]
        whole, single = push(self.empty, rows(*values)), self.empty
        for value in values:
            single = push(single, rows(value))
        assert int(whole.next) == int(single.next)
        np.testing.assert_array_equal(whole.rows, single.rows)

    def test_rows_are_unit_vectors(self):
        start = queue.init(jax.random.key(0), 6, 4)
        pushed = push(start, 7.0 * jnp.ones((2, 4)))
        np.testing.assert_allclose(np.linalg.norm(pushed.rows, axis=1), 1.0, rtol=1e-6)
        assert len(np.unique(start.rows[:, 0])) == 6


class TestMovingAverage:
    def test_momentum_rises_from_its_start_to_one_along_a_cosine(self):
        """BYOL: tau = 1 - (1 - tau_base) * (cos(pi * k / K) + 1) / 2."""
        steps = np.arange(101)
        expected = 1 - (1 - 0.99) * (np.cos(np.pi * steps / 100) + 1) / 2
        np.testing.assert_allclose(cosine_momentum(0.99, steps / 100), expected, rtol=1e-6)
        assert (float(cosine_momentum(0.99, 0.0)), float(cosine_momentum(0.99, 1.0))) == pytest.approx((0.99, 1.0))

    @pytest.mark.parametrize(("name", "momentum"), [("byol", 1 - 0.2 * (np.cos(np.pi / 3) + 1) / 2), ("moco", 0.8)])
    def test_methods_move_their_target_so(self, name, momentum):
        """A third of the way through the run."""
        method = METHODS[name].build(method_config(name), None)
        variables = method.init(jax.random.key(0), {"weight": jnp.ones(3)}, 12)
        params = jax.tree.map(lambda leaf: leaf + 1.0, {"encoder": {"weight": jnp.ones(3)}, "method": variables.params})
        clock = Clock(jnp.array(4), jnp.array(1.0), jnp.array(1 / 3))
        updated = jax.jit(method.update)(variables.state, params, {"keys": jnp.ones((4, 1, 6))}, clock)
        for part in ("encoder", "head"):
            for old, new in zip(jax.tree.leaves(variables.state[part]), jax.tree.leaves(updated[part]), strict=True):
                np.testing.assert_allclose(new, old + (1 - momentum), rtol=1e-5, atol=1e-6)


def diary(config, axis_name):
    """A method that only remembers: indices, labels and the encoder's last weights."""

    def init(key, encoder_params, dim):
        return Variables({"scale": jnp.ones(())}, {}, {"seen": jnp.zeros(16, jnp.int32), "bias": jnp.zeros(12)})

    def loss(variables, inputs):
        return Output(variables.params["scale"] * jnp.mean(inputs.h), {}, {"seen": inputs.indices})

    def update(state, params, memory, clock):
        return {"seen": memory["seen"], "bias": params["encoder"]["bn"]["bias"]}

    return Method(init, loss, update)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_memory_of_all_devices_arrives_in_order_with_the_updated_weights(accumulate):
    registry = REGISTRY.extended(methods={"diary": Recipe(diary, defaults={}, min_views=1)})
    config = tiny_config(
        {
            "method.name": "diary",
            "loss.drr": "false",
            "mask.learn": "false",
            "data.augmentation": "eval",
            "train.accumulate": str(accumulate),
        },
        registry,
    )
    after, _ = step_on(4, config, registry)(init_state(config, registry=registry), BATCH)
    np.testing.assert_array_equal(after.method_state["seen"], BATCH.indices)
    np.testing.assert_array_equal(after.method_state["bias"], after.params["encoder"]["bn"]["bias"])
    assert np.any(after.method_state["bias"])


def test_what_keeps_its_learning_rate_does_not_follow_the_schedule():
    params = {"encoder": {"kernel": jnp.ones(2)}, "method": {"head": jnp.ones(2), "predictor": jnp.ones(2)}}
    config = tiny_config({"optimizer.learning_rate": "0.5", "optimizer.weight_decay": "0"}).optimizer
    optimizer = make_optimizer(config, 0.1, constant_rate=("predictor",))
    updates, _ = optimizer.update(params, optimizer.init(params), params)
    moved = optax.apply_updates(params, updates)
    np.testing.assert_allclose(moved["encoder"]["kernel"], 0.9)
    np.testing.assert_allclose(moved["method"]["head"], 0.9)
    np.testing.assert_allclose(moved["method"]["predictor"], 0.5)
    assert METHODS["simsiam"].build(method_config("simsiam"), None).constant_rate == ("predictor",)


class TestDropout:
    def masked_share(self, shared):
        from metamask_jax.augment import example_keys
        from metamask_jax.training.step import _dropout

        config = tiny_config({"method.dropout": "0.25", "method.dropout_shared": str(shared)})
        h = jnp.ones((2, 64, 100))
        keys = example_keys(0, 3, np.arange(64))
        dropped = _dropout(config, h, keys)
        # The same images in another order: a draw belongs to an image, wherever it is computed.
        np.testing.assert_array_equal(_dropout(config, h, keys[::-1]), dropped[:, ::-1])
        return dropped

    @pytest.mark.parametrize("shared", [False, True])
    def test_a_share_of_the_features_is_zero_and_the_rest_makes_up_for_it(self, shared):
        dropped = self.masked_share(shared)
        assert set(np.unique(dropped)) == {0.0, np.float32(1 / 0.75)}
        assert float(jnp.mean(dropped == 0)) == pytest.approx(0.25, abs=0.02)
        assert np.array_equal(dropped[0], dropped[1]) == shared


class TestSettings:
    @pytest.mark.parametrize("name", METHODS)
    def test_any_method_on_any_configuration_is_complete(self, name):
        config = apply_overrides(default_config(), NEEDS.get(name, {}) | {"method.name": name})
        complete = validate(config)
        for key, value in METHODS[name].defaults.items():
            if f"method.{key}" not in NEEDS.get(name, {}):
                assert complete.method[key] == value
        assert config.method.head is None  # the one given stays open, for another method
        METHODS[name].build(complete, None)

    def test_what_is_given_wins_over_the_default(self):
        assert tiny_config({"method.name": "byol", "method.momentum": "0.5"}).method.momentum == 0.5

    def test_too_few_views(self):
        message = r"config\.data\.views=1; expected at least 2 for config\.method\.name='simclr'"
        with pytest.raises(ConfigError, match=message):
            tiny_config({"data.views": "1", "loss.drr": "false"})
        assert tiny_config({"data.views": "1", "loss.drr": "false", "method.name": "supervised"}).data.views == 1

    def test_supervised_training_on_a_set_of_unknown_classes(self):
        with pytest.raises(ConfigError, match=r"config\.method\.num_classes=None; expected the number of classes"):
            tiny_config({"method.name": "supervised", "data.name": "pictures"})
