"""MetaMask around a Flax Linen network of your own: `python examples/own_model_linen.py`."""

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

from metamask_jax import init_mask, mask_weights, metamask, nt_xent, redundancy_reduction
from metamask_jax.data import batches, open_source


class Network(nn.Module):
    @nn.compact
    def __call__(self, x, mask):
        for channels in (32, 64):
            x = nn.relu(nn.BatchNorm(use_running_average=False)(nn.Conv(channels, (3, 3), strides=2)(x)))
        h = x.mean((1, 2)) * mask
        return h, nn.Dense(32)(h)


def apply(params, model_state, x, mask):
    return Network().apply({"params": params, **model_state}, x, mask, mutable=["batch_stats"])


model_state = Network().init(jax.random.key(0), jnp.zeros((1, 32, 32, 3)), jnp.ones(64))
params = model_state.pop("params")


def losses(params, mask, model_state, batch):
    (flip, noise), mask = jax.random.split(batch["key"]), mask_weights(mask, activation="sigmoid")
    views = batch["images"] / 255.0 + 0.1 * jax.random.normal(noise, (2, 64, 1, 1, 3))  # your augmentation
    views = jnp.where(jax.random.bernoulli(flip, shape=(2, 64, 1, 1, 1)), views[..., ::-1, :], views)
    (h, z), model_state = apply(params, model_state, views.reshape(128, 32, 32, 3), mask)
    contrast = nt_xent(z.reshape(2, 64, 32), temperature=0.2)
    return contrast, redundancy_reduction(h.reshape(2, 64, 64)) + 10.0 * contrast, model_state


learner = metamask(
    total_loss=lambda *arguments: losses(*arguments)[1:],
    method_loss=lambda *arguments: losses(*arguments)[::2],
    optimizer=optax.chain(optax.clip_by_global_norm(5.0), optax.adamw(optax.cosine_decay_schedule(1e-3, 100))),
    mask_optimizer=optax.sgd(1.0),
)
state, update = learner.init(params, init_mask(64, activation="sigmoid"), model_state), jax.jit(learner.update)
source = open_source("confounded_shapes", split="pretrain", data_dir="runs/data")
for step, batch in enumerate(batches(source, seed=0, batch_size=64, num_steps=100)):
    state, metrics = update(state, {"images": batch.images, "key": jax.random.key(step)})
    print(step + 1, *(f"{name} {metrics[name]:.3f}" for name in ("loss", "loss_outer", "mask_mean", "mask_std")))
