"""Speed of every convolution kernel on the layers of the encoders, forward, both gradients and forward mode.

    python benchmarks/conv.py [--encoder resnet18|narrow|conv|short] [--batch 128] [--repeats 5] [--chosen]

All kernels of a layer are timed in turns in one run and the best time of each is kept; the one that `conv2d` chooses is
starred. With `--chosen` it alone is timed, and a table has one row per layer. The batch holds both views of 64
pictures, as a training step has them. GFLOP/s count a direct convolution, whatever the kernel multiplies, and do not
carry over to another machine.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import jax

from metamask_jax.kernels import cpu_kernels
from metamask_jax.kernels.geometry import Geometry
from metamask_jax.kernels.native import suits_winograd
from metamask_jax.kernels.process import keep_freed_memory

# Image size, input and output channels, window, stride.
LAYERS = {
    "resnet18": [
        (32, 3, 64, 3, 1),
        (32, 64, 64, 3, 1),
        (32, 64, 128, 3, 2),
        (32, 64, 128, 1, 2),
        (16, 128, 128, 3, 1),
        (16, 128, 256, 3, 2),
        (8, 256, 256, 3, 1),
        (8, 256, 512, 3, 2),
        (4, 512, 512, 3, 1),
    ],
    "conv": [(32, 3, 96, 3, 1), (15, 96, 256, 5, 1), (7, 256, 384, 3, 1), (7, 384, 384, 3, 1), (7, 384, 256, 3, 1)],
    # `conv` of width 1/8 at 24 pixels, as the short runs have it
    "short": [(24, 3, 12, 3, 1), (11, 12, 32, 5, 1), (5, 32, 48, 3, 1), (5, 48, 48, 3, 1), (5, 48, 32, 3, 1)],
}
LAYERS["narrow"] = [  # ResNet-18 of width 1/4
    (size, max(3, channels // 4), features // 4, *rest) for size, channels, features, *rest in LAYERS["resnet18"]
]
# Kernels, operands, and how many convolutions it is.
OPERATIONS: dict[str, tuple[dict[str, cpu_kernels.Kernel], tuple[str, ...], int]] = {
    "conv": (cpu_kernels.CONV, ("x", "w"), 1),
    "conv_dx": (cpu_kernels.CONV_DX, ("dy", "w"), 1),
    "conv_dw": (cpu_kernels.CONV_DW, ("x", "dy"), 1),
    "conv_tangent": (cpu_kernels.CONV_TANGENT, ("x", "w", "x", "w"), 2),
}


def best_times(functions: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Shortest run of each function in seconds, after one warm-up, all functions in turns."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeats + 1):
        for name, function in functions.items():
            start = time.perf_counter()
            jax.block_until_ready(function())
            times[name].append(time.perf_counter() - start)
    return {name: min(values[1:]) for name, values in times.items()}


def fits(kernel: str, geometry: Geometry) -> bool:
    """Whether a kernel can compute a layer."""
    if kernel == "winograd":
        return suits_winograd(geometry)
    return kernel != "pointwise" or geometry.is_pointwise


def rates(layer: tuple[int, ...], batch: int, repeats: int, *, chosen: bool) -> dict[str, dict[str, float]]:
    """GFLOP/s by operation and kernel, the one that is chosen first; that one alone if `chosen`."""
    size, channels, features, window, stride = layer
    pad = (window // 2, window // 2)
    geometry = Geometry.make(image=(size, size), window=(window,) * 2, strides=(stride,) * 2, padding=(pad, pad))
    shapes = {
        "x": (batch, size, size, channels),
        "w": (window, window, channels, features),
        "dy": (batch, *geometry.output, features),
    }
    arrays = {name: jax.random.normal(jax.random.key(0), shape) for name, shape in shapes.items()}
    gflop = 2e-9 * arrays["dy"].size * window**2 * channels
    found = {}
    for operation, (kernels, names, count) in OPERATIONS.items():
        operands = tuple(arrays[name] for name in names)
        first = cpu_kernels.choose(operation, geometry, (channels, features))
        timed = {}
        for name in (first, *(name for name in kernels if name != first and not chosen and fits(name, geometry))):
            run = jax.jit(lambda *operands, kernel=kernels[name]: kernel(*operands, geometry))
            timed[name] = lambda run=run, operands=operands: run(*operands)
        found[operation] = {name: count * gflop / s for name, s in best_times(timed, repeats).items()}
    return found


def name_of(layer: tuple[int, ...]) -> str:
    size, channels, features, window, stride = layer
    return f"{size}x{size}x{channels}->{features} {window}x{window}/{stride}"


def print_all(layer: tuple[int, ...], batch: int, repeats: int) -> None:
    """One line per operation with the rate of every kernel."""
    for operation, found in rates(layer, batch, repeats, chosen=False).items():
        first, *others = (f"{name} {rate:.0f}" for name, rate in found.items())
        print(f"{name_of(layer):<24}{operation:<13}" + "   ".join((first.replace(" ", "* "), *others)), flush=True)


def print_chosen(layers: list[tuple[int, ...]], batch: int, repeats: int) -> None:
    """One line per layer with the rate of the kernels that are chosen."""
    print(f"{'':<24}" + "".join(f"{operation:>16}" for operation in OPERATIONS))
    everything = []
    for layer in layers:
        found = [next(iter(by_name.items())) for by_name in rates(layer, batch, repeats, chosen=True).values()]
        everything += [rate for _, rate in found]
        print(f"{name_of(layer):<24}" + "".join(f"{f'{name} {rate:.0f}':>16}" for name, rate in found), flush=True)
    print(f"median {statistics.median(everything):.0f}, lowest {min(everything):.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", choices=tuple(LAYERS), default="resnet18")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--chosen", action="store_true", help="time only the kernels that are chosen")
    flags = parser.parse_args()
    keep_freed_memory()
    print(f"GFLOP/s, batch {flags.batch}, float32, {jax.devices()[0].platform}")
    if flags.chosen:
        print_chosen(LAYERS[flags.encoder], flags.batch, flags.repeats)
        return
    for layer in LAYERS[flags.encoder]:
        print_all(layer, flags.batch, flags.repeats)


if __name__ == "__main__":
    main()
