"""Features of pictures from a frozen encoder."""

import collections
import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from ml_collections import ConfigDict

from metamask_jax.augment import Augmentation, ViewSpec, example_keys, make_augmentation
from metamask_jax.core.types import PyTree
from metamask_jax.data.loader import prefetch
from metamask_jax.data.sources import Source
from metamask_jax.data.streams import MapParts, StreamSource, map_steps
from metamask_jax.evaluate.views import eval_view, left_to_device, seen_on_host
from metamask_jax.training.distributed import AXIS, own_rows
from metamask_jax.training.registry import Registry
from metamask_jax.training.state import build_encoder

# Images that go through the encoder at once on a CPU, whose caches hold no more. A fixed number, because the order of a
# compiled program's additions, and so the last bit of a feature, depends on it. Accelerators take their whole share.
BLOCK = 32

_AHEAD = 2  # batches prepared, and batches computed, before the features of the first are asked for

Allocate = Callable[[tuple[int, int], type], np.ndarray]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Extractor:
    """Gives the encoder's features of images; `make_extractor` builds it.

    Attributes:
      dim: length of a representation.
      batch_size: images on their way at a time, over all devices.
      image_size: side of what the encoder sees.
      view: what is done to the images first.
      seed: of a view that is random.
      mesh: of the devices.
      run: the compiled function of parameters, statistics, a batch, the draw and the images' positions.
      run_cropped: the same for images that the host has resized and cropped.
    """

    dim: int
    batch_size: int
    image_size: int
    view: ViewSpec | Augmentation
    seed: int
    mesh: Mesh
    run: Callable[..., jax.Array]
    run_cropped: Callable[..., jax.Array]

    def __call__(
        self, params: PyTree, batch_stats: PyTree, images: np.ndarray, *, draw: int = 0, start: int = 0
    ) -> np.ndarray:
        """Features float32 [size, dim], not multiplied by the mask, of images uint8 [size, height, width, 3].

        Args:
          params: of a `TrainState`; what is under "encoder" is used.
          batch_stats: likewise.
          images: may be memory-mapped: only a batch is read at a time.
          draw: which random views, if the extractor's are random.
          start: position of the first image in its set; a random view is a function of seed, draw and position.
        """
        if images.ndim != 4 or images.shape[3] != 3 or images.dtype != np.uint8:
            raise ValueError(f"images {images.dtype} {images.shape}; expected uint8 (size, height, width, 3)")
        batches = (images[first : first + self.batch_size] for first in range(0, len(images), self.batch_size))
        out = np.empty((len(images), self.dim), np.float32)
        self.stream(params, batch_stats, batches, draw=draw, start=start, out=out)
        return out

    def stream(
        self,
        params: PyTree,
        batch_stats: PyTree,
        batches: Iterator[np.ndarray],
        *,
        draw: int,
        start: int,
        out: np.ndarray,
        cropped: bool = False,
    ) -> None:
        """Fills `out` [size, dim] with the features of batches of `batch_size` images, of which the last may be short.

        The host prepares the next batches while the devices compute. `cropped` says that it has resized and cropped the
        images. The other arguments are those of a call.
        """
        # By way of the host: what is spread over the devices of several processes cannot be copied directly.
        encoder = jax.device_put(
            jax.device_get((params["encoder"], batch_stats["encoder"])), NamedSharding(self.mesh, PartitionSpec())
        )
        run = self.run_cropped if cropped else self.run
        running: collections.deque[tuple[int, int, jax.Array]] = collections.deque()

        def finish() -> None:
            first, count, features = running.popleft()
            out[first : first + count] = np.asarray(features)[:count]

        first = 0
        with contextlib.closing(prefetch(batches, depth=_AHEAD, transfer=self._to_devices)) as ready:
            for count, images in ready:
                positions = np.arange(start + first, start + first + self.batch_size, dtype=np.int32)
                running.append((first, count, run(*encoder, images, np.int32(draw), positions)))
                first += count
                if len(running) > _AHEAD:
                    finish()
        while running:
            finish()

    def _to_devices(self, images: np.ndarray) -> tuple[int, jax.Array]:
        """The number of images, and the batch on its devices, padded to its full size."""
        padded = np.zeros((self.batch_size, *images.shape[1:]), np.uint8)
        padded[: len(images)] = images
        return len(images), jax.device_put(padded, NamedSharding(self.mesh, PartitionSpec(AXIS)))


