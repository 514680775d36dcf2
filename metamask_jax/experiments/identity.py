"""What the folder of a run is called: the same name for the same run, in every version of the package."""

import hashlib
import json
from typing import Any

from ml_collections import ConfigDict

from metamask_jax.config import default_config, flatten
from metamask_jax.training.registry import registry_of

_NOT_THE_RUN = ("data.dir", "data.prefetch", "train.kernels", "log.", "checkpoint.")  # do not change the result

# The keys of version 0.1.0, by section. A later key takes part in a name only where it differs from its default, so
# that a new version finds the runs of an old one. Nothing is to be added here.
_FIRST_KEYS = {
    "data": "augmentation crop_split image_size name size small_size small_views views",
    "encoder": "name stem width",
    "eval": "batch_size every_epochs k masked size temperature",
    "guard": "max_skipped min_effective_rank min_feature_std",
    "loss": "alpha centered chunk_size drr drr_head off_diagonal_weight unbiased",
    "mask": "activation learn learning_rate momentum schedule weight_decay",
    "meta": "estimator every head_learning_rate learning_rate trial",
    "method": (
        "bank_size bank_start concentration dropout dropout_shared epsilon freeze_epochs head head_norm iterations "
        "momentum name negatives num_classes positive_prior predictor prototypes queue_size temperature"
    ),
    "optimizer": (
        "decay_norm_and_bias learning_rate momentum name schedule trust_coefficient warmup_epochs weight_decay"
    ),
    "train": "accumulate batch_size dtype epochs remat seed steps",
}
_FIRST = frozenset(f"{section}.{key}" for section, keys in _FIRST_KEYS.items() for key in keys.split())


def folder_name(config: ConfigDict) -> str:
    """A readable name of a validated configuration's run, with a digest of all that its result depends on."""
    defaults = flatten(default_config())
    own = registry_of(config).methods[config.method.name].defaults
    defaults |= {f"method.{key}": value for key, value in own.items()}
    values = {
        key: value
        for key, value in flatten(config).items()
        if not key.startswith(_NOT_THE_RUN) and (key in _FIRST or key not in defaults or value != defaults[key])
    }
    return f"{config.data.name}-{config.encoder.name}-{config.method.name}-seed{config.train.seed}-{_digest(values)}"


def _digest(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=list).encode()).hexdigest()[:10]
