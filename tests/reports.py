"""What reports are made of and read by: the files of a run that has everything, and a reader of pages."""

import json
import pathlib
from html.parser import HTMLParser

import numpy as np

from metamask_jax.config import default_config, to_json

METRICS = ["loss", "loss_drr", "loss_method", "loss_outer", "feature_std", "gradient_norm", "learning_rate"]
METRICS += ["meta_direct_norm", "meta_second_order_norm", "mask_std", "skipped", "images_per_second"]


def write_metrics(folder: pathlib.Path) -> None:
    rows = [{"step": step} | dict.fromkeys(METRICS, 1.0 / step) for step in range(1, 13)]
    rows[-1] |= {"knn_accuracy": 0.5, "effective_rank": 7.25}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_config(folder: pathlib.Path) -> None:
    (folder / "config.json").write_text(to_json(default_config()))


def write_result(folder: pathlib.Path) -> None:
    table = [{"name": "raw pixels", "knn": 0.25, "linear": 0.3}, {"name": "Meta<Mask>", "knn": 0.625, "linear": None}]
    numbers = {"knn_accuracy": 0.7, "linear_accuracy": 0.75, "knn_accuracy_before": 0.375, "effective_rank_before": 3.5}
    (folder / "result.json").write_text(json.dumps(numbers | {"table": table}))


def arrays() -> dict[str, np.ndarray]:
    """What a run with three classes leaves for its report."""
    random = np.random.default_rng(0)
    h = random.normal(size=(50, 16))

    def pictures(*shape: int) -> np.ndarray:
        return random.integers(0, 256, (*shape, 8, 8, 3), np.uint8)

    return {
        "mask_steps": np.arange(5),
        "mask_trajectory": random.uniform(size=(5, 16)),
        "mask_final": np.arange(16) / 16,
        "singular_values": np.linalg.svd(h, compute_uv=False),
        "correlation": np.corrcoef(h.T),
        "class_names": np.array(["ant", "b<e>e", "cat"]),
        "sample_images": pictures(2),
        "sample_views": pictures(3, 2),
        "query_images": pictures(2),
        "query_labels": np.array([0, 1]),
        "neighbor_images": pictures(2, 3),
        "neighbor_labels": np.array([[0, 0, 2], [1, 0, 1]]),
        "neighbor_similarity": random.uniform(size=(2, 3)),
        "map_points": h[:, :2],
        "map_labels": np.arange(50) % 3,
        "map_shares": np.array([0.5, 0.25]),
        "dimension_indices": np.array([15, 0]),
        "dimension_images": pictures(2, 4),
        "dimension_labels": np.array([[2, 2, 2, 1], [0, 1, 2, 0]]),
        "dimension_spread": np.array([0.5, 0.0]),
        "knn_confusion": np.array([[6, 2, 2], [1, 8, 1], [3, 3, 14]]),
        "knn_interval": np.array([0.55, 0.82]),
    }


def write_arrays(folder: pathlib.Path) -> None:
    np.savez(folder / "report.npz", **arrays())


PARTS = {
    "config.json": write_config,
    "metrics.jsonl": write_metrics,
    "result.json": write_result,
    "report.npz": write_arrays,
}


class Page(HTMLParser):
    """Collects what a page shows and refers to, and checks that its elements are closed in order."""

    def __init__(self, path: pathlib.Path) -> None:
        super().__init__()
        self.headings: list[str] = []
        self.references: list[str] = []
        self.text: list[str] = []
        self._open: list[str] = []
        self.feed(path.read_text())
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.references += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]
        if tag not in ("meta", "img"):
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] == "h3":
            self.headings.append(data)
        if "style" not in self._open and data.strip():
            self.text.append(data.strip())

    def after(self, text: str) -> str:
        return self.text[self.text.index(text) + 1]
