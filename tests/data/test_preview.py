"""The preview shows the examples and views of a training step."""

import numpy as np
import pytest
from PIL import Image

from metamask_jax.cli.preview import draw_grid, main
from metamask_jax.data import batch_indices, open_source

CONFIG = """
from metamask_jax.config import default_config

def get_config():
    config = default_config()
    config.data.dir = {data_dir!r}
    config.data.options = {{"train_size": 60, "test_size": 20}}
    config.data.augmentation = "eval"
    config.train.batch_size = 20
    config.train.seed = 3
    return config
"""


@pytest.fixture
def config_file(tmp_path, data_dir):
    path = tmp_path / "config.py"
    path.write_text(CONFIG.format(data_dir=data_dir))
    return str(path)


def cell(grid, row, column):
    """One 32-pixel picture of the grid, each of its pixels three wide."""
    top, left = 4 + row * 100, 4 + column * 100
    return grid[top : top + 96 : 3, left : left + 96 : 3]


def test_grid_shows_the_examples_of_the_step_beside_their_views(config_file, data_dir, tmp_path):
    out = tmp_path / "preview.png"
    assert main(["--config", config_file, "--views", "3", "--step", "2", "--examples", "5", "--out", str(out)]) == 0
    grid = np.asarray(Image.open(out))
    assert grid.shape == (4 + 5 * 100, 4 + 4 * 100, 3)
    source = open_source("confounded_shapes", split="pretrain", data_dir=data_dir, train_size=60, test_size=20)
    expected = source.images[batch_indices(3, 2, 20, 60)[:5]]
    for row in range(5):
        for column in range(4):  # the preset `eval` leaves them as they are
            np.testing.assert_array_equal(cell(grid, row, column), expected[row])


def test_flags_come_before_the_config_file(config_file, tmp_path):
    out = tmp_path / "preview.png"
    assert main(["--config", config_file, "--preset", "cmc", "--examples", "2", "--out", str(out)]) == 0
    grid = np.asarray(Image.open(out))
    assert not np.array_equal(cell(grid, 0, 0), cell(grid, 0, 1))
    assert not np.array_equal(cell(grid, 0, 1), cell(grid, 0, 2))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--preset", "simclrr"], "config.data.augmentation='simclrr'; expected one of 'simclr', 'barlow'"),
        (["--examples", "100"], "100"),
        (["--views", "0"], "views=0"),
    ],
)
def test_what_cannot_be_shown_is_refused_in_one_sentence(config_file, capsys, tmp_path, flags, message):
    out = tmp_path / "preview.png"
    assert main(["--config", config_file, "--out", str(out), *flags]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not out.exists()


def test_pictures_of_different_sizes_share_a_grid():
    large, small = np.zeros((150, 120, 3), np.uint8), np.full((64, 64, 3), 7, np.uint8)
    grid = draw_grid([[large, large], [small, small]])
    assert grid.shape == (4 + 2 * 154, 4 + 2 * 154, 3)
    assert (grid[4:132, 158:286] == 7).all()
