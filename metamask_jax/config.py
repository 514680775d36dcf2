"""The one place where hyper-parameters have defaults, and where their values are checked.

A config file in `configs/` defines `get_config()`, which returns `default_config()` with what differs changed. On the
command line, `--config configs/NAME.py` names the file, `--config configs/NAME.py:ARGUMENT` passes an argument to its
`get_config`, and `--config.KEY=VALUE` overrides any key.
"""

import ast
import difflib
import importlib.util
import json
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

_FREE = "data.options."  # keys under it belong to the dataset, which checks them itself


class ConfigError(ValueError):
    """A configuration that cannot be used; the message says what was found and what is allowed."""


def default_config() -> ConfigDict:
    """The defaults: MetaMask on SimCLR with the authors' program's hyper-parameters, on the embedded dataset."""
    config = ConfigDict()
    config.train = ConfigDict(
        {
            "batch_size": 256,  # over all devices and processes
            "epochs": 20,
            "steps": placeholder(int),  # overrides epochs
            "seed": 0,
            "dtype": "float32",  # of the network's computation; parameters and losses stay float32
            "accumulate": 1,  # micro-batches a step, each with its own losses and trial step; gradients are averaged
            "remat": False,  # recompute the encoder's activations in the backward pass to save memory
        }
    )
    config.data = ConfigDict(
        {
            "name": "confounded_shapes",
            "dir": "~/tensorflow_datasets",
            "size": placeholder(int),  # only the first n training images
            "image_size": 32,
            "augmentation": "simclr",
            "views": 2,
            "small_views": 0,  # further, smaller crops of each image, for methods that have a use for them (SwAV)
            "small_size": 16,  # their side in pixels
            "crop_split": 0.14,  # with small views: they show less than this share of the image, the others more
            "prefetch": 2,  # batches prepared ahead
            "options": ConfigDict({}, convert_dict=True),  # of the dataset itself, e.g. {"path": "pictures/"}
        }
    )
    config.encoder = ConfigDict({"name": "resnet18", "width": 1.0, "stem": "cifar"})
    # None: the method's own default, which stands in its file in methods/ and which `validate` fills in. A method
    # ignores the keys that are not its own.
    config.method = ConfigDict(
        {
            "name": "simclr",
            "head": placeholder(tuple),  # widths of the projection head's layers
            "predictor": placeholder(int),  # width of the predictor's hidden layer
            "temperature": placeholder(float),
            "positive_prior": placeholder(float),  # tau_plus of DCL and HCL
            "concentration": placeholder(float),  # beta of HCL
            "bank_size": placeholder(int),  # past projections as further negatives (for SwAV's codes); 0: none
            "bank_start": placeholder(float),  # epoch from which SwAV collects them
            "queue_size": placeholder(int),  # of MoCo's keys, NNCLR's support set
            "momentum": placeholder(float),  # of a target's moving average (at the start, for BYOL), of CMC's memories
            "prototypes": placeholder(int),  # of SwAV
            "freeze_epochs": placeholder(float),  # epochs before SwAV's prototypes learn
            "epsilon": placeholder(float),  # entropy of SwAV's codes
            "iterations": placeholder(int),  # of Sinkhorn and Knopp's algorithm
            "negatives": placeholder(int),  # memories of other images that CMC contrasts with
            "num_classes": placeholder(int),  # of supervised training
            "dropout": 0.0,  # share of the features set to zero, for any method
            "dropout_shared": False,  # the same ones in all views of an image
        }
    )
    config.loss = ConfigDict(
        {
            "alpha": 10.0,  # weight of the method's loss beside redundancy reduction (Eq. 5)
            "drr": True,  # redundancy reduction on or off
            "drr_head": (2048, 2048, 2048),
            "off_diagonal_weight": 0.005,  # lambda of Eq. 2
            "centered": True,
            "unbiased": True,
            "chunk_size": placeholder(int),  # None: all at once
        }
    )
    config.mask = ConfigDict(
        {
            "learn": True,
            "activation": "sigmoid",
            "learning_rate": 1e-3,
            "momentum": 0.9,
            "weight_decay": 5e-4,
            "schedule": "cosine_epochs",
        }
    )
    config.meta = ConfigDict(
        {
            "estimator": "exact",
            "every": 1,  # regular steps to one meta step
            "trial": "optimizer",  # through the optimiser's momentum and decay, or a plain "gradient" step
            "learning_rate": placeholder(float),  # of a plain trial step; None: the network's at that moment
            "head_learning_rate": placeholder(float),  # the same for everything but the encoder
        }
    )
    config.optimizer = ConfigDict(
        {
            "name": "sgd",
            "learning_rate": 1e-3,
            "momentum": 0.9,
            "weight_decay": 5e-4,
            "decay_norm_and_bias": True,  # weight decay on BatchNorm and biases too, as PyTorch does by default
            "schedule": "cosine_epochs",
            "warmup_epochs": 0.0,
            "trust_coefficient": 0.001,  # of LARS
        }
    )
    config.checkpoint = ConfigDict(
        {"every_steps": 500, "keep_last": 2, "keep_every": placeholder(int), "keep_best": True}
    )
    config.eval = ConfigDict(
        {"every_epochs": 10, "k": 5, "temperature": 1.0, "masked": True, "batch_size": 256, "size": placeholder(int)}
    )
    config.guard = ConfigDict({"max_skipped": 10, "min_feature_std": 0.05, "min_effective_rank": 2.0})
    config.log = ConfigDict({"every_steps": 10, "tensorboard": True, "wandb_project": placeholder(str)})
    return config.lock()


