"""The model card of an exported encoder: what it is, how it was made, and what was measured of it."""

import json
from collections.abc import Iterator
from typing import Any

from ml_collections import ConfigDict

from metamask_jax.config import config_names, default_config, flatten, load_config
from metamask_jax.core.places import Place
from metamask_jax.errors import ConfigError
from metamask_jax.evaluate.workdir import Run
from metamask_jax.reporting.tables import markdown_row
from metamask_jax.training.registry import validate

_NOT_THE_RUN = ("data.dir", "data.prefetch", "log.", "checkpoint.")  # do not change what was learned


def model_card(run: Run, config: ConfigDict, *, name: str, timm: bool) -> str:
    """The text of the card, in Markdown with a header that hubs read.

    Args:
      run: the pretrained run, with its accuracies in its working directory.
      config: what is published of its configuration.
      name: of the encoder.
      timm: whether timm has the architecture.
    """
    encoder = config.encoder
    kind = f"{encoder.name}, width {encoder.width:g}"
    kind += f", {encoder.stem} stem" if encoder.name.startswith("resnet") else ""
    mask = f"a mask learned by `{config.meta.estimator}`" if config.mask.learn else "a mask that was not learned"
    parts = [
        "---\nlibrary_name: metamask_jax\ntags: [self-supervised, image-feature-extraction, metamask]\n---",
        f"# {name}",
        f"An encoder of {config.data.image_size}-pixel pictures ({kind}; {len(run.mask_weights)} features), pretrained "
        f"without labels on `{config.data.name}` by `{config.method.name}` with {mask}, {run.step} steps. "
        "Written by metamask_jax.",
        "## Use",
        "```python\nfrom metamask_jax import load_encoder\n\n"
        'apply, params, preprocessing = load_encoder("PATH OF THIS FOLDER")\n'
        "h = apply(params, preprocessing(images))  # images uint8 [batch, height, width, 3], any size\n"
        'masked = h * params["mask"]\n```',
    ]
    if timm:
        parts.append(
            '```python\nimport timm\n\nmodel = timm.create_model("local-dir:PATH OF THIS FOLDER", pretrained=True)\n```'
        )
    parts += [
        "## Accuracy",
        *_accuracies(run),
        "Measured again, where the data are, by",
        "    metamask-evaluate --encoder PATH_OF_THIS_FOLDER --protocol knn --data-dir FOLDER",
        "## Training",
        f"Trained in {run.config.train.dtype}; all settings are in `config.json`. The command:",
        f"    {training_command(config)}",
    ]
    if run.config.init["from"]:
        parts.append("Training began with the weights of another run, `--config.init.from`, which is left out here.")
    return "\n\n".join(parts) + "\n"


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
        rows = [_row(entry) for entry in entries]
    except (OSError, ValueError, KeyError, TypeError):
        rows = []
    if not rows:
        yield from _online(run.workdir)
        return
    head = ["protocol", "data", "training images", "features", "top-1 (%)", "95 % interval", "top-5 (%)"]
    yield "\n".join(map(markdown_row, [head, ["---"] * len(head), *rows]))
    yield "`h*m` are the features times the mask. Intervals are Wilson's over test images; they say nothing of seeds."


def _row(entry: dict[str, Any]) -> list[str]:
    low, high = entry["interval"]
    top5 = "" if entry["top5"] is None else f"{100 * entry['top5']:.2f}"
    kinds = ", ".join([entry["features"], *entry.get("same_for", ())])
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
