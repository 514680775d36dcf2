"""Names of types that are used everywhere."""

from typing import Any

import jax

PyTree = Any  # nested containers of arrays
Metrics = dict[str, jax.Array]  # scalars by name