def official(config: ConfigDict) -> ConfigDict:
    """Sets every point on which the authors' program differs from the paper to the program's side."""
    config.meta.update(trial="optimizer", estimator="finite_difference")
    config.mask.activation = "sigmoid"
    config.eval.masked = True
    config.loss.update(alpha=10.0, centered=True, unbiased=True, off_diagonal_weight=0.005)
    return config


def paper(config: ConfigDict) -> ConfigDict:
    """Sets every point on which the authors' program differs from the paper to the paper's side."""
    config.meta.update(trial="gradient", estimator="exact")
    config.mask.activation = "identity"
    config.eval.masked = False
    config.loss.update(alpha=100.0, centered=False, unbiased=False, off_diagonal_weight=0.0051)
    return config


def metamask(config: ConfigDict) -> ConfigDict:
    """A method with MetaMask: drr + alpha * L_method, the mask learned through L_method."""
    config.loss.drr = True
    config.mask.learn = True
    return config


def alone(config: ConfigDict) -> ConfigDict:
    """A method as it was before MetaMask: its own loss on unmasked features."""
    config.loss.update(drr=False, alpha=1.0)
    return _unmasked(config)


def without_meta(config: ConfigDict) -> ConfigDict:
    """The ablation without mask and meta-learning: drr + alpha * L_method on unmasked features."""
    config.loss.drr = True
    return _unmasked(config)


def without_drr(config: ConfigDict) -> ConfigDict:
    """The ablation without redundancy reduction: alpha * L_method alone, the mask learned through it."""
    config.loss.drr = False
    config.mask.learn = True
    return config


def _unmasked(config: ConfigDict) -> ConfigDict:
    config.mask.update(learn=False, activation="identity")  # which starts at one, and stays there
    config.eval.masked = False
    return config


VARIANTS = {"metamask": metamask, "alone": alone, "without_meta": without_meta, "without_drr": without_drr}


def load_config(source: str) -> ConfigDict:
    """Runs a config file, given as `path.py` or `path.py:argument`."""
    path, _, argument = source.partition(":")
    spec = importlib.util.spec_from_file_location("metamask_config", path)
    if not pathlib.Path(path).is_file() or spec is None or spec.loader is None:
        raise ConfigError(f"--config {path}; expected an existing Python file, such as configs/quickstart.py")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        config = module.get_config(*([argument] if argument else []))
    except Exception as error:
        raise ConfigError(f"--config {source}; expected get_config() to work, but: {error}") from error
    if not isinstance(config, ConfigDict):
        raise ConfigError(f"--config {source}; expected get_config() to return a ConfigDict, found {config!r}")
    return config.lock()


