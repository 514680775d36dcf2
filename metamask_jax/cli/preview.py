"""A picture of what the network gets to see: originals on the left, their augmented views beside them.

    metamask-preview --config quickstart --out preview.png
    metamask-preview --preset byol --image-size 32 --views 4 --out preview.png

It shows the very examples and draws of a training step. Colours are those before normalisation and conversion to Lab.
"""

import sys
from collections.abc import Sequence

import numpy as np
from ml_collections import ConfigDict
from PIL import Image

from metamask_jax.augment import PRESETS
from metamask_jax.cli.common import (
    OVERRIDES,
    Parser,
    guarded,
    local_path_name,
    set_up_process,
    split_overrides,
    whole_number,
)
from metamask_jax.config import apply_overrides, default_config, load_config
from metamask_jax.errors import ConfigError
from metamask_jax.evaluate.samples import draw_samples
from metamask_jax.training.registry import validate

_CELL = 96  # least side of a picture in the grid
_GAP = 4
# Short names of keys of the configuration.
_KEYS = {
    "preset": "data.augmentation",
    "image_size": "data.image_size",
    "views": "data.views",
    "dataset": "data.name",
    "data_dir": "data.dir",
    "seed": "train.seed",
}


def preview(config: ConfigDict, *, step: int, examples: int) -> np.ndarray:
    """Draws the grid of the first examples of a training step.

    Args:
      config: a validated configuration.
      step: of the training.
      examples: how many rows.

    Returns:
      uint8 `[height, width, 3]`: one row per example, the original and then its views.
    """
    originals, views = draw_samples(config, step=step, examples=examples)
    return draw_grid([list(originals), *map(list, views)])


def draw_grid(columns: Sequence[Sequence[np.ndarray]]) -> np.ndarray:
    """Lays pictures out, uint8 `[height, width, 3]` each, in columns of equal length; small ones are enlarged."""
    cell = max(_CELL, *(side for column in columns for side in column[0].shape[:2]))
    pitch = cell + _GAP
    grid = np.full((_GAP + pitch * len(columns[0]), _GAP + pitch * len(columns), 3), 255, np.uint8)
    for x, column in enumerate(columns):
        for y, picture in enumerate(column):
            zoom = cell // max(picture.shape[:2])
            enlarged = picture.repeat(zoom, axis=0).repeat(zoom, axis=1)
            height, width, _ = enlarged.shape
            top, left = _GAP + y * pitch, _GAP + x * pitch
            grid[top : top + height, left : left + width] = enlarged
    return grid


def _preview(arguments: Sequence[str]) -> int:
    parser = Parser("Draws what the network gets to see: originals and their augmented views.", epilog=OVERRIDES)
    parser.add_config(default=None)
    parser.add_argument("--preset", help=f"augmentation, one of {', '.join(PRESETS)}")
    for flag, key in list(_KEYS.items())[1:]:
        parser.add_argument(f"--{flag.replace('_', '-')}", help=f"short for --config.{key}")
    parser.add_argument("--step", type=whole_number(0), default=0, help="which training step to show (%(default)s)")
    parser.add_argument("--examples", type=whole_number(1), default=8, help="how many rows (%(default)s)")
    parser.add_argument("--out", type=local_path_name, default="preview.png", help="the PNG to write (%(default)s)")
    others, overrides = split_overrides(arguments)
    flags = parser.read(others)
    given = {key: vars(flags)[flag] for flag, key in _KEYS.items() if vars(flags)[flag] is not None}
    config = load_config(flags.config) if flags.config else default_config()
    set_up_process()
    grid = preview(validate(apply_overrides(config, overrides | given)), step=flags.step, examples=flags.examples)
    try:
        Image.fromarray(grid).save(flags.out, "png")
    except OSError as error:
        raise ConfigError(f"--out {flags.out}; expected a file that can be written, but: {error}") from error
    print(f"wrote {flags.out}")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    return guarded(_preview, arguments)


if __name__ == "__main__":
    sys.exit(main())
