"""The configurations of the paper's tables: every cell is valid, and a cell that is not there is refused."""

import itertools
import pathlib

import pytest

from metamask_jax.config import VARIANTS, load_config
from metamask_jax.config.recipes import DATASETS
from metamask_jax.errors import ConfigError
from metamask_jax.methods import METHODS
from metamask_jax.training.registry import validate

CONFIGS = pathlib.Path(__file__).parents[2] / "configs"
ROWS = {
    "table1": {"barlow_twins", "swav", "simclr", "cmc", "byol", "simsiam", "dcl", "hcl"},
    "table2": {"barlow_twins", "simclr", "byol", "dcl", "hcl", "nnclr"},
}


def cell(table, *parts):
    return validate(load_config(f"{CONFIGS / table}.py:{','.join(parts)}"))


@pytest.mark.parametrize("table", ROWS)
def test_every_cell_is_a_valid_configuration(table):
    encoders = [("conv",), ("fc",)] if table == "table1" else [()]
    for method, dataset, encoder in itertools.product(ROWS[table] & set(METHODS), DATASETS, encoders):
        config = cell(table, method, dataset, *encoder)
        assert (config.method.name, config.data.name) == (method, dataset)
        assert config.encoder.name == (encoder[0] if encoder else "resnet18")
        assert config.train.batch_size == (64 if encoder else 512)


def test_variants():
    drr_and_mask = {variant: cell("table2", "byol", "cifar10", variant) for variant in VARIANTS}
    found = {variant: (c.loss.drr, c.mask.learn, c.eval.masked, c.loss.alpha) for variant, c in drr_and_mask.items()}
    assert found == {
        "metamask": (True, True, True, 10.0),
        "alone": (False, False, False, 1.0),
        "without_meta": (True, False, False, 10.0),
        "without_drr": (False, True, True, 10.0),
    }


def test_contrastive_methods_of_table_1_have_the_bank():
    banks = {name: cell("table1", name, "cifar10", "fc").method.bank_size for name in ("simclr", "dcl", "hcl", "byol")}
    assert banks == {"simclr": 4096, "dcl": 4096, "hcl": 4096, "byol": None}


@pytest.mark.parametrize(
    ("table", "argument", "message"),
    [
        ("table2", "byoll", "method='byoll'; expected one of 'simclr'"),
        ("table2", "byol,mnist", "dataset='mnist'; expected one of 'cifar10'"),
        ("table1", "byol,cifar10,conv,only", "variant='only'; expected one of 'metamask', 'alone'"),
        ("table1", "byol,cifar10,conv,alone,x", "expected at most METHOD,DATASET,ENCODER,VARIANT"),
    ],
)
def test_what_is_not_in_the_table_is_refused(table, argument, message):
    with pytest.raises(ConfigError, match=message):
        load_config(f"{CONFIGS / table}.py:{argument}")
