"""What `train.remat` leaves waiting for the backward pass; that it changes no result is in `test_train_step.py`."""

import jax
import jax.numpy as jnp
import pytest

from metamask_jax.methods import Clock
from metamask_jax.training.state import build_model, init_state
from metamask_jax.training.step import Objective, Sample
from tests.tiny import tiny_batch, tiny_config

BATCH = tiny_batch()


@pytest.mark.parametrize(("method", "augmentation"), [("simclr", "simclr"), ("cmc", "cmc")])
def test_remat_keeps_less_for_the_backward_pass(method, augmentation):
    def kept(remat):
        """Bytes that wait for the backward pass of both losses; nothing is computed."""
        config = tiny_config(
            {
                "train.remat": str(remat),
                "encoder.name": "conv",
                "encoder.width": "0.125",
                "method.name": method,
                "data.augmentation": augmentation,
                "data.size": "24",
            }
        )
        objective = Objective(config, build_model(config, axis_name=None), None)

        def residuals(state, views):
            sample = Sample(views, views[:0], None, BATCH.labels, BATCH.indices, Clock(0, 0.0, 0.0))
            model_state = {"batch_stats": state.batch_stats, "method_state": state.method_state}
            return jax.vjp(lambda p: objective.total_loss(p, state.mask, model_state, sample)[0], state.params)[1]

        state = jax.eval_shape(lambda: init_state(config))
        leaves = jax.tree.leaves(jax.eval_shape(residuals, state, jnp.zeros((2, 16, 32, 32, 3))))
        return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)

    assert kept(True) < 0.7 * kept(False)
