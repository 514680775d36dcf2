"""SimCLR + MetaMask on a folder of your own pictures, labelled by their folders or not at all.

    python run_pretrain.py --config image_folder:PATH,SIZE --workdir runs/mine

PATH is the folder, laid out as in docs/data.md; SIZE the side in pixels that pictures come to, 64 if left out. Larger
pictures are reduced once, to a shorter side of twice that, because decoding them in every epoch would take longer than
training. The settings are meant for small sets, on a CPU or a GPU: those of the short runs in
`metamask_jax/config/recipes.py`, with at most 64 pictures per batch and no more than three quarters of the set, at
least 20 epochs and at least 300 steps. The encoder is `conv` up to 64 pixels and ResNet-18 with the ImageNet stem
above, both narrow: with a GPU and thousands of pictures, try `--config.encoder.width=1 --config.train.batch_size=256`.
The trial step of the mask moves the heads alone, which costs about a tenth of a step: no gain was seen from one that
moves all weights (`--config.meta.scope=all`), for three times the price. The settings are not tuned: no result is
claimed.
"""

import os
import pathlib

from ml_collections import ConfigDict

from metamask_jax.config import recipes
from metamask_jax.data.builders.folders import scan
from metamask_jax.errors import ConfigError, DataError

_LARGEST_BATCH = 64
_LEAST_EPOCHS, _LEAST_STEPS = 20, 300


def get_config(argument: str = "") -> ConfigDict:
    """What differs from the defaults; `argument` is `PATH,SIZE`, without which `data.options.path` is to be set."""
    path, size = _parse(argument)
    config = recipes.short_run("simclr", "image_folder")
    config.data.update(dir="runs/data", image_size=size)
    if size <= 64:
        config.encoder.update(name="conv", width=0.25)
    else:
        config.encoder.update(name="resnet18", width=0.5, stem="imagenet")
    config.meta.scope = "head"
    config.train.update(batch_size=_LARGEST_BATCH, epochs=_LEAST_EPOCHS)
    config.eval.least_times = 10  # a curve for the report
    if path:
        count = _count(path)
        batch = min(_LARGEST_BATCH, 2 ** max(1, (3 * count // 4).bit_length() - 1))
        config.train.update(batch_size=batch, epochs=max(_LEAST_EPOCHS, -(-_LEAST_STEPS // (count // batch))))
        config.eval.k = min(config.eval.k, count // 2)
    with config.data.options.unlocked():
        config.data.options.update(shorter_side=2 * size, **({"path": path} if path else {}))
    return config


def _parse(argument: str) -> tuple[str, int]:
    """The path, which may hold commas itself and is made absolute, and the size."""
    path, _, size = argument.rpartition(",")
    if not size.strip().isdecimal() or not path:
        path, size = argument, "64"
    if not 16 <= int(size) <= 1024:
        raise ConfigError(f"SIZE={size.strip()}; expected a whole number of pixels, 16 to 1024")
    return os.path.abspath(os.path.expanduser(path)) if path else "", int(size)


def _count(path: str) -> int:
    """How many pictures there are to train on."""
    if not pathlib.Path(path).is_dir():
        raise ConfigError(f"PATH={path!r} is not a folder; expected image_folder:PATH,SIZE, such as ~/photos,64")
    try:
        count = len(scan(path).splits["train"])
    except DataError as error:
        raise ConfigError(str(error)) from error
    if count < 2:
        raise ConfigError(f"PATH={path!r} holds one picture to train on; expected at least 2")
    return count
