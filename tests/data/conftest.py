"""Small sets of pictures, made once per test run."""

import pathlib

import numpy as np
import pytest
from PIL import Image

SHAPES = {"train_size": 60, "test_size": 20}


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder of prepared sets, shared by all tests."""
    return str(tmp_path_factory.mktemp("prepared"))


@pytest.fixture(scope="session")
def picture_folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Twelve pictures of three classes and many sizes; all pixels of a picture have one colour."""
    root = tmp_path_factory.mktemp("pictures")
    for i in range(12):
        folder = root / ("ant", "bee", "cat")[i % 3]
        folder.mkdir(exist_ok=True)
        Image.fromarray(np.full((20 + i, 30 - i, 3), 10 * i, np.uint8)).save(folder / f"{i:02d}.png")
    return root
