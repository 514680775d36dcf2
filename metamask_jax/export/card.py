"""The model card of an exported encoder: what it is, how it was made, and what was measured of it."""

import json
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from metamask_jax.config import config_names, default_config, flatten, load_config
from metamask_jax.core.places import Place
from metamask_jax.data.builders import OPTIONS
from metamask_jax.errors import ConfigError
from metamask_jax.evaluate.workdir import Run
from metamask_jax.reporting.tables import markdown_row
from metamask_jax.training.registry import validate

_NOT_THE_RUN = ("data.dir", "data.prefetch", "log.", "checkpoint.")  # do not change what was learned


def model_card(run: Run, config: ConfigDict, *, name: str, source: str, timm: bool) -> str:
    """The text of the card, in Markdown with a header that hubs read.

    Args:
      run: the pretrained run, with its accuracies in its working directory.
      config: what is published of its configuration.
      name: of the encoder.
      source: what `load_encoder` takes for it.
      timm: whether timm has the architecture.
    """
    encoder = config.encoder
    kind = f"{encoder.name}, width {encoder.width:g}"
    kind += f", {encoder.stem} stem" if encoder.name.startswith("resnet") else ""
    size = sum(leaf.size for leaf in jax.tree.leaves(run.state.params["encoder"]))
    learned = f"with a mask learned by `{config.meta.estimator}`" if config.mask.learn else "without mask learning"
    if config.mask.learn and config.meta.outer == "labels":
        learned += f", which labels judged (`meta.labels={config.meta.labels:g}`)"
    parts = [
        _header(config),
        f"# {name}",
        f"An encoder of {config.data.image_size}-pixel pictures ({kind}; {size:,} parameters, {len(run.mask_weights)} "
        f"features), pretrained {'with' if config.method.name == 'supervised' else 'without'} labels on "
        f"`{config.data.name}` by `{config.method.name}`, {learned}: {run.step} steps of {config.train.batch_size} "
        "pictures. Written by metamask_jax. What its features are worth for other kinds of pictures was not measured.",
        "## Use",
        "```python\nfrom metamask_jax import load_encoder\n\n"
        f'apply, params, preprocessing = load_encoder("{source}")\n'
        "h = apply(params, preprocessing(images))  # images uint8 [batch, height, width, 3], any size\n"
        + ('masked = h * params["mask"]\n```' if config.mask.learn else "```"),
    ]
    if timm:
        parts.append(
            '```python\nimport timm\n\nmodel = timm.create_model("local-dir:PATH OF THIS FOLDER", pretrained=True)\n```'
        )
    parts += [
        "## Accuracy",
        *_accuracies(run),
        "Measured again, where the data are, by",
        f"    metamask-evaluate --encoder {source.replace(' ', '_')} --protocol knn,linear "
        + ("--option path=PICTURES" if needs_path(config) else "--data-dir FOLDER"),
        "## Training",
        f"Trained in {run.config.train.dtype}; all settings are in `config.json`. The command:",
        f"    {training_command(config)}{' --config.data.options.path=PICTURES' if needs_path(config) else ''}",
    ]
    if run.config.init["from"]:
        parts.append("Training began with the weights of another run, `--config.init.from`, which is left out here.")
    return "\n\n".join(parts) + "\n"


def _header(config: ConfigDict) -> str:
    """What hubs of models sort by."""
    data = [] if config.data.name in OPTIONS else [f"datasets: [{config.data.name}]"]
    lines = ["library_name: metamask_jax", "pipeline_tag: image-feature-extraction", *data, "tags: [self-supervised]"]
    return "\n".join(["---", *lines, "---"])


def needs_path(config: ConfigDict) -> bool:
    """Whether the data are somebody's own pictures, in a folder that an exported encoder does not name."""
    return str(config.data.name) == "image_folder"


def training_command(config: ConfigDict) -> str:
    """A command that trains with these settings: the configuration with a name that is nearest, and what differs."""
    options = [(flags, base) for base in config_names() if (flags := _flags(base, config)) is not None]
    flags, base = min(options, key=lambda option: len(option[0]))
    return " ".join(["metamask-pretrain", "--config", base, *flags, "--workdir", "runs/mine"])


def _flags(base: str, config: ConfigDict) -> list[str] | None:
    """The flags that turn a configuration with a name into this one; None where that cannot be done."""
    try:
        before = flatten(validate(load_config(base)))
    except ConfigError:
        return None
    after, defaults = flatten(config), flatten(default_config())
    keys = [key for key in sorted(before | after) if not key.startswith(_NOT_THE_RUN)]
    missing = [key for key in keys if key not in after and key not in defaults]
    if missing:  # an option that only the other has cannot be taken away
        return None
    changed = [key for key in keys if before.get(key) != after.get(key)]
    return [f"--config.{key}={_quoted(after.get(key))}" for key in changed]


def _quoted(value: Any) -> str:
    text = repr(value) if isinstance(value, tuple | list) else str(value)
    return f"'{text}'" if any(letter in text for letter in " ()[]'\"") else text


def _accuracies(run: Run) -> Iterator[str]:
    """A table of what was measured of this step, or a sentence."""
    try:
        entries = json.loads((run.workdir / "evaluation.json").read_text())["results"]
        entries = [entry for entry in entries if entry["step"] == run.step]
        masked = float(np.ptp(run.mask_weights)) > 0
        rows = [_row(entry, masked) for entry in entries if masked or entry["features"] == "h"]
    except (OSError, ValueError, KeyError, TypeError):
        rows = []
    if not rows:
        yield from _online(run.workdir)
        return
    head = ["protocol", "data", "training images", "features", "top-1 (%)", "95 % interval", "top-5 (%)"]
    yield "\n".join(map(markdown_row, [head, ["---"] * len(head), *rows]))
    remark = "`h*m` are the features times the mask. " if masked else ""
    yield remark + "Intervals are Wilson's over test images; they say nothing of seeds."


def _row(entry: dict[str, Any], masked: bool) -> list[str]:
    low, high = entry["interval"]
    top5 = "" if entry["top5"] is None else f"{100 * entry['top5']:.2f}"
    kinds = ", ".join([entry["features"], *(entry.get("same_for", ()) if masked else ())])
    return [
        *(entry["protocol"], entry["dataset"], str(entry["train_size"]), kinds, f"{100 * entry['top1']:.2f}"),
        *(f"{100 * low:.2f} to {100 * high:.2f}", top5),
    ]


def _online(workdir: Place) -> Iterator[str]:
    try:
        accuracy = json.loads((workdir / "result.json").read_text())["knn_accuracy"]
        yield f"Nearest neighbours at the end of training: {100 * accuracy:.2f} %. No protocol was run after it."
    except (OSError, ValueError, KeyError, TypeError):
        yield "Not measured yet: `metamask-evaluate` before exporting puts accuracies here."
