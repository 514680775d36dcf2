"""Torchvision's layout: its names and axes, and what PyTorch makes of it."""

import pathlib
from typing import Any

import numpy as np
import pytest

from metamask_jax.export import export_encoder, read_export
from metamask_jax.export.torchvision import torchvision_features
from metamask_jax.models.torchvision import to_torchvision
from tests.untrained import config_of, features_of, inputs_of, run_of

VARIANTS = [
    ("resnet18", 1.0, "cifar", 32),
    ("resnet18", 0.25, "imagenet", 64),
    ("resnet34", 0.125, "cifar", 16),
    ("resnet50", 0.25, "imagenet", 64),
]


def torch_resnet(tensors: dict[str, np.ndarray], *, stem: str, bottleneck: bool) -> Any:
    """A ResNet of torchvision's shape in PyTorch, sized by the tensors, its modules named as torchvision's."""
    torch = pytest.importorskip("torch")
    nn = torch.nn

    def conv(weight: np.ndarray, stride: int) -> Any:
        out, into, window, _ = weight.shape
        return nn.Conv2d(into, out, window, stride=stride, padding=window // 2, bias=False)

    class Block(nn.Module):
        def __init__(self, prefix: str, stride: int) -> None:
            super().__init__()
            strides = (1, stride, 1) if bottleneck else (stride, 1)
            self.count = len(strides)
            for i, step in enumerate(strides, start=1):
                weight = tensors[f"{prefix}.conv{i}.weight"]
                self.add_module(f"conv{i}", conv(weight, step))
                self.add_module(f"bn{i}", nn.BatchNorm2d(len(weight)))
            self.downsample = None
            if (weight := tensors.get(f"{prefix}.downsample.0.weight")) is not None:
                self.downsample = nn.Sequential(conv(weight, stride), nn.BatchNorm2d(len(weight)))

        def forward(self, x: Any) -> Any:
            y = x
            for i in range(1, self.count + 1):
                y = self.get_submodule(f"bn{i}")(self.get_submodule(f"conv{i}")(y))
                y = y.relu() if i < self.count else y
            return ((x if self.downsample is None else self.downsample(x)) + y).relu()

    class ResNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1 = conv(tensors["conv1.weight"], 2 if stem == "imagenet" else 1)
            self.bn1 = nn.BatchNorm2d(len(tensors["conv1.weight"]))
            self.maxpool = nn.MaxPool2d(3, stride=2, padding=1) if stem == "imagenet" else nn.Identity()
            for stage in range(1, 5):
                count = len({name.split(".")[1] for name in tensors if name.startswith(f"layer{stage}.")})
                blocks = [Block(f"layer{stage}.{i}", 2 if stage > 1 and i == 0 else 1) for i in range(count)]
                self.add_module(f"layer{stage}", nn.Sequential(*blocks))
            fc = tensors.get("fc.weight")
            self.fc = nn.Identity() if fc is None else nn.Linear(fc.shape[1], fc.shape[0])

        def forward(self, x: Any) -> Any:
            x = self.maxpool(self.bn1(self.conv1(x)).relu())
            for stage in range(1, 5):
                x = self.get_submodule(f"layer{stage}")(x)
            return self.fc(x.mean((2, 3)))

    model = ResNet()
    model.load_state_dict({name: torch.from_numpy(array) for name, array in tensors.items()}, strict=True)
    return model.eval()


@pytest.mark.parametrize(("name", "width", "stem", "image_size"), VARIANTS)
def test_pytorch_gives_the_same_features(
    name: str, width: float, stem: str, image_size: int, tmp_path: pathlib.Path
) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file

    run = run_of(config_of(name, width, stem, image_size))
    path = tmp_path / "encoder.safetensors"
    export_encoder(run, path, format="safetensors", mask="apart")
    tensors = {key: value.numpy() for key, value in load_file(path).items()}
    mask = tensors.pop("mask")
    model = torch_resnet(tensors, stem=stem, bottleneck=name == "resnet50")
    x = inputs_of(run)
    with torch.no_grad():
        found = model(torch.from_numpy(x.transpose(0, 3, 1, 2).copy())).numpy()
    expected = features_of(run, x)
    assert np.abs(expected).max() > 0.1
    assert len(np.unique(expected.round(4), axis=0)) == len(x), "pictures should differ in their features"
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max(), rtol=0)
    np.testing.assert_array_equal(mask, run.mask_weights)


def test_pytorch_gives_masked_features_where_the_mask_is_folded_in(tmp_path: pathlib.Path) -> None:
    torch = pytest.importorskip("torch")
    small = run_of(config_of())
    path = tmp_path / "encoder.safetensors"
    export_encoder(small, path, format="safetensors", mask="folded")
    model = torch_resnet(read_export(path).arrays, stem="cifar", bottleneck=False)
    x = inputs_of(small)
    with torch.no_grad():
        found = model(torch.from_numpy(x.transpose(0, 3, 1, 2).copy())).numpy()
    expected = features_of(small, x) * small.mask_weights
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max(), rtol=0)


@pytest.mark.parametrize(("name", "width", "stem", "image_size"), VARIANTS[1:])
def test_the_files_own_reading_gives_the_same_features(name: str, width: float, stem: str, image_size: int) -> None:
    run = run_of(config_of(name, width, stem, image_size))
    tensors = to_torchvision(run.state.params["encoder"], run.state.batch_stats["encoder"], batches=3)
    floats = {key: value for key, value in tensors.items() if value.dtype == np.float32}
    x = inputs_of(run)
    expected = features_of(run, x)
    found = torchvision_features(floats, x.transpose(0, 3, 1, 2))
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max(), rtol=0)


def test_names_and_shapes_are_torchvisions() -> None:
    run = run_of(config_of("resnet50", 1.0, "imagenet", 64))
    tensors = to_torchvision(run.state.params["encoder"], run.state.batch_stats["encoder"], batches=14)
    # As torchvision.models.resnet50().state_dict() has them, without fc: 53 convolutions, 5 tensors per BatchNorm.
    assert len(tensors) == 53 + 53 * 5
    shapes = {
        "conv1.weight": (64, 3, 7, 7),
        "bn1.running_var": (64,),
        "layer1.0.conv1.weight": (64, 64, 1, 1),
        "layer1.0.conv2.weight": (64, 64, 3, 3),
        "layer1.0.conv3.weight": (256, 64, 1, 1),
        "layer1.0.downsample.0.weight": (256, 64, 1, 1),
        "layer1.0.downsample.1.running_mean": (256,),
        "layer3.5.bn2.bias": (256,),
        "layer4.2.conv3.weight": (2048, 512, 1, 1),
        "layer4.2.bn3.num_batches_tracked": (),
    }
    assert {name: tensors[name].shape for name in shapes} == shapes
    assert tensors["bn1.num_batches_tracked"] == 14
    assert sum(array.size for name, array in tensors.items() if name.endswith(("weight", "bias"))) == 23_508_032
