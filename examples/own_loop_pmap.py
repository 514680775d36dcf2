"""A loop of your own around our training step, on four devices: `python examples/own_loop_pmap.py`."""

import os

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")  # four devices on any machine

import jax

from metamask_jax import init_state, make_train_step, validate
from metamask_jax.config import load_config
from metamask_jax.data import Batch, batches, open_source

config = load_config("quickstart:paper")
config.train.update(batch_size=64, steps=20)
config = validate(config)

source = open_source(config.data.name, split="pretrain", data_dir=config.data.dir)
step = jax.pmap(
    make_train_step(config, steps_per_epoch=len(source) // 64, total_steps=20, axis_name="batch"),
    axis_name="batch",
    in_axes=(None, 0),  # one state for all devices, a share of the batch for each
    out_axes=None,
)
state = init_state(config)  # a metamask_jax.TrainState
for batch in batches(source, seed=config.train.seed, batch_size=64, num_steps=20):
    shares = Batch(*(leaf.reshape(4, 16, *leaf.shape[1:]) for leaf in batch))
    state, metrics = step(state, shares)
    print(int(state.step), *(f"{name} {metrics[name]:.3f}" for name in ("loss", "loss_outer", "mask_mean", "mask_std")))
