"""How fast are two views of a batch, beside Pillow and NumPy on the same cores? And what share of a training step?

    python benchmarks/data.py [--json] [--step]

Both sides apply the same drawn parameters to the same pictures. Pillow gets its parameters for nothing and leaves its
results in its processes, one a core; drawing and the complete result are part of our time. Rounds alternate, and the
medians are compared. `--step` adds the share of a joint ResNet-18 step (both views, forward and backward) that fetching
a batch, sending it to the device and augmenting it cost.
"""

import argparse
import itertools
import json
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable

import numpy as np
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

from metamask_jax.augment import PRESETS, Draws, ViewSpec

PRESET, VIEWS, ROUNDS = "simclr", 2, 15
STEP_BATCH, STEP_SIZE = 64, 32


def pillow_view(image: np.ndarray, draws: Draws, spec: ViewSpec, image_size: int) -> np.ndarray:
    """`render_view` in Pillow and NumPy."""
    top, left, height, width = map(int, draws.box)
    method = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}[spec.interpolation]
    picture = Image.fromarray(image).crop((left, top, left + width, top + height))
    picture = picture.resize((image_size, image_size), method)
    if draws.flip:
        picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    if tuple(draws.jitter) != (1, 1, 1, 0):
        for kind in draws.order:
            picture = pillow_adjust(picture, int(kind), float(draws.jitter[kind]))
    if draws.grey == 0:
        picture = ImageOps.grayscale(picture).convert("RGB")
    if draws.sigma >= spec.blur_sigma[0]:
        picture = picture.filter(ImageFilter.GaussianBlur(float(draws.sigma)))
    if draws.threshold <= 1:
        picture = ImageOps.solarize(picture, round(255 * float(draws.threshold)))
    pixels = np.asarray(picture, np.float32) / 255
    return (pixels - np.float32(spec.mean)) / np.float32(spec.std)


def pillow_adjust(picture: Image.Image, kind: int, factor: float) -> Image.Image:
    """Brightness, contrast, saturation or hue, in the order of `ops.BRIGHTNESS` and so on."""
    if kind < 3:
        return (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)[kind](picture).enhance(factor)
    hue, saturation, value = picture.convert("HSV").split()
    turned = Image.fromarray(np.asarray(hue) + np.uint8(round(factor * 256) % 256))
    return Image.merge("HSV", (turned, saturation, value)).convert("RGB")


Part = tuple[np.ndarray, list[list[Draws]], tuple[ViewSpec, ...], int]
_parts: list[Part] = []


def receive(parts: list[Part]) -> None:
    """Gives a process its work once, before the clock starts: sending it takes longer than some of the work."""
    _parts[:] = parts


def pillow_part(index: int) -> float:
    """All views of one part's images; returns a number, so that no time goes into sending pictures back."""
    images, views, specs, image_size = _parts[index]
    rendered = [
        pillow_view(image, draws, specs[v % len(specs)], image_size)
        for v, view in enumerate(views)
        for image, draws in zip(images, view, strict=True)
    ]
    return float(np.stack(rendered)[0, 0, 0, 0])


def seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def compare(cores: int, image_size: int, batch: int) -> dict[str, float]:
    """Images/s of both sides at one size."""
    import jax

    from metamask_jax.augment import example_keys, make_augmentation, sample_draws

    images = np.random.default_rng(0).integers(0, 256, (batch, image_size, image_size, 3), dtype=np.uint8)
    specs = PRESETS[PRESET](image_size)
    keys = example_keys(0, 0, np.arange(batch))

    def draw(view: int) -> list[Draws]:
        spec = specs[view % len(specs)]
        one = jax.vmap(lambda k: sample_draws(jax.random.fold_in(k, view), spec, height=image_size, width=image_size))
        drawn = jax.tree.map(np.asarray, one(keys))
        return [Draws(*fields) for fields in zip(*drawn, strict=True)]

    drawn = [draw(view) for view in range(VIEWS)]
    parts = [(images[i::cores], [view[i::cores] for view in drawn], specs, image_size) for i in range(cores)]
    augment = make_augmentation(PRESET, image_size=image_size, views=VIEWS)
    step = jax.jit(lambda images, step: augment(images, example_keys(0, step, np.arange(batch))))
    on_device = jax.device_put(images)
    rounds: dict[str, list[float]] = {"jax": [], "pillow": []}
    with multiprocessing.get_context("spawn").Pool(cores, receive, (parts,)) as pool:
        for i in range(ROUNDS + 1):
            rounds["jax"].append(seconds(lambda i=i: step(on_device, i).block_until_ready()))
            rounds["pillow"].append(seconds(lambda: pool.map(pillow_part, range(cores), chunksize=1)))
    rates = {
        name: batch / statistics.median(times[1:]) for name, times in rounds.items()
    }  # the first compiles and imports
    return {**rates, "ratio": rates["jax"] / rates["pillow"]}


def share_of_step() -> dict[str, float]:
    """Seconds of input with augmentation, and of a joint ResNet-18 step on its views."""
    import jax
    import jax.numpy as jnp

    from metamask_jax.augment import example_keys, make_augmentation
    from metamask_jax.core.losses import nt_xent
    from metamask_jax.data import batch_indices
    from metamask_jax.models import make_encoder

    images = np.random.default_rng(0).integers(0, 256, (50_000, STEP_SIZE, STEP_SIZE, 3), dtype=np.uint8)
    augment = make_augmentation(PRESET, image_size=STEP_SIZE, views=VIEWS)
    augment_step = jax.jit(lambda images, step: augment(images, example_keys(0, step, np.arange(STEP_BATCH))))
    encoder = make_encoder("resnet18", width=1, stem="cifar", image_size=STEP_SIZE, dtype="float32", axis_name=None)

    def views_of(step: int) -> jax.Array:
        batch = images[batch_indices(0, step, STEP_BATCH, len(images))]
        return augment_step(jax.device_put(batch), step).block_until_ready()

    def loss(params: dict, batch_stats: dict, views: jax.Array) -> jax.Array:
        def encode(view: jax.Array) -> jax.Array:
            variables = {"params": params, "batch_stats": batch_stats}
            return encoder.apply(variables, view, train=True, mutable=["batch_stats"])[0]

        return nt_xent(jnp.stack([encode(view) for view in views]), temperature=0.5)

    views = views_of(0)
    variables = encoder.init(jax.random.key(0), views[0], train=False)
    gradient = jax.jit(jax.grad(loss))

    def train() -> None:
        jax.block_until_ready(gradient(variables["params"], variables["batch_stats"], views))

    train()
    both = [(seconds(lambda i=i: views_of(i)), seconds(train)) for i in range(1, 6)]
    data, step = (statistics.median(times) for times in zip(*both, strict=True))
    return {"data_seconds": data, "step_seconds": step, "share": data / (data + step)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--step", action="store_true", help="measure the share of a ResNet-18 step too")
    args = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    results: dict[str, dict[str, float]] = {}
    for image_size, batch in itertools.product((32, 96), (64, 256)):
        results[f"{image_size} pixels, batch {batch}"] = compare(cores, image_size, batch)
    if args.step:
        results["joint ResNet-18 step"] = share_of_step()
    if args.json:
        print(json.dumps({"preset": PRESET, "views": VIEWS, "cores": cores, "results": results}))
        return
    print(f"{PRESET}, {VIEWS} views, {cores} cores, images/s")
    for name, result in results.items():
        print(f"{name:>22}  " + "  ".join(f"{key} {value:,.4g}" for key, value in result.items()))


if __name__ == "__main__":
    main()