def apply_overrides(config: ConfigDict, overrides: Mapping[str, str]) -> ConfigDict:
    """Sets keys such as `train.steps` to values given as text."""
    for key, text in overrides.items():
        try:
            value = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            value = {"true": True, "false": False}.get(text.lower(), text)
        _set(config, key, value)
    return config


def validate(config: ConfigDict) -> ConfigDict:
    """Checks every key, type and value, and fills in the method's own defaults.

    Args:
      config: the configuration; it is not changed.

    Returns:
      A complete, locked copy.

    Raises:
      ConfigError: naming the culprit and what is allowed.
    """
    values = {key: value for key, value in flatten(config).items() if not key.startswith(_FREE)}
    for key, value in values.items():
        _require_known(key)
        _require_type(key, value)
    for key, choices in _choices().items():
        if values[key] not in choices:
            raise ConfigError(f"config.{key}={values[key]!r}; expected one of {', '.join(map(repr, choices))}")
    for keys, (low, allowed) in _BOUNDS.items():
        for key in keys.split():
            value = values[key]
            smallest = min(value, default=0) if isinstance(value, tuple) else value
            if smallest is not None and not low(smallest):
                raise ConfigError(f"config.{key}={value!r}; expected {allowed}")
    if values["train.batch_size"] % values["train.accumulate"]:
        raise ConfigError(
            f"config.train.batch_size={values['train.batch_size']}; expected a multiple of "
            f"config.train.accumulate={values['train.accumulate']}"
        )
    if not (values["loss.drr"] or values["loss.alpha"] > 0):
        raise ConfigError("config.loss.drr=False with config.loss.alpha=0; expected at least one of the two losses")
    return _with_method(from_json(to_json(config))).lock()


def _with_method(config: ConfigDict) -> ConfigDict:
    """Fills in what the method leaves to its own defaults, and checks what it needs."""
    from metamask_jax.methods import METHODS

    recipe = METHODS[config.method.name]
    for key, value in recipe.defaults.items():
        if config.method[key] is None:
            _set(config, f"method.{key}", value)
    needed = max(recipe.min_views, 2 if config.loss.drr else 1)
    if config.data.views < needed:
        raise ConfigError(
            f"config.data.views={config.data.views}; expected at least {needed} for config.method.name="
            f"{config.method.name!r} with config.loss.drr={config.loss.drr}"
        )
    if config.data.small_views and not recipe.multi_crop:
        allowed = ", ".join(repr(name) for name, other in METHODS.items() if other.multi_crop)
        raise ConfigError(
            f"config.data.small_views={config.data.small_views}; expected 0 for config.method.name="
            f"{config.method.name!r}: only {allowed} can use small views"
        )
    recipe.check(config)
    return config


_BOUNDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "train.batch_size": (lambda x: x >= 2, "a whole number >= 2"),
    "train.epochs train.steps train.accumulate data.size data.image_size data.views data.prefetch meta.every "
    "data.small_size loss.chunk_size method.predictor method.queue_size method.num_classes method.prototypes "
    "method.iterations method.negatives "
    "checkpoint.every_steps checkpoint.keep_last checkpoint.keep_every eval.k eval.batch_size eval.size "
    "guard.max_skipped log.every_steps": (lambda x: x >= 1, "a whole number >= 1"),
    "method.head loss.drr_head": (lambda x: x >= 1, "a non-empty tuple of whole numbers >= 1"),
    "data.small_views method.bank_size eval.every_epochs": (lambda x: x >= 0, "a whole number >= 0"),
    "train.seed": (lambda x: 0 <= x < 2**31, "a whole number in [0, 2**31)"),
    "encoder.width method.temperature method.epsilon optimizer.trust_coefficient eval.temperature": (
        lambda x: x > 0,
        "a number > 0",
    ),
    "data.crop_split": (lambda x: 0.05 < x < 1, "a number in (0.05, 1)"),
    "method.bank_start method.freeze_epochs "
    "method.concentration loss.alpha loss.off_diagonal_weight mask.learning_rate mask.weight_decay meta.learning_rate "
    "meta.head_learning_rate optimizer.learning_rate optimizer.weight_decay optimizer.warmup_epochs "
    "guard.min_feature_std guard.min_effective_rank": (lambda x: x >= 0, "a number >= 0"),
    "mask.momentum method.dropout method.positive_prior optimizer.momentum": (
        lambda x: 0 <= x < 1,
        "a number in [0, 1)",
    ),
    "method.momentum": (lambda x: 0 <= x <= 1, "a number in [0, 1]"),
}


def _choices() -> dict[str, tuple[str, ...]]:
    # Imported here, so that reading a config does not load the network code.
    from metamask_jax.data.augment import PRESETS
    from metamask_jax.mask import ACTIVATIONS
    from metamask_jax.meta import ESTIMATORS
    from metamask_jax.methods import METHODS
    from metamask_jax.models import ENCODERS, STEMS
    from metamask_jax.optim import OPTIMIZERS, SCHEDULES

    return {
        "data.augmentation": tuple(PRESETS),
        "encoder.name": tuple(ENCODERS),
        "encoder.stem": STEMS,
        "method.name": tuple(METHODS),
        "mask.activation": ACTIVATIONS,
        "mask.schedule": tuple(SCHEDULES),
        "meta.estimator": tuple(ESTIMATORS),
        "meta.trial": ("gradient", "optimizer"),
        "optimizer.name": tuple(OPTIMIZERS),
        "optimizer.schedule": tuple(SCHEDULES),
        "train.dtype": ("float32", "bfloat16"),
    }


def _require_type(key: str, value: Any) -> None:
    *parents, name = key.split(".")
    node = default_config()
    for parent in parents:
        node = node[parent]
    expected = node.get_type(name)
    found = type(value)
    fits = found is expected or (found is int and expected is float) or (value is None and node[name] is None)
    if found is tuple and fits:
        fits = all(type(item) is int for item in value)
    if not fits:
        raise ConfigError(f"config.{key}={value!r}; expected a value of type {expected.__name__}")


def to_json(config: ConfigDict) -> str:
    """The configuration as text that `from_json` reads back."""
    return json.dumps(config.to_dict(), indent=2, sort_keys=True)


def from_json(text: str) -> ConfigDict:
    """Reads what `to_json` wrote; keys this version does not know are refused by name."""
    config = default_config()
    for key, value in flatten(json.loads(text)).items():
        _set(config, key, tuple(value) if isinstance(value, list) else value)
    return config


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one dict with dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping | ConfigDict):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def differences(old: ConfigDict, new: ConfigDict) -> list[str]:
    """One line a key whose value differs, such as `train.seed: 0 -> 1`."""
    before, after = flatten(old), flatten(new)
    return [
        f"{key}: {before.get(key)!r} -> {after.get(key)!r}"
        for key in sorted(before | after)
        if before.get(key) != after.get(key)
    ]


def _set(config: ConfigDict, key: str, value: Any) -> None:
    """Sets a dotted key of a locked config. `validate` judges the value; only an unknown key is refused here."""
    if not key.startswith(_FREE):
        _require_known(key)
    *parents, name = key.split(".")
    node = config
    for parent in parents:
        node = node[parent]
    with node.unlocked(), node.ignore_type():
        node[name] = value


def _require_known(key: str) -> None:
    known = flatten(default_config())
    if key not in known:
        nearest = difflib.get_close_matches(key, known, n=1, cutoff=0.0)[0]
        raise ConfigError(f"config.{key} is unknown; the nearest key is config.{nearest}")
