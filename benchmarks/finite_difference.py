"""How far the authors' finite difference is from the exact second-order part of the meta-gradient, against its radius.

    python benchmarks/finite_difference.py [--encoder resnet18] [--batch 32] [--steps 0 100] [--data-dir DIR]

On confounded shapes with the networks of the authors' program, in float64, so that rounding is no part of it; at the
start and after some training steps of a short run. An error of 1 means that leaving the part out would be as good.
"""

import argparse

import jax
import jax.numpy as jnp

from metamask_jax import init_state, make_train_step, validate
from metamask_jax.config import apply_overrides, recipes
from metamask_jax.core.meta import finite_difference, meta_gradient_parts
from metamask_jax.data import Batch, batches, open_source
from metamask_jax.training.registry import registry_of
from metamask_jax.training.sampling import make_sampler
from metamask_jax.training.state import TrainState, build_model
from metamask_jax.training.step import Objective

RADII = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)  # 1e-2 is the authors'


def problem(config, state: TrainState, batch: Batch, dtype: str = "float64"):
    """The method's loss of (params, mask) on a batch, computed in a number format, and both of them.

    They are in float64 with that, in float32 otherwise.
    """
    stored = jnp.float64 if dtype == "float64" else jnp.float32
    wide = jax.tree.map(lambda x: x.astype(stored) if jnp.issubdtype(x.dtype, jnp.floating) else x, state)
    sample = make_sampler(config, steps_per_epoch=100, total_steps=1000, registry=registry_of(config))(wide, batch)
    sample = sample._replace(views=sample.views.astype(stored))
    config = config.copy_and_resolve_references()
    config.train.dtype = dtype
    objective = Objective(config, build_model(config, axis_name=None), None)
    model_state = {"batch_stats": wide.batch_stats, "method_state": wide.method_state}

    def loss(params, mask):
        return objective.method_loss(params, mask, model_state, sample)[0]

    return loss, wide.params, wide.mask


def errors(config, state: TrainState, batch: Batch) -> dict[float, float]:
    """Relative error of the second-order part by radius."""
    with jax.enable_x64(True):
        loss, params, mask = problem(config, state, batch)

        def second_order(estimator):
            rate = config.optimizer.learning_rate
            return meta_gradient_parts(loss, loss, params, mask, learning_rate=rate, estimator=estimator).second_order

        exact = jax.jit(second_order, static_argnums=0)("exact")

        @jax.jit
        def error(radius):
            return jnp.linalg.norm(second_order(finite_difference(radius)) - exact) / jnp.linalg.norm(exact)

        return {radius: float(error(radius)) for radius in RADII}


def short_run(encoder: str, batch_size: int, data_dir: str, width: float = 1.0):
    """The configuration of a short run on confounded shapes without mask learning, and its pictures."""
    config = recipes.short_run("simclr", "confounded_shapes")
    config.encoder.update(name=encoder, width=width)
    config.data.update(image_size=32, dir=data_dir)
    config.train.batch_size = batch_size
    config = validate(apply_overrides(config, {"mask.learn": "false"}))
    return config, open_source(config.data.name, split="pretrain", data_dir=config.data.dir)


def states_at(config, source, steps: list[int]):
    """Yields the step, the state before it and its batch, for each of the given steps of the run."""
    step = jax.jit(make_train_step(config, steps_per_epoch=100, total_steps=max(*steps, 1) + 1))
    state, size = init_state(config), config.train.batch_size
    for i, batch in enumerate(batches(source, seed=0, batch_size=size, num_steps=max(steps) + 1)):
        if i in steps:
            yield i, jax.device_get(state), batch
        state, _ = step(state, batch)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", choices=("resnet18", "conv"), default="resnet18")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, nargs="+", default=[0, 100])
    parser.add_argument("--data-dir", default="~/tensorflow_datasets")
    flags = parser.parse_args()
    config, source = short_run(flags.encoder, flags.batch, flags.data_dir)
    print(f"{flags.encoder}, batch {flags.batch}: relative error of the second-order part")
    print(f"{'after steps':<14}" + "".join(f"{radius:>10g}" for radius in RADII))
    for i, state, batch in states_at(config, source, flags.steps):
        found = errors(config, state, batch)
        print(f"{i:<14}" + "".join(f"{found[radius]:10.2g}" for radius in RADII), flush=True)


if __name__ == "__main__":
    main()