def make_extractor(
    config: ConfigDict,
    *,
    view: ViewSpec | Augmentation | None = None,
    seed: int = 0,
    devices: Sequence[jax.Device] | None = None,
    registry: Registry | None = None,
) -> Extractor:
    """Builds the function `(params, batch_stats, images) -> h` that gives the encoder's features of images.

    The encoder is in inference mode: BatchNorm uses its running statistics and nothing changes. The images go through
    in batches of `config.eval.batch_size`, shared by the devices; the last is padded, so one program serves them all.

    Args:
      config: a validated configuration.
      view: what is done to the images first, a function of images and keys included; None for `eval_view`.
      seed: of a view that is random.
      devices: devices of this process; None for all of them.
      registry: what the configuration's names stand for; None is ours and `config.plugins`.
    """
    mesh = Mesh(np.array(jax.local_devices() if devices is None else devices), (AXIS,))
    share = -(-config.eval.batch_size // mesh.size)
    block = share
    if mesh.devices.flat[0].platform == "cpu":
        block = BLOCK
        share = BLOCK * max(2, -(-share // BLOCK))  # a loop of one would be compiled differently
    encoder = build_encoder(evaluated_in(config), axis_name=None, registry=registry)
    view = view or eval_view(config, registry)
    size = config.data.image_size

    def program(view: ViewSpec | Augmentation) -> Callable[..., jax.Array]:
        augment = make_augmentation((view,), image_size=size, views=1) if isinstance(view, ViewSpec) else view

        def apply(
            params: PyTree, batch_stats: PyTree, images: jax.Array, draw: jax.Array, positions: jax.Array
        ) -> jax.Array:
            def features(images_and_positions: tuple[jax.Array, jax.Array]) -> jax.Array:
                images, positions = images_and_positions
                seen = augment(images, example_keys(seed, draw, positions))[0]
                return jnp.asarray(encoder.apply({"params": params, "batch_stats": batch_stats}, seen, train=False))

            if block == share:
                return features((images, positions))
            blocks = jax.tree.map(lambda x: x.reshape(-1, block, *x.shape[1:]), (images, positions))
            return lax.map(features, blocks).reshape(share, -1)

        split, whole = PartitionSpec(AXIS), PartitionSpec()
        specs = (whole, whole, split, whole, split)
        return jax.jit(jax.shard_map(apply, mesh=mesh, in_specs=specs, out_specs=split, check_vma=False))

    return Extractor(
        dim=encoder.features,
        batch_size=share * mesh.size,
        image_size=size,
        view=view,
        seed=seed,
        mesh=mesh,
        run=program(view),
        run_cropped=program(left_to_device(view, image_size=size) if isinstance(view, ViewSpec) else view),
    )


def evaluated_in(config: ConfigDict) -> ConfigDict:
    """The configuration with the encoder computing as in evaluation: in `eval.dtype`, if there is one."""
    if config.eval.dtype is None:
        return config
    config = config.copy_and_resolve_references()
    config.train.dtype = config.eval.dtype
    return config


def extract_source(
    extract: Extractor,
    params: PyTree,
    batch_stats: PyTree,
    source: Source,
    *,
    rows: np.ndarray | None = None,
    draw: int = 0,
    allocate: Allocate = np.empty,
) -> tuple[np.ndarray, np.ndarray]:
    """Features float32 [size, dim] and labels int32 [size] of a source, or of some of its rows int [size].

    Several processes share the work: each gets the features and labels of its own part of the rows, `own_rows`. The
    other arguments are those of an `Extractor`.

    Args:
      extract: of `make_extractor`.
      params: of a `TrainState`.
      batch_stats: likewise.
      source: the pictures.
      rows: which of them; None for all.
      draw: which random views.
      allocate: makes the array for the features, such as one on disk.
    """
    rows = np.arange(len(source)) if rows is None else rows
    own = own_rows(len(rows))
    labels: list[np.ndarray] = [np.empty(0, np.int32)]

    view, size = extract.view, extract.image_size
    shown = seen_on_host(source, view, image_size=size, seed=extract.seed, draw=draw)

    def images() -> Iterator[np.ndarray]:
        for batch, batch_labels in _batches(shown, rows[own], extract.batch_size):
            labels.append(batch_labels)
            yield batch

    out = allocate((own.stop - own.start, extract.dim), np.float32)
    extract.stream(params, batch_stats, images(), draw=draw, start=own.start, out=out, cropped=shown is not source)
    return out, np.concatenate(labels)


def _batches(source: Source, rows: np.ndarray, batch_size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Images and labels of the rows, batch by batch; pictures that must be decoded are worked on in parallel."""
    make = partial(_batch, source=source, rows=rows, batch_size=batch_size)
    count = -(-len(rows) // batch_size)
    if isinstance(source, StreamSource) and count:
        return map_steps(make, start=0, stop=count, streaming=source.streaming)
    return map(make, range(count))


def _batch(
    index: int, *map_parts: MapParts, source: Source, rows: np.ndarray, batch_size: int
) -> tuple[np.ndarray, np.ndarray]:
    return source.gather(rows[index * batch_size : (index + 1) * batch_size], *map_parts)
