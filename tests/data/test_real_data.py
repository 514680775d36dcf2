"""Real CIFAR, prepared by the official tfds builders in the folder that METAMASK_DATA_DIR names."""

import os
import subprocess
import sys

import numpy as np
import pytest

from metamask_jax.data import open_source, prepared

DATA_DIR = os.environ.get("METAMASK_DATA_DIR", "")

KNOWN = {  # mean and standard deviation of the training set, as published in many places
    "cifar10": ([0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]),
    "cifar100": ([0.5071, 0.4865, 0.4409], [0.2673, 0.2564, 0.2762]),
}


def data_dir_with(name):
    if not DATA_DIR:
        pytest.skip("METAMASK_DATA_DIR is not set")
    if prepared.find(name, DATA_DIR) is None:
        pytest.skip(f"{name} is not prepared in METAMASK_DATA_DIR")
    return DATA_DIR


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_training_set_has_the_known_mean_and_deviation(name):
    source = open_source(name, split="pretrain", data_dir=data_dir_with(name))
    assert source.images.shape == (50000, 32, 32, 3)
    values = np.arange(256) / 255
    # Whole numbers are counted exactly, and without a floating-point copy of the set.
    counts = [np.bincount(source.images[..., channel].ravel(), minlength=256) for channel in range(3)]
    mean = [np.average(values, weights=count) for count in counts]
    std = [np.sqrt(np.average((values - m) ** 2, weights=count)) for m, count in zip(mean, counts, strict=True)]
    known_mean, known_std = KNOWN[name]
    np.testing.assert_allclose(mean, known_mean, atol=6e-5)  # the published figures have four digits
    np.testing.assert_allclose(std, known_std, atol=6e-5)


@pytest.mark.parametrize(("name", "classes"), [("cifar10", 10), ("cifar100", 100)])
def test_classes_are_balanced_and_named(name, classes):
    source = open_source(name, split="test", data_dir=data_dir_with(name))
    assert np.bincount(source.labels).tolist() == [10000 // classes] * classes
    assert source.class_names[0] == {"cifar10": "airplane", "cifar100": "apple"}[name]
    assert source.num_classes == classes


def test_the_coarse_labels_of_cifar100_are_kept_as_a_factor():
    source = open_source("cifar100", split="test", data_dir=data_dir_with("cifar100"))
    coarse = source.factors["coarse_label"]
    pairs = {(fine, group) for fine, group in zip(source.labels.tolist(), coarse.tolist(), strict=True)}
    assert len(pairs) == 100
    assert np.bincount(coarse).tolist() == [500] * 20


def test_reading_records_never_imports_tensorflow():
    program = f"""
import sys
from metamask_jax.data import prepared
records = prepared.Records(prepared.find("cifar10", {data_dir_with("cifar10")!r}), "test")
print(len(records), len(records.read([5, 3])), "tensorflow" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "10000 2 False\n"
