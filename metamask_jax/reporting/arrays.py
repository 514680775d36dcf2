"""The arrays of `report.npz` that can be drawn: of the right kind, finite, and fitting together."""

import io
from collections.abc import Mapping

import numpy as np

from metamask_jax.core.places import Place

LARGEST = 1e30  # of a number that is drawn or printed
_PICTURES = ("sample_images", "sample_views", "query_images", "neighbor_images", "dimension_images")
_NAMES = "class_names"
# What belongs together and can be drawn only if all of it is there, with a letter for each axis: the same letter stands
# for the same length.
_GROUPS: tuple[dict[str, str], ...] = (
    {"mask_final": "d"},
    {"mask_steps": "t", "mask_trajectory": "td"},
    {"singular_values": "d"},
    {"correlation": "dd"},
    {"class_names": "c"},
    {"sample_images": "nhw3", "sample_views": "vnst3"},
    {"query_images": "qhw3", "query_labels": "q", "neighbor_images": "qkhw3", "neighbor_labels": "qk"}
    | {"neighbor_similarity": "qk"},
    {"map_points": "n2", "map_labels": "n", "map_shares": "2"},
    {"dimension_indices": "d", "dimension_images": "dkhw3", "dimension_labels": "dk", "dimension_spread": "d"},
    {"class_names": "c", "knn_confusion": "cc"},
    {"knn_interval": "2"},
    {"knn_top5": "1"},
)


def read_arrays(path: Place) -> dict[str, np.ndarray]:
    """Reads `report.npz` without what cannot be drawn."""
    with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as file:
        found = {key: values for key, values in file.items() if values.size and _is_drawable(key, values)}
    fitting = {key for group in _GROUPS if _fits(found, group) for key in group}
    unfit = {
        "correlation": len(found.get("correlation", ())) < 2,
        "singular_values": not (found.get("singular_values", np.zeros(1)) > 0).any(),
        "dimension_indices": not _are_dimensions(found),
    }
    return {key: values for key, values in found.items() if key in fitting and not unfit.get(key)}


def _is_drawable(key: str, values: np.ndarray) -> bool:
    if key in _PICTURES:
        return values.dtype == np.uint8
    if key == _NAMES:
        return values.dtype.kind == "U"
    return values.dtype.kind in "fiu" and bool((np.abs(values) < LARGEST).all())


def _fits(arrays: Mapping[str, np.ndarray], group: Mapping[str, str]) -> bool:
    """Whether all arrays of a group are there, with axes of the lengths that go together."""
    lengths: dict[str, int] = {}
    for key, axes in group.items():
        if key not in arrays or arrays[key].ndim != len(axes):
            return False
        for axis, length in zip(axes, arrays[key].shape, strict=True):
            if lengths.setdefault(axis, int(axis) if axis.isdecimal() else length) != length:
                return False
    return True


def _are_dimensions(arrays: Mapping[str, np.ndarray]) -> bool:
    """Whether the dimensions that are shown are those of the mask."""
    indices, mask = arrays.get("dimension_indices"), arrays.get("mask_final")
    if indices is None or mask is None or indices.dtype.kind not in "iu":
        return False
    return bool((indices >= 0).all() and (indices < len(mask)).all())
