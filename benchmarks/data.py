"""How fast are two views of a batch, beside Pillow and NumPy on the same cores? And what share of a training step?

    python benchmarks/data.py [--json] [--step | --jpeg]

Both sides apply the same drawn parameters to the same pictures. Pillow gets its parameters for nothing and leaves its
results in its processes, one a core; drawing and the complete result are part of our time. Rounds alternate, and the
medians are compared. `--step` adds the share of a joint ResNet-18 step (both views, forward and backward) that fetching
a batch, sending it to the device and augmenting it cost.

`--jpeg` measures pictures of many sizes instead: random resized crops of JPEGs, as `data.options.views` has them, in
images per second of processor time, beside loops in Pillow and OpenCV that decode the same files and resize the same
boxes. The files hold noise whose spectrum falls with frequency as that of photographs does.
"""

import argparse
import io
import itertools
import json
import multiprocessing
import os
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

from metamask_jax.augment import PRESETS, Draws, ViewSpec

PRESET, VIEWS, ROUNDS = "simclr", 2, 15
STEP_BATCH, STEP_SIZE = 64, 32
JPEGS, JPEG_SIZE, JPEG_QUALITY, CROP = 64, (375, 500), 90, 224  # height and width are ImageNet's most frequent


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


def write_photographs(folder: pathlib.Path) -> int:
    """Writes the JPEGs; returns their mean size in bytes."""
    frequency = np.hypot(*np.meshgrid(*map(np.fft.fftfreq, JPEG_SIZE), indexing="ij"))
    frequency[0, 0] = 1
    for i in range(JPEGS):
        draw = np.random.default_rng(i)
        grey, colours = draw.normal(size=JPEG_SIZE), draw.normal(size=(3, *JPEG_SIZE))
        noise = np.fft.ifft2(np.fft.fft2(grey + 0.3 * colours) / frequency**1.1).real  # colours mostly go together
        noise = (noise - noise.mean((1, 2), keepdims=True)) / noise.std((1, 2), keepdims=True)
        pixels = np.clip(128 + 50 * noise, 0, 255).astype(np.uint8).transpose(1, 2, 0)
        Image.fromarray(pixels).save(folder / f"{i:03d}.jpg", quality=JPEG_QUALITY)
    return sum(path.stat().st_size for path in folder.iterdir()) // JPEGS


def pillow_crops(encoded: bytes, boxes: list[Any]) -> np.ndarray:
    picture = Image.open(io.BytesIO(encoded)).convert("RGB")
    return np.stack([np.asarray(picture.resize((CROP, CROP), Image.Resampling.BICUBIC, box=box)) for box in boxes])


def opencv_crops(encoded: bytes, boxes: list[Any], interpolation: str) -> np.ndarray:
    """Boxes rounded to whole pixels; only `INTER_AREA` is anti-aliased."""
    import cv2

    method, crops = getattr(cv2, interpolation), []
    picture = cv2.cvtColor(cv2.imdecode(np.frombuffer(encoded, np.uint8), cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)
    for box in boxes:
        left, upper, right, lower = (round(edge) for edge in box)
        crops.append(cv2.resize(picture[upper:lower, left:right], (CROP, CROP), interpolation=method))
    return np.stack(crops)


def compare_jpegs() -> dict[str, Any]:
    """Images per processor second of each way, and how far their pixels are from Pillow's."""
    import cv2

    from metamask_jax.data import batches, open_source, pictures

    cv2.setNumThreads(1)
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder, "pictures")
        root.mkdir()
        size = write_photographs(root)
        source = open_source(
            "image_folder", split="pretrain", data_dir=f"{folder}/data", path=str(root), image_size=CROP, views=VIEWS
        )

        def stream() -> list[Any]:
            return list(batches(source, seed=0, batch_size=JPEGS // 4, num_steps=4))

        work = []
        for step, batch in enumerate(stream()):
            for position, index in zip(batch.positions, batch.indices, strict=True):
                draws = pictures.uniform_draws(0, step, int(position), VIEWS)
                boxes = [pictures.random_box(JPEG_SIZE[::-1], u, area=(0.08, 1), aspect=(3 / 4, 4 / 3)) for u in draws]
                work.append((source.records.value(source.records.read_one(index), source.image_key), boxes))
        ways: dict[str, Callable[[], Any]] = {
            "whole stream": lambda: [batch.images for batch in stream()],
            "loop in Pillow, bicubic": lambda: [pillow_crops(*item) for item in work],
        }
        for name in ("INTER_CUBIC", "INTER_AREA"):
            ways[f"loop in OpenCV, {name}"] = lambda name=name: [opencv_crops(*item, name) for item in work]
        seen = {name: np.stack(way()).reshape(JPEGS, VIEWS, CROP, CROP, 3).astype(int) for name, way in ways.items()}
        used: dict[str, list[float]] = {name: [] for name in ways}
        for _, (name, way) in itertools.product(range(ROUNDS), ways.items()):
            start = time.process_time()
            way()
            used[name].append(time.process_time() - start)
    errors = {name: np.abs(found - seen["loop in Pillow, bicubic"]) for name, found in seen.items()}
    return {
        name: {
            "images_per_cpu_second": JPEGS / statistics.median(used[name]),
            "mean_error": float(errors[name].mean()),
            "max_error": int(errors[name].max()),
        }
        for name in ways
    } | {"bytes per file": {"mean": size}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--step", action="store_true", help="measure the share of a ResNet-18 step too")
    parser.add_argument("--jpeg", action="store_true", help="measure crops of JPEGs instead")
    args = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    results: dict[str, dict[str, float]] = compare_jpegs() if args.jpeg else {}
    for image_size, batch in () if args.jpeg else itertools.product((32, 96), (64, 256)):
        results[f"{image_size} pixels, batch {batch}"] = compare(cores, image_size, batch)
    if args.step:
        results["joint ResNet-18 step"] = share_of_step()
    if args.json:
        print(json.dumps({"preset": PRESET, "views": VIEWS, "cores": cores, "results": results}))
        return
    print(f"{VIEWS} views, {cores} cores, " + (f"{CROP} pixels" if args.jpeg else f"{PRESET}, images/s"))
    for name, result in results.items():
        print(f"{name:>28}  " + "  ".join(f"{key} {value:,.4g}" for key, value in result.items()))


if __name__ == "__main__":
    main()
