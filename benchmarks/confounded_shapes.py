"""Is `confounded_shapes` a real test? Nearest neighbours on raw pixels must fail, a small supervised network succeed.

python benchmarks/confounded_shapes.py --data_dir=DIR
"""

import argparse
import time

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from tqdm import tqdm

from metamask_jax.data import ArraySource, batch_indices, open_source, steps_per_epoch
from metamask_jax.kernels import conv2d


class SmallNet(nn.Module):
    """Four convolutions and a linear layer, cheap enough for two cores."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns logits [batch, 10] of images [batch, height, width, 3]."""
        batch, height, width, _ = x.shape
        x = (
            x.reshape(batch, height // 2, 2, width // 2, 2, 3)
            .swapaxes(2, 3)
            .reshape(batch, height // 2, width // 2, 12)
        )
        for features, stride in ((32, 1), (64, 2), (96, 1), (128, 2)):
            kernel = self.param(f"kernel{features}", nn.initializers.he_normal(), (3, 3, x.shape[-1], features))
            x = conv2d(x, kernel, strides=(stride, stride), padding="SAME")
            x = nn.relu(nn.GroupNorm(num_groups=8)(x))
        return nn.Dense(10)(x.mean((1, 2)))


def knn_accuracy(train: ArraySource, test: ArraySource, neighbours: int) -> float:
    """Returns the accuracy of a majority vote among the nearest training pictures in pixel distance."""
    bank = train.images.reshape(len(train), -1).astype(np.float32)
    query = test.images.reshape(len(test), -1).astype(np.float32)
    distance = (bank**2).sum(1) - 2 * query @ bank.T
    nearest = np.argpartition(distance, neighbours, axis=1)[:, :neighbours]
    votes = np.eye(train.num_classes)[train.labels[nearest]].sum(1)
    return float((votes.argmax(1) == test.labels).mean())


def network_accuracy(train: ArraySource, test: ArraySource, *, epochs: int, batch_size: int) -> float:
    """Returns the test accuracy of a small network trained on the labels, turned by quarters and flipped."""
    model, per_epoch = SmallNet(), steps_per_epoch(len(train), batch_size)
    schedule = optax.cosine_onecycle_schedule(epochs * per_epoch, 3e-3)
    optimizer = optax.adamw(schedule, weight_decay=1e-2)

    def logits(params: optax.Params, images: jax.Array) -> jax.Array:
        return model.apply(params, images.astype(jnp.float32) / 127.5 - 1)

    @jax.jit
    def step(params: optax.Params, state: optax.OptState, images: jax.Array, labels: jax.Array) -> tuple:
        def loss(params: optax.Params) -> jax.Array:
            return optax.softmax_cross_entropy_with_integer_labels(logits(params, images), labels).mean()

        updates, state = optimizer.update(jax.grad(loss)(params), state, params)
        return optax.apply_updates(params, updates), state

    params = model.init(jax.random.key(0), jnp.zeros((1, *train.images.shape[1:])))
    state = optimizer.init(params)
    for i in tqdm(range(epochs * per_epoch), leave=False):
        images, labels = train.gather(batch_indices(0, i, batch_size, len(train)))
        images = np.rot90(images, i % 4, axes=(1, 2))
        images = images[:, :, ::-1] if i % 8 < 4 else images
        params, state = step(params, state, np.ascontiguousarray(images), labels)
    predicted = [jax.jit(logits)(params, chunk).argmax(-1) for chunk in np.array_split(test.images, 10)]
    return float((np.concatenate(predicted) == test.labels).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data_dir", required=True)
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--strength", type=float, default=1.0)
    args = parser.parse_args()
    start = time.perf_counter()
    train, test = (
        open_source("confounded_shapes", split=split, data_dir=args.data_dir, strength=args.strength)
        for split in ("train", "test")
    )
    assert isinstance(train, ArraySource)
    assert isinstance(test, ArraySource)
    print(f"opened {len(train)} + {len(test)} pictures in {time.perf_counter() - start:.1f} s")
    for neighbours in (1, 5, 20, 200):
        print(f"{neighbours}-nearest neighbours on raw pixels: {knn_accuracy(train, test, neighbours):.1%}")
    start = time.perf_counter()
    accuracy = network_accuracy(train, test, epochs=args.epochs, batch_size=100)
    print(f"small supervised network, {args.epochs} epochs: {accuracy:.1%} in {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
