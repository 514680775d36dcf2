"""Every config builds its network, and trains two steps of a tiny one on stand-in data of its dataset's shape."""

import io

import jax
import numpy as np
import pytest
import tensorflow_datasets as tfds
from PIL import Image

from metamask_jax.config import apply_overrides, config_names, load_config
from metamask_jax.core.storage import read_json_lines
from metamask_jax.evaluate.online import pretrain
from metamask_jax.training.registry import validate
from metamask_jax.training.state import init_state

NAMES = (*config_names(), "cifar10_resnet18:paper")
DIMENSIONS = {"conv": 256, "resnet18": 512, "resnet50": 2048}  # of the representation, at width 1
# Of each public set: its splits, the height and width of its pictures (None where they vary), its number of classes.
PUBLIC = {
    "cifar10": (("train", "test"), 32, 10),
    "cifar100": (("train", "test"), 32, 100),
    "stl10": (("train", "test", "unlabelled"), 96, 10),
    "imagenet2012": (("train", "validation"), None, 1000),
}
TINY = {
    "plugins": "('tests.tiny',)",
    "train.batch_size": "8",
    "train.steps": "2",
    "data.size": "8",
    "encoder.name": "tiny",  # a deep network takes minutes to compile and tests nothing more of a config
    "method.head": "(16, 8)",
    "loss.drr_head": "(16,)",
    "eval.size": "8",
    "eval.batch_size": "8",
    "eval.k": "3",
    "log.every_steps": "1",
    "meta.labels": "1.0",  # where they judge: a share of sixteen pictures has one of each class
}


class StandIn(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """Eight pictures of noise per split, under the name of a public set."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        _, size, classes = PUBLIC[self.name]
        features = {
            "image": tfds.features.Image(shape=(size, size, 3), encoding_format="png"),
            "label": tfds.features.ClassLabel(num_classes=classes),
        }
        return tfds.core.DatasetInfo(
            builder=self, features=tfds.features.FeaturesDict(features), supervised_keys=("image", "label")
        )

    def _split_generators(self, dl_manager):
        return {split: self._generate_examples() for split in PUBLIC[self.name][0]}

    def _generate_examples(self):
        size = PUBLIC[self.name][1] or 40
        pictures = np.random.default_rng(0).integers(0, 256, (8, size, size, 3), np.uint8)
        for index, picture in enumerate(pictures):
            yield index, {"image": encoded(picture), "label": index}


def encoded(picture):
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "png")
    file.seek(0)
    return file


def prepare_public(name, data_dir):
    builder = type(name, (StandIn,), {"name": name, "__module__": __name__}, skip_registration=True)
    builder(data_dir=data_dir, file_format="array_record").download_and_prepare()


def prepare_tiny_imagenet(root):
    """The official layout of one class."""
    picture = encoded(np.zeros((64, 64, 3), np.uint8)).getvalue()
    for folder in (root / "train" / "n01" / "images", root / "val" / "images"):
        folder.mkdir(parents=True)
    (root / "wnids.txt").write_text("n01\n")
    (root / "words.txt").write_text("n01\tcrane\n")
    for index in range(8):
        (root / "train" / "n01" / "images" / f"n01_{index}.JPEG").write_bytes(picture)
        (root / "val" / "images" / f"val_{index}.JPEG").write_bytes(picture)
    (root / "val" / "val_annotations.txt").write_text("".join(f"val_{i}.JPEG\tn01\t0\t0\t63\t63\n" for i in range(8)))


@pytest.fixture(scope="session")
def stand_ins(tmp_path_factory):
    """Overrides that point each dataset at its stand-in."""
    data_dir = tmp_path_factory.mktemp("stand_ins")
    for name in PUBLIC:
        prepare_public(name, data_dir)
    prepare_tiny_imagenet(data_dir / "tiny-imagenet-200")
    for index in range(16):
        path = data_dir / "pictures" / "ab"[index % 2] / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(np.random.default_rng(index).integers(0, 256, (50, 40, 3), np.uint8)).getvalue())
    own = ("tiny_imagenet", "confounded_shapes", "image_folder")
    overrides = {name: {"data.dir": str(data_dir)} for name in (*PUBLIC, *own)}
    overrides["image_folder"]["data.options.path"] = str(data_dir / "pictures")
    overrides["tiny_imagenet"]["data.options.path"] = str(data_dir / "tiny-imagenet-200")
    overrides["confounded_shapes"] |= {"data.options.train_size": "16", "data.options.test_size": "8"}
    return overrides


@pytest.mark.parametrize("name", NAMES)
def test_every_config_builds_the_network_it_names(name):
    """At full width and picture size, without computing anything."""
    config = validate(load_config(name))
    state = jax.eval_shape(lambda: init_state(config))
    own = DIMENSIONS[config.encoder.name] * config.encoder.width
    assert state.mask.shape == (config.encoder.features or own,)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_two_steps_of_every_config(name, stand_ins, tmp_path):
    config = load_config(name)
    config.encoder.init = None  # the tiny encoder has its own
    result = pretrain(apply_overrides(config, TINY | stand_ins[config.data.name]), tmp_path)
    assert (result["steps"], result["skipped"]) == (2, 0)
    for line in read_json_lines(tmp_path / "metrics.jsonl"):
        assert np.isfinite(line["loss"])
        assert np.isfinite(line["loss_outer"])
    assert (tmp_path / "report.html").exists()
