"""Our ResNets in torchvision's layout, and back: its names, and its order of a kernel's axes."""

from collections.abc import Mapping, Sequence

import numpy as np
from flax.traverse_util import flatten_dict

_NAMES = {"kernel": "weight", "scale": "weight", "bias": "bias", "mean": "running_mean", "var": "running_var"}
_COUNTER = "num_batches_tracked"


def to_torchvision(params: Mapping, batch_stats: Mapping, *, batches: int) -> dict[str, np.ndarray]:
    """Tensors of a ResNet by torchvision's names, kernels as [out, in, height, width].

    Args:
      params: parameters of `models.ResNet`.
      batch_stats: its BatchNorm statistics.
      batches: how many batches the statistics come from.
    """
    tensors = {}
    for path, value in (flatten_dict(params) | flatten_dict(batch_stats)).items():
        array = np.asarray(value, np.float32)
        kernel = path[-1] == "kernel"
        tensors[_torch_name(path)] = np.ascontiguousarray(array.transpose(3, 2, 0, 1) if kernel else array)
        if path[-1] == "mean":
            tensors[f"{_module(path)}.{_COUNTER}"] = np.array(batches, np.int64)
    return tensors


def from_torchvision(
    tensors: Mapping[str, np.ndarray], params: Mapping, batch_stats: Mapping
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The inverse of `to_torchvision` for a ResNet with the given parameters, of which only the names matter.

    Returns:
      Parameters and BatchNorm statistics by our names, such as `layer1_0.conv1.kernel`; what the tensors do not have is
      left out, and what the ResNet does not have is among the first by the tensor's own name.
    """
    left = {name: array for name, array in tensors.items() if not name.endswith(_COUNTER)}
    found: list[dict[str, np.ndarray]] = []
    for tree in (params, batch_stats):
        arrays = {path: left.pop(_torch_name(path)) for path in flatten_dict(tree) if _torch_name(path) in left}
        found.append(
            {
                ".".join(path): array.transpose(2, 3, 1, 0) if path[-1] == "kernel" and array.ndim == 4 else array
                for path, array in arrays.items()
            }
        )
    return found[0] | left, found[1]


def _torch_name(path: Sequence[str]) -> str:
    return f"{_module(path)}.{_NAMES.get(path[-1], path[-1])}"


def _module(path: Sequence[str]) -> str:
    return ".".join(path[:-1]).replace("_", ".")
