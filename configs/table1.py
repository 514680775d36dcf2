"""Table 1 of the paper: base methods, alone and with MetaMask, `conv` and `fc` encoders, four datasets.

    python run_pretrain.py --config configs/table1.py:METHOD,DATASET,ENCODER,VARIANT --workdir runs/table1/...

METHOD is `simclr`, `barlow_twins`, `swav`, `cmc`, `byol`, `simsiam`, `dcl`, `hcl`, or one that the paper's table does
not have: `moco`, `nnclr`, `supervised`. DATASET is `cifar10`, `cifar100`, `stl10` or `tiny_imagenet` (IN-200); ENCODER
`conv` or `fc`; VARIANT `metamask`, `alone`, `without_meta` or `without_drr`. What is left out at the end is the first
of these.

Batch 64 and the bank of 4096 past negatives are the paper's. It gives neither epochs nor learning rate, so 200 epochs
and 0.03 are ours, and everything of a method is from its own paper. The paper gives all methods CMC's augmentations.
Here only CMC has them; the others have SimCLR's, because CMC's leave the colours of an RGB image as they are. The
paper's rows "Barlow Twins + MetaMask" and "CMC + MetaMask" hold the same figures; here they are different runs. Not run
to the end yet: no result is claimed.
"""

from ml_collections import ConfigDict

from metamask_jax.config import VARIANTS, recipes


def get_config(argument: str = "") -> ConfigDict:
    """What differs from the defaults; `argument` is `METHOD,DATASET,ENCODER,VARIANT`."""
    *cell, variant = recipes.parse(
        argument,
        method=(*recipes.TABLE1_METHODS, *recipes.OTHER_METHODS),
        dataset=recipes.DATASETS,
        encoder=("conv", "fc"),
        variant=VARIANTS,
    )
    return VARIANTS[variant](recipes.table1(*cell))
