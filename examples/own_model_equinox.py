"""MetaMask around an Equinox network of your own: `python examples/own_model_equinox.py`."""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from metamask_jax import init_mask, mask_weights, metamask, nt_xent, redundancy_reduction
from metamask_jax.data import batches, open_source


class Network(eqx.Module):
    trunk: eqx.nn.Sequential
    head: eqx.nn.Linear

    def __init__(self, *keys):
        layers = [eqx.nn.Conv2d(3, 32, 3, 2, 1, key=keys[0]), eqx.nn.GroupNorm(8, 32), eqx.nn.Lambda(jax.nn.relu)]
        layers += [eqx.nn.Conv2d(32, 64, 3, 2, 1, key=keys[1]), eqx.nn.GroupNorm(8, 64), eqx.nn.Lambda(jax.nn.relu)]
        self.trunk, self.head = eqx.nn.Sequential(layers), eqx.nn.Linear(64, 32, key=keys[2])

    def __call__(self, x, mask):
        h = self.trunk(jnp.moveaxis(x, -1, 0)).mean((1, 2)) * mask
        return h, self.head(h)


def apply(params, model_state, x, mask):
    return jax.vmap(eqx.combine(params, static), (0, None))(x, mask), model_state


network, model_state = Network(*jax.random.split(jax.random.key(0), 3)), ()
params, static = eqx.partition(network, eqx.is_inexact_array)


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
