"""Writing a folder that hubs of models and timm understand: weights, a configuration and a model card."""

import dataclasses
import json
import os
import pathlib
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from metamask_jax.config import default_config, to_json
from metamask_jax.core.array_files import WRITERS, Export
from metamask_jax.core.encoder_folders import BOX, CARD, CONFIG, MASK, WEIGHTS
from metamask_jax.core.places import is_url
from metamask_jax.core.storage import temporary_folder
from metamask_jax.errors import ExportError
from metamask_jax.evaluate.workdir import Run
from metamask_jax.export.card import model_card
from metamask_jax.export.encoder import Preprocessing, encoder_of
from metamask_jax.export.folders import OURS, exported_run
from metamask_jax.export.write import TOLERANCE, Difference, collect, in_float32, is_resnet, verify_export
from metamask_jax.version import __version__

_FILES = (WEIGHTS, MASK, CARD, CONFIG)  # the last one makes the folder whole


def export_folder(run: Run, path: str | os.PathLike[str]) -> Difference:
    """Writes a run's encoder as a folder, and lets its files appear only if they give the checkpoint's features.

    It holds `model.safetensors`, the encoder, in torchvision's layout if it is a ResNet; `mask.safetensors`;
    `config.json`, which timm reads where it has the architecture; and `README.md`, a model card with the accuracies of
    `evaluation.json`. `load_encoder(path)` reads it.

    Args:
      run: the pretrained run.
      path: the folder; made if need be. What an earlier export left there is replaced, anything else is refused.

    Returns:
      The difference that was found, mere rounding.
    """
    if is_url(path):
        raise ExportError(f"{path}; expected a folder on this machine, such as a mounted bucket's")
    folder = pathlib.Path(path)
    try:
        if folder.exists() and (not folder.is_dir() or {file.name for file in folder.iterdir()} - set(_FILES)):
            raise ExportError(f"{folder} holds something else; expected a new folder, or one of an earlier export")
        folder.parent.mkdir(parents=True, exist_ok=True)
        with temporary_folder(folder.parent, prefix=".export-") as temporary:
            _write(run, temporary, folder.resolve())
            difference = verify_folder(temporary, run)
            if not difference.equal:
                raise ExportError(
                    f"{folder} would give other features than the checkpoint, by {difference.largest:.1e}; "
                    f"expected at most {TOLERANCE:g} of the largest feature, {difference.scale:.3g}"
                )
            folder.mkdir(exist_ok=True)
            for file in _FILES:
                os.replace(temporary / file, folder / file)
    except OSError as error:
        raise ExportError(f"{folder} cannot be written, {error}; expected a place for a new folder") from error
    return difference


def verify_folder(folder: str | os.PathLike[str], run: Run) -> Difference:
    """Compares a folder with a checkpoint: the weights by themselves, and what `load_encoder` makes of all files."""
    folder = pathlib.Path(folder)
    by_file = verify_export(folder / WEIGHTS, run)
    expected, found = in_float32(run), in_float32(exported_run(folder, run.registry))
    size = expected.preprocessing.image_size
    pictures = np.random.default_rng(1).integers(0, 256, (4, size, size, 3), np.uint8)
    pairs = [
        (encoder.params["mask"], encoder.apply(encoder.params, encoder.preprocessing(pictures)))
        for encoder in (expected, found)
    ]
    (mask, h), (other_mask, other_h) = jax.device_get(pairs)
    largest = max(by_file.largest, float(np.abs(h - other_h).max()), float(np.abs(mask - other_mask).max()))
    return Difference(largest, by_file.scale)


def _write(run: Run, folder: pathlib.Path, final: pathlib.Path) -> None:
    """Writes all files into a folder, for the place where it will be in the end."""
    encoder = encoder_of(run)
    export = collect(run, torchvision=is_resnet(encoder.params["params"]), mask="none")
    WRITERS["safetensors"](folder / WEIGHTS, export)
    mask = np.asarray(encoder.params["mask"], np.float32)
    WRITERS["safetensors"](folder / MASK, Export({"mask": mask}, {"step": run.step, "version": __version__}))
    config = published(run.config)
    content = _timm_config(run.config, encoder.preprocessing, len(mask)) | {
        OURS: {
            "config": json.loads(to_json(config)),
            "step": run.step,
            "preprocessing": dataclasses.asdict(encoder.preprocessing),
            "version": __version__,
        },
    }
    (folder / CONFIG).write_text(json.dumps(content, indent=2) + "\n")
    source = f"zoo:{final.name}" if final.parent == BOX else "PATH OF THIS FOLDER"
    (folder / CARD).write_text(model_card(run, config, name=final.name, source=source, timm="architecture" in content))


def published(config: ConfigDict) -> ConfigDict:
    """The configuration without the folders of the machine that it ran on."""
    config = config.copy_and_resolve_references()
    with config.unlocked():
        config.data.dir = default_config().data.dir
        config.init["from"] = None
        config.data.options = ConfigDict({k: v for k, v in config.data.options.to_dict().items() if k != "path"})
    return config


def _timm_config(config: ConfigDict, preprocessing: Preprocessing, dim: int) -> dict[str, Any]:
    """What timm's own folders hold; an architecture is named only where timm's is the same network."""
    size = preprocessing.image_size
    encoder = config.encoder
    same = (
        encoder.name in ("resnet18", "resnet34", "resnet50")
        and encoder.width == 1
        and encoder.stem == "imagenet"
        and encoder.features is None
        and preprocessing.channels == ("R", "G", "B")
    )
    common = {"num_classes": 0, "num_features": dim}
    if not same:
        return common
    return common | {
        "architecture": encoder.name,
        "global_pool": "avg",
        "pretrained_cfg": {
            "tag": "metamask",
            "input_size": [3, size, size],
            "fixed_input_size": False,
            "interpolation": preprocessing.interpolation,
            "crop_pct": size / preprocessing.shortest,
            "crop_mode": "center",
            "mean": list(preprocessing.mean),
            "std": list(preprocessing.std),
            "num_classes": 0,
            "first_conv": "conv1",
            "classifier": "fc",
        },
    }
