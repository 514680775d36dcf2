"""The authors' training step in PyTorch, written from its description: what `benchmarks/step.py` is measured against.

Same networks, heads, losses and optimiser as `metamask_jax` with the `official` preset; every view is encoded on its
own. The meta step is the authors' finite difference; its perturbed passes stop at the mask, as autograd prunes them.
PyTorch is needed by the benchmarks alone: `pip install torch`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F  # noqa: N812

TEMPERATURE, ALPHA, OFF_DIAGONAL_WEIGHT = 0.07, 10.0, 0.005
LEARNING_RATE, MOMENTUM, WEIGHT_DECAY = 1e-3, 0.9, 5e-4


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.conv2, self.bn2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        if stride != 1 or channels != out:
            self.downsample_0 = nn.Conv2d(channels, out, 1, stride, bias=False)
            self.downsample_1 = nn.BatchNorm2d(out)
        self.projects = stride != 1 or channels != out

    def forward(self, x: Tensor) -> Tensor:
        """Applies the layers in order."""
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return F.relu(y + (self.downsample_1(self.downsample_0(x)) if self.projects else x))


class ResNet18(nn.Module):
    """With the stem for small images."""

    def __init__(self, width: float) -> None:
        super().__init__()
        channels = round(64 * width)
        self.conv1, self.bn1 = nn.Conv2d(3, channels, 3, 1, 1, bias=False), nn.BatchNorm2d(channels)
        for stage in range(1, 5):
            for i in range(2):
                out = round(32 * 2**stage * width)
                self.add_module(f"layer{stage}_{i}", Block(channels, out, 2 if stage > 1 and i == 0 else 1))
                channels = out
        self.features = channels

    def forward(self, x: Tensor) -> Tensor:
        """Applies the layers in order."""
        x = F.relu(self.bn1(self.conv1(x)))
        for name, block in self.named_children():
            x = block(x) if name.startswith("layer") else x
        return x.mean((2, 3))


class Conv(nn.Module):
    """AlexNet's five convolutions with the stem for 32x32 images."""

    def __init__(self, width: float) -> None:
        super().__init__()
        channels, layers = 3, [(96, 3), (256, 5), (384, 3), (384, 3), (256, 3)]
        for i, (full, window) in enumerate(layers, start=1):
            out = round(full * width)
            self.add_module(f"conv{i}", nn.Conv2d(channels, out, window, 1, window // 2, bias=False))
            self.add_module(f"bn{i}", nn.BatchNorm2d(out))
            channels = out
        self.features = channels

    def forward(self, x: Tensor) -> Tensor:
        """Applies the layers in order."""
        for i in range(1, 6):
            x = F.relu(self.get_submodule(f"bn{i}")(self.get_submodule(f"conv{i}")(x)))
            if i in (1, 2, 5):
                x = F.max_pool2d(x, 3, 2)
        return x.mean((2, 3))


class Head(nn.Module):
    """Linear-BatchNorm-ReLU layers, the last without ReLU."""

    def __init__(self, widths: Sequence[int]) -> None:
        super().__init__()
        self.depth = len(widths) - 1
        for i in range(1, len(widths)):
            self.add_module(f"fc{i}", nn.Linear(widths[i - 1], widths[i]))
            self.add_module(f"bn{i}", nn.BatchNorm1d(widths[i]))

    def forward(self, x: Tensor) -> Tensor:
        """Applies the layers in order."""
        for i in range(1, self.depth + 1):
            x = self.get_submodule(f"bn{i}")(self.get_submodule(f"fc{i}")(x))
            x = F.relu(x) if i < self.depth else x
        return x


class Network(nn.Module):
    """Encoder and both heads; the mask is an argument."""

    def __init__(self, encoder: str, width: float) -> None:
        super().__init__()
        self.encoder = {"resnet18": ResNet18, "conv": Conv}[encoder](width)
        dim = self.encoder.features
        self.drr_head = Head((dim, 2048, 2048, 2048))
        self.method = Head((dim, 2048, 256))

    def forward(self, views: Tensor, mask: Tensor, with_drr: bool) -> tuple[Tensor, Tensor]:
        """Redundancy reduction (zero without its head) and contrast of views `[2, batch, 3, height, width]`."""
        masked = [self.encoder(view) * torch.sigmoid(mask) for view in views]
        contrast = nt_xent(*(self.method(h) for h in masked))
        drr = redundancy_reduction(*(self.drr_head(h) for h in masked)) if with_drr else torch.zeros(())
        return drr, contrast


def nt_xent(a: Tensor, b: Tensor) -> Tensor:
    z = F.normalize(torch.cat([a, b]), dim=1)
    logits = (z @ z.T / TEMPERATURE).fill_diagonal_(-torch.inf)
    return F.cross_entropy(logits, torch.arange(len(z)).roll(len(a)))


def redundancy_reduction(a: Tensor, b: Tensor) -> Tensor:
    a, b = ((z - z.mean(0)) / z.std(0) for z in (a, b))
    c = a.T @ b / len(a)
    diagonal = torch.diagonal(c)
    off_diagonal = (c**2).sum() - (diagonal**2).sum()
    return ((1 - diagonal) ** 2).sum() + OFF_DIAGONAL_WEIGHT * off_diagonal


class Trainer:
    """The two steps on ready views; augmentation is not part of them."""

    def __init__(self, encoder: str, width: float, params: Mapping[str, Any]) -> None:
        """Starts from the weights of a `metamask_jax` training state."""
        self.network = Network(encoder, width).train()
        _load(self.network, params)
        self.network.to(memory_format=torch.channels_last)
        self.mask = nn.Parameter(torch.zeros(self.network.encoder.features))
        settings = {"lr": LEARNING_RATE, "momentum": MOMENTUM, "weight_decay": WEIGHT_DECAY}
        self.optimizer = torch.optim.SGD(self.network.parameters(), **settings)
        self.mask_optimizer = torch.optim.SGD([self.mask], **settings)

    def views(self, views: np.ndarray) -> Tensor:
        """Views `[2, batch, height, width, 3]` in the layout the network wants."""
        return torch.from_numpy(np.ascontiguousarray(views)).permute(0, 1, 4, 2, 3)

    def joint_step(self, views: Tensor) -> float:
        """Trains the network on both losses; returns their weighted sum before the step."""
        self.optimizer.zero_grad()
        drr, contrast = self.network(views, self.mask.detach(), with_drr=True)
        loss = drr + ALPHA * contrast
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def meta_step(self, views: Tensor) -> float:
        """A joint step, then the mask by a finite difference through a trial step; returns the outer loss."""
        self.joint_step(views)
        params = {name: p.detach() for name, p in self.network.named_parameters() if not name.startswith("drr_head")}
        gradients, _ = self._gradients(params, views, of_mask=False)
        trial = {name: self._trial(name, p, gradients[name]) for name, p in params.items()}
        slopes, (outer, direct) = self._gradients(trial, views, of_mask=True)
        radius = 0.01 / torch.cat([v.flatten() for v in slopes.values()]).norm()
        plus, minus = (
            self._mask_gradient({name: p + sign * radius * slopes[name] for name, p in params.items()}, views)
            for sign in (1, -1)
        )
        self.mask.grad = direct - LEARNING_RATE * (plus - minus) / (2 * radius)
        self.mask_optimizer.step()
        return outer

    def _contrast(self, params: dict[str, Tensor], views: Tensor) -> Tensor:
        return functional_call(self.network, params, (views, self.mask, False))[1]

    def _gradients(
        self, params: dict[str, Tensor], views: Tensor, of_mask: bool
    ) -> tuple[dict[str, Tensor], tuple[float, Tensor]]:
        """Gradient of the contrast in the weights, its value, and its gradient in the mask if wanted."""
        params = {name: p.requires_grad_() for name, p in params.items()}
        loss = self._contrast(params, views)
        wanted = [*params.values(), *([self.mask] if of_mask else [])]
        gradients = torch.autograd.grad(loss, wanted)
        return dict(zip(params, gradients, strict=False)), (loss.item(), gradients[-1])

    def _mask_gradient(self, params: dict[str, Tensor], views: Tensor) -> Tensor:
        params = {name: p.detach() for name, p in params.items()}
        return torch.autograd.grad(self._contrast(params, views), self.mask)[0]

    def _trial(self, name: str, p: Tensor, gradient: Tensor) -> Tensor:
        buffer = self.optimizer.state[self.network.get_parameter(name)]["momentum_buffer"]
        return (p - LEARNING_RATE * (MOMENTUM * buffer + gradient + WEIGHT_DECAY * p)).detach()


def _load(network: nn.Module, params: Mapping[str, Any], prefix: str = "") -> None:
    """Copies Flax weights, whose names are those of the modules here."""
    for name, value in params.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping):
            _load(network, value, f"{path}.")
            continue
        array = np.asarray(value)
        if name == "kernel":
            array = array.transpose((3, 2, 0, 1) if array.ndim == 4 else (1, 0))
        target = path.replace("kernel", "weight").replace("scale", "weight")
        with torch.no_grad():
            network.get_parameter(target).copy_(torch.from_numpy(array.copy()))
