"""What each estimator of the meta-gradient costs, and how far it is from one exact trial step.

    python benchmarks/estimators.py [--encoder conv] [--width 0.125] [--batch 64] [--steps 0 100] [--data-dir DIR]

On confounded shapes, in float64, at the start and after some training steps of a short run. FLOPs are those of the
program before the compiler optimises it, relative to one gradient of the same loss; they do not depend on the machine.
"""

import argparse

import jax
import jax.numpy as jnp
from finite_difference import problem, short_run, states_at

from metamask_jax.core.longer_trials import neumann, unrolled
from metamask_jax.core.meta import meta_gradient

ESTIMATORS = {
    "exact": "exact",
    "first_order": "first_order",
    "finite_difference": "finite_difference",
    **{f"unrolled({k})": unrolled(k) for k in (2, 4, 8)},
    **{f"neumann({k})": neumann(k) for k in (2, 4, 8)},
}


def flops(function, *arguments) -> float:
    return jax.jit(function).trace(*arguments).lower(lowering_platforms=("tpu",)).cost_analysis()["flops"]


def rows(config, state, batch, rate: float):
    """Name, FLOPs relative to a gradient, distance and cosine to the exact meta-gradient of each estimator."""
    with jax.enable_x64(True):
        loss, params, mask = problem(config, state, batch)
        gradient = flops(jax.grad(loss), params, mask)
        exact = None
        for name, estimator in ESTIMATORS.items():

            def estimate(params, mask, estimator=estimator):
                return meta_gradient(loss, loss, params, mask, learning_rate=rate, estimator=estimator)[1]

            found = jax.jit(estimate)(params, mask)
            exact = found if exact is None else exact
            distance = jnp.linalg.norm(found - exact) / jnp.linalg.norm(exact)
            cosine = found @ exact / (jnp.linalg.norm(found) * jnp.linalg.norm(exact))
            yield name, flops(estimate, params, mask) / gradient, float(distance), float(cosine)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", choices=("resnet18", "conv"), default="conv")
    parser.add_argument("--width", type=float, default=0.125)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, nargs="+", default=[0, 100])
    parser.add_argument("--rate", type=float, default=0.01, help="learning rate of the trial steps (%(default)s)")
    parser.add_argument("--data-dir", default="~/tensorflow_datasets")
    flags = parser.parse_args()
    config, source = short_run(flags.encoder, flags.batch, flags.data_dir, flags.width)
    print(f"{flags.encoder} of width {flags.width:g}, batch {flags.batch}, rate {flags.rate:g}")
    print(f"{'after steps':<13}{'estimator':<20}{'FLOPs / gradient':>17}{'distance':>10}{'cosine':>8}")
    for i, state, batch in states_at(config, source, flags.steps):
        for name, cost, distance, cosine in rows(config, state, batch, flags.rate):
            print(f"{i:<13}{name:<20}{cost:17.2f}{distance:10.3g}{cosine:8.3f}", flush=True)


if __name__ == "__main__":
    main()
