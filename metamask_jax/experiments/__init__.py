"""Every table and figure of the paper by one command: `python -m metamask_jax.cli.experiments list`."""

from metamask_jax.experiments.ablations import F8
from metamask_jax.experiments.all_methods import M
from metamask_jax.experiments.base import Experiment
from metamask_jax.experiments.budgets import B
from metamask_jax.experiments.confirmation import JC
from metamask_jax.experiments.confounders import C1, C2, C3
from metamask_jax.experiments.cost import T3, T4
from metamask_jax.experiments.dropout import T5
from metamask_jax.experiments.estimators import C4
from metamask_jax.experiments.figure1 import F1A, F1B
from metamask_jax.experiments.first_run import Q
from metamask_jax.experiments.hyperparameters import F4, F5
from metamask_jax.experiments.imagenet import T6
from metamask_jax.experiments.judges import J
from metamask_jax.experiments.label_free import L
from metamask_jax.experiments.long_runs import D
from metamask_jax.experiments.masked_dimensions import F2, F6, F7
from metamask_jax.experiments.table1 import T1
from metamask_jax.experiments.table2 import T2
from metamask_jax.experiments.theorems import TH

EXPERIMENTS: dict[str, Experiment] = {
    **{"T1": T1, "T2": T2, "F1a": F1A, "F1b": F1B, "F2": F2, "F4": F4, "F5": F5, "F6": F6, "T3": T3, "T4": T4},
    **{
        "T5": T5,
        "T6": T6,
        "F7": F7,
        "F8": F8,
        "TH": TH,
        "C1": C1,
        "C2": C2,
        "C3": C3,
        "C4": C4,
        "B": B,
        "M": M,
        "J": J,
        "JC": JC,
        "L": L,
        "D": D,
        "Q": Q,
    },
}
