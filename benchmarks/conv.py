"""Speed of `ops.conv2d` and its two gradients beside XLA's own convolution, on the layers of a ResNet-18.

    python benchmarks/conv.py [--batch 64] [--repeats 5]

Both are timed in turns in one run and the best time of each is kept, so that the ratio means something on a busy
machine; GFLOP/s themselves do not carry over to another one.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial

import jax

from metamask_jax.ops import conv2d, lax_kernels
from metamask_jax.ops.geometry import Geometry

# Image size, input and output channels, window, stride.
LAYERS = [
    (32, 3, 64, 3, 1),
    (32, 64, 64, 3, 1),
    (32, 64, 128, 3, 2),
    (32, 64, 128, 1, 2),
    (16, 128, 128, 3, 1),
    (16, 128, 256, 3, 2),
    (16, 128, 256, 1, 2),
    (8, 256, 256, 3, 1),
    (8, 256, 512, 3, 2),
    (8, 256, 512, 1, 2),
    (4, 512, 512, 3, 1),
]
OPERATIONS = ("forward", "dx", "dw")


def best_times(functions: dict[str, Callable[[], jax.Array]], repeats: int) -> dict[str, float]:
    """Shortest run of each function in seconds, after one warm-up, all functions in turns."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeats + 1):
        for name, function in functions.items():
            start = time.perf_counter()
            jax.block_until_ready(function())
            times[name].append(time.perf_counter() - start)
    return {name: min(values[1:]) for name, values in times.items()}


def operations(conv: Callable, x: jax.Array, w: jax.Array, dy: jax.Array) -> dict[str, Callable[[], jax.Array]]:
    """The convolution and its two transposes, compiled."""
    compiled = {
        "forward": jax.jit(lambda x, w, dy: conv(x, w)),
        "dx": jax.jit(lambda x, w, dy: jax.vjp(lambda x: conv(x, w), x)[1](dy)[0]),
        "dw": jax.jit(lambda x, w, dy: jax.vjp(lambda w: conv(x, w), w)[1](dy)[0]),
    }
    return {name: partial(function, x, w, dy) for name, function in compiled.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    flags = parser.parse_args()

    print(f"GFLOP/s lax / ours (ratio), batch {flags.batch}, float32, {jax.devices()[0].platform}")
    print(f"{'layer':<22}" + "".join(f"{name:>22}" for name in OPERATIONS))
    for size, channels, features, window, stride in LAYERS:
        pad = (window // 2, window // 2)
        geometry = Geometry.make(
            image=(size, size), window=(window, window), strides=(stride, stride), padding=(pad, pad)
        )
        keys = jax.random.split(jax.random.key(0), 3)
        x = jax.random.normal(keys[0], (flags.batch, size, size, channels))
        w = jax.random.normal(keys[1], (window, window, channels, features))
        dy = jax.random.normal(keys[2], (flags.batch, *geometry.output, features))
        gflop = 2e-9 * dy.size * window**2 * channels
        lax = operations(partial(lax_kernels.conv, geometry=geometry), x, w, dy)
        ours = operations(partial(conv2d, strides=(stride, stride), padding=(pad, pad)), x, w, dy)
        row = f"{f'{size}x{size}x{channels}->{features} {window}x{window}/{stride}':<22}"
        for name in OPERATIONS:
            seconds = best_times({"lax": lax[name], "ours": ours[name]}, flags.repeats)
            rates = [gflop / seconds[key] for key in ("lax", "ours")]
            row += f"{f'{rates[0]:.0f} / {rates[1]:.0f} ({rates[1] / rates[0]:.2f}x)':>22}"
        print(row, flush=True)


if __name__ == "__main__":
    main()
