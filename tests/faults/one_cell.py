"""The command `experiments`, for one cell of an experiment with the tiny network."""

from collections.abc import Sequence

from metamask_jax.cli import experiments
from metamask_jax.experiments import scales
from tests.test_experiments import tiny_smoke


def main(arguments: Sequence[str]) -> int:
    scales.SCALES["smoke"] = scales.SCALES["smoke"]._replace(base=tiny_smoke)
    return experiments.main(["F8", "--scale=smoke", "--only=run=SimCLR", *arguments])
