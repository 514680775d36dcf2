"""Table 2 of the paper: six base methods, alone and with MetaMask, ResNet-18, four datasets, judged by kNN.

    python run_pretrain.py --config configs/table2.py:METHOD,DATASET,VARIANT --workdir runs/table2/...

METHOD is `simclr`, `barlow_twins`, `byol`, `dcl`, `hcl` or `nnclr`; DATASET `cifar10`, `cifar100`, `stl10` or
`tiny_imagenet` (IN-200); VARIANT `metamask`, `alone`, `without_meta` or `without_drr`. What is left out at the end is
the first of these.

Batch 512 and Barlow Twins' augmentations are the paper's, 800 epochs and the optimiser the authors' program's for
SimCLR + MetaMask; everything of a method is from its own paper. Alone, a method's loss has weight 1 instead of alpha,
so a comparison with tuned baselines needs a learning rate of its own: `--config.optimizer.learning_rate`. Not run to
the end yet: no result is claimed.
"""

from ml_collections import ConfigDict

from metamask_jax.config import VARIANTS, recipes


def get_config(argument: str = "") -> ConfigDict:
    """What differs from the defaults; `argument` is `METHOD,DATASET,VARIANT`."""
    *cell, variant = recipes.parse(argument, method=recipes.TABLE2_METHODS, dataset=recipes.DATASETS, variant=VARIANTS)
    return VARIANTS[variant](recipes.table2(*cell))
