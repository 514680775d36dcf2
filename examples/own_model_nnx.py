"""MetaMask around a Flax NNX network of your own: `python examples/own_model_nnx.py`."""

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from metamask_jax import init_mask, mask_weights, metamask, nt_xent, redundancy_reduction
from metamask_jax.data import batches, open_source


class Network(nnx.Module):
    def __init__(self, rngs):
        self.convs = nnx.List([nnx.Conv(i, o, (3, 3), strides=2, rngs=rngs) for i, o in ((3, 32), (32, 64))])
        self.norms = nnx.List([nnx.BatchNorm(channels, rngs=rngs) for channels in (32, 64)])
        self.head = nnx.Linear(64, 32, rngs=rngs)

    def __call__(self, x, mask):
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = nnx.relu(norm(conv(x)))
        h = x.mean((1, 2)) * mask
        return h, self.head(h)


def apply(params, model_state, x, mask):
    network = nnx.merge(graph, params, model_state, copy=True)
    return network(x, mask), nnx.state(network, nnx.Not(nnx.Param))


graph, params, model_state = nnx.split(Network(nnx.Rngs(0)), nnx.Param, ...)


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
