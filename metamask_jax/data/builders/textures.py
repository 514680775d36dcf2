"""Textures, colours and the random numbers they are made from: what the sets of known confounders share.

The pixels are the same on every machine: after the raw random bits come only operations that IEEE 754 rounds exactly
(+ - * / sqrt, comparisons), one elementwise ufunc at a time, and a table of rounded cosines.
"""

from collections.abc import Callable, Iterator

import numpy as np

TEXTURES = ("ramp", "stripes", "checks", "dots", "ripples", "clouds")

_CHUNK = 250  # pictures made at once: the temporaries stay within a few megabytes
_ANGLES = 4096  # angles are whole multiples of a turn / 4096
_LATTICE = 6  # the clouds' random values lie on a 6 x 6 lattice
_FACTORS = 24  # random numbers for factors; leaves room for new ones
# Rounded to 24 bits, so that the last bit of a platform's cosine cannot reach a pixel.
_COSINES = np.round(np.cos(np.arange(_ANGLES) * (2 * np.pi / _ANGLES)) * 2**24) / 2**24


def draw(count: int, *, stream: int, key: int) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yields random numbers for chunks of pictures; those of picture `i` depend on `stream`, `key` and `i` alone.

    Args:
      count: number of pictures.
      stream: which sequence of random numbers, such as one for training and one for testing.
      key: of the set, so that two sets differ.

    Yields:
      Indices [chunk] of the pictures, uniform numbers [chunk, 24] for factors, and those of the clouds' lattice.
    """
    bits = np.random.Philox(np.random.SeedSequence((stream, key)))
    draws = _FACTORS + _LATTICE * _LATTICE
    for start in range(0, count, _CHUNK):
        chunk = min(_CHUNK, count - start)
        uniform = (bits.random_raw(chunk * draws).reshape(chunk, draws) >> np.uint64(11)) * 2.0**-53
        yield np.arange(start, start + chunk), uniform[:, :_FACTORS], uniform[:, _FACTORS:]


def angle(uniform: np.ndarray) -> np.ndarray:
    """Angles in turns, of which `cosine` knows the cosine, from uniform numbers."""
    return np.floor(uniform * _ANGLES) / _ANGLES


def grid(image_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Coordinates x [1, 1, width] and y [1, height, 1] of the pixels' centres, from -1 to 1, y upwards."""
    centres = (2 * np.arange(image_size) + 1) / image_size - 1
    return centres[None, None, :], -centres[None, :, None]


def to_bytes(channels: list[np.ndarray]) -> np.ndarray:
    """Pictures uint8 [chunk, height, width, 3] from channels [chunk, height, width] in [0, 1]."""
    return np.floor(np.clip(np.stack(channels, -1), 0, 1) * 255 + 0.5).astype(np.uint8)


def cosine(turns: np.ndarray) -> np.ndarray:
    """Returns the cosine of angles given in turns, whole multiples of 1 / _ANGLES."""
    return _COSINES[np.round(turns * _ANGLES).astype(np.int64) % _ANGLES]


def colour(hue: np.ndarray, saturation: np.ndarray, luminance: np.ndarray) -> list[np.ndarray]:
    """Returns red, green and blue of a hue in [0, 1) at a luminance, which the hue does not change."""
    pure = [np.clip(np.abs(6 * hue - 3) - 1, 0, 1), *(np.clip(2 - np.abs(6 * hue - k), 0, 1) for k in (2, 4))]
    grey = 0.3 * pure[0] + 0.59 * pure[1] + 0.11 * pure[2]
    return [np.clip(luminance + saturation * (channel - grey), 0, 1) for channel in pure]


def turned(x: np.ndarray, y: np.ndarray, turns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the coordinates in axes turned counter-clockwise."""
    cos, sin = cosine(turns), cosine(turns - 0.25)
    return x * cos + y * sin, y * cos - x * sin


def by_kind(kind: np.ndarray, functions: list[Callable[..., np.ndarray]], *arguments: np.ndarray) -> np.ndarray:
    """Applies to each picture the function of its kind; the result has the shape of the first argument."""
    result = np.empty_like(arguments[0])
    for k, function in enumerate(functions):
        chosen = kind == k
        result[chosen] = function(*(argument[chosen] for argument in arguments))
    return result


# ---- textures: the weight of the second colour, in [0, 1], at (u, v) in periods


def texture(f: dict[str, np.ndarray], clouds: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Weight [chunk, height, width] of a texture's second colour, from factors [chunk, 1, 1] and random clouds."""
    u, v = turned(x, y, f["texture_angle"])
    phase = f["texture_phase"]
    functions = [_ramp, _stripes, _checks, _dots, _ripples, _clouds]
    kind = f["texture"][:, 0, 0]
    return by_kind(kind, functions, u / f["texture_period"] + phase, v / f["texture_period"] + phase, clouds)


def _triangle_wave(u: np.ndarray) -> np.ndarray:
    return np.abs(2 * (u - np.floor(u)) - 1)


def _smooth(t: np.ndarray) -> np.ndarray:
    return t * t * (3 - 2 * t)


def _ramp(u: np.ndarray, v: np.ndarray, lattice: np.ndarray) -> np.ndarray:
    return _smooth(_triangle_wave(u * 0.25))


def _stripes(u: np.ndarray, v: np.ndarray, lattice: np.ndarray) -> np.ndarray:
    return np.clip(3 * _triangle_wave(u) - 1, 0, 1)


def _checks(u: np.ndarray, v: np.ndarray, lattice: np.ndarray) -> np.ndarray:
    product = (2 * _triangle_wave(u * 0.75) - 1) * (2 * _triangle_wave(v * 0.75) - 1)
    return np.clip(0.5 + 4 * product, 0, 1)


def _dots(u: np.ndarray, v: np.ndarray, lattice: np.ndarray) -> np.ndarray:
    a, b = _triangle_wave(u), _triangle_wave(v)
    return np.clip(2.5 - 4 * np.sqrt(a * a + b * b), 0, 1)


def _ripples(u: np.ndarray, v: np.ndarray, lattice: np.ndarray) -> np.ndarray:
    return _smooth(_triangle_wave(np.sqrt(u * u + v * v)))


def _clouds(u: np.ndarray, v: np.ndarray, lattice: np.ndarray) -> np.ndarray:
    i, j = np.floor(u).astype(np.int64), np.floor(v).astype(np.int64)
    s, t = _smooth(u - i), _smooth(v - j)
    picture = np.arange(len(u))[:, None, None]

    def corner(di: int, dj: int) -> np.ndarray:
        return lattice[picture, (i + di) % _LATTICE * _LATTICE + (j + dj) % _LATTICE]

    near = corner(0, 0) + (corner(1, 0) - corner(0, 0)) * s
    far = corner(0, 1) + (corner(1, 1) - corner(0, 1)) * s
    return near + (far - near) * t
