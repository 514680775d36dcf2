"""A mask fitted afterwards: the cheap rival of one that is learned together with the network."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from metamask_jax.core.losses import soft_nearest_neighbor
from metamask_jax.core.mask import apply_mask, init_mask, mask_weights

_Carried = tuple[jax.Array, optax.OptState]


def fit_mask(
    h: np.ndarray,
    labels: np.ndarray,
    *,
    temperature: float = 0.1,
    steps: int = 300,
    learning_rate: float = 0.05,
    batch_size: int = 512,
    seed: int = 0,
) -> np.ndarray:
    """Fits the weights of a mask to features that stay as they are, so that neighbours are of one class.

    The loss is `soft_nearest_neighbor`, that of `config.meta.outer='labels'`; Adam descends it on random batches.

    Args:
      h: features [size, dim] of labelled images.
      labels: int [size].
      temperature: of the loss.
      steps: of Adam.
      learning_rate: of Adam, on the logits.
      batch_size: images per step, at most all of them.
      seed: of the batches.

    Returns:
      Weights [dim], between 0 and 1.

    Example:
      >>> random = np.random.default_rng(0)
      >>> labels = np.arange(200) % 2
      >>> noise = 3.0 * random.normal(size=(200, 4))
      >>> h = np.concatenate([noise, 2.0 * labels[:, None] - 1.0], axis=1)  # only the last dimension tells the class
      >>> int(fit_mask(h, labels, steps=100).argmax())
      4
    """
    random = np.random.default_rng(seed)
    size = min(batch_size, len(h))
    rows = np.stack([random.choice(len(h), size=size, replace=False) for _ in range(steps)])
    features = jnp.asarray(h, jnp.float32)
    return np.asarray(mask_weights(_descend(features, jnp.asarray(labels), rows, temperature, learning_rate)))


@jax.jit
def _descend(h: jax.Array, labels: jax.Array, rows: jax.Array, temperature: float, learning_rate: float) -> jax.Array:
    """Logits [dim] after one step of Adam for each of the batches of rows [steps, batch]."""
    optimizer = optax.adam(learning_rate)

    def loss(logits: jax.Array, batch: jax.Array) -> jax.Array:
        masked = apply_mask(h[batch], mask_weights(logits))
        return soft_nearest_neighbor(masked, labels[batch], temperature=temperature)

    def step(carried: _Carried, batch: jax.Array) -> tuple[_Carried, None]:
        logits, state = carried
        updates, state = optimizer.update(jax.grad(loss)(logits, batch), state)
        return (optax.apply_updates(logits, updates), state), None

    logits = init_mask(h.shape[1])
    return jax.lax.scan(step, (logits, optimizer.init(logits)), rows)[0][0]
