"""Pictures of ten shapes among known confounders, rendered by NumPy.

The class of a picture is its shape. Texture, colours, light, place, size and angle are drawn independently of it.
Two augmented views of one picture share most of them, which is what tempts instance discrimination. The pixels are the
same on every machine (see `textures`).
"""

from collections.abc import Iterator

import numpy as np

from metamask_jax.data.builders.textures import (
    TEXTURES,
    angle,
    by_kind,
    colour,
    cosine,
    draw,
    grid,
    texture,
    to_bytes,
    turned,
)

SHAPES = ("disc", "ring", "square", "triangle", "star", "plus", "crescent", "heart", "ell", "hourglass")
CONTINUOUS = (
    *("x", "y", "scale", "rotation"),
    *("texture_angle", "texture_period", "texture_phase", "texture_contrast"),
    *("hue_shape", "hue_ground", "hue_texture", "saturation", "luminance_shape", "luminance_ground"),
    *("light_angle", "light_strength"),
)

_KEY = 20221
_HALF_SQRT_2, _HALF_SQRT_3 = 0.7071067811865476, 0.8660254037844386
# Outward normals of a regular pentagon that stands on its side.
_PENTAGON = (
    (0.0, -1.0),
    *((s * c, d) for s in (-1, 1) for c, d in ((0.9510565163, -0.3090169944), (0.5877852523, 0.8090169944))),
)


def render(
    count: int, *, image_size: int, strength: float, stream: int
) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
    """Yields chunks of pictures with the factors they were made from.

    Picture `i` depends on `stream` and `i` alone: a larger set begins with the smaller one.

    Args:
      count: number of pictures.
      image_size: height and width in pixels.
      strength: strength of the confounders from 0 (grey shapes on plain grey, evenly lit) to 1.
      stream: which sequence of random numbers, such as one for training and one for testing.

    Yields:
      Images uint8 [chunk, image_size, image_size, 3], and by name the factors [chunk], `label` among them.
    """
    for index, uniform, clouds in draw(count, stream=stream, key=_KEY):
        factors = _factors(uniform, index, strength)
        yield _paint(factors, clouds, image_size), factors


def _factors(u: np.ndarray, index: np.ndarray, strength: float) -> dict[str, np.ndarray]:
    """Turns uniform numbers [chunk, _DRAWS] into factors; lengths are in half image widths, angles in turns."""
    scale = 0.54 + 0.25 * u[:, 0]
    room = 1.0 - scale
    bright = np.where(u[:, 1] < 0.5, 1.0, -1.0)  # a bright shape on dark ground, or the reverse
    ground = 0.5 - bright * (0.14 + 0.08 * u[:, 2])
    return {
        "label": index % len(SHAPES),
        "x": room * (2 * u[:, 3] - 1),
        "y": room * (2 * u[:, 4] - 1),
        "scale": scale,
        "rotation": angle(u[:, 5]),
        "texture": np.floor(u[:, 6] * len(TEXTURES)).astype(np.int64),
        "texture_angle": angle(u[:, 7]),
        "texture_period": 0.4 + 0.5 * u[:, 8],
        "texture_phase": u[:, 9],
        "texture_contrast": strength * (0.06 + 0.1 * u[:, 10]),
        "hue_shape": u[:, 11],
        "hue_ground": u[:, 12],
        "hue_texture": u[:, 13],
        "saturation": strength * (0.35 + 0.35 * u[:, 14]),
        "luminance_shape": ground + bright * (0.38 + 0.1 * u[:, 15]),
        "luminance_ground": ground,
        "light_angle": angle(u[:, 16]),
        "light_strength": strength * (0.1 + 0.35 * u[:, 17]),
    }


def _paint(factors: dict[str, np.ndarray], clouds: np.ndarray, image_size: int) -> np.ndarray:
    """Paints pictures, uint8 [chunk, image_size, image_size, 3], from factors [chunk]."""
    f = {name: value[:, None, None] for name, value in factors.items()}
    x, y = grid(image_size)
    light_x, light_y = cosine(f["light_angle"]), cosine(f["light_angle"] - 0.25)

    weight = texture(f, clouds, x, y)
    low = colour(f["hue_ground"], f["saturation"], f["luminance_ground"] - f["texture_contrast"])
    high = colour(f["hue_texture"], f["saturation"], f["luminance_ground"] + f["texture_contrast"])
    shape = colour(f["hue_shape"], f["saturation"], f["luminance_shape"])

    pixels = f["scale"] * (image_size / 2)  # one shape unit in pixels
    shade_shift = 0.14
    distance = _shape_distance(f, x, y) * pixels
    shade_distance = _shape_distance(f, x + shade_shift * light_x, y + shade_shift * light_y) * pixels
    cover = np.clip(0.5 - distance, 0, 1)  # a one pixel wide edge is anti-aliased
    shade = f["light_strength"] * np.clip(0.5 - shade_distance * (8 / image_size), 0, 1)
    gain = 1 + f["light_strength"] * (x * light_x + y * light_y)

    channels = [
        (lo + (hi - lo) * weight) * (1 - shade) * (1 - cover) + fg * cover
        for lo, hi, fg in zip(low, high, shape, strict=True)
    ]
    return to_bytes([channel * gain for channel in channels])


# ---- shapes: signed distance to the outline, negative inside, at (x, y) in shape units


def _shape_distance(f: dict[str, np.ndarray], x: np.ndarray, y: np.ndarray) -> np.ndarray:
    x, y = turned((x - f["x"]) / f["scale"], (y - f["y"]) / f["scale"], f["rotation"])
    functions = [_disc, _ring, _square, _triangle, _star, _plus, _crescent, _heart, _ell, _hourglass]
    return by_kind(f["label"][:, 0, 0], functions, x, y)


def _circle(x: np.ndarray, y: np.ndarray, radius: float) -> np.ndarray:
    return np.sqrt(x * x + y * y) - radius


def _box(x: np.ndarray, y: np.ndarray, half_width: float, half_height: float) -> np.ndarray:
    return np.maximum(np.abs(x) - half_width, np.abs(y) - half_height)


def _disc(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return _circle(x, y, 0.82)


def _ring(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.abs(_circle(x, y, 0.7)) - 0.22


def _square(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return _box(x, y, 0.72, 0.72)


def _triangle(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.maximum(-y, _HALF_SQRT_3 * np.abs(x) + 0.5 * y) - 0.52


def _star(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    # A pentagram is where at most one of the five half-planes of a pentagon is left.
    sides = [x * cos + y * sin for cos, sin in _PENTAGON]
    return np.sort(np.stack(sides), axis=0)[-2] - 0.36


def _plus(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.minimum(_box(x, y, 0.95, 0.27), _box(x, y, 0.27, 0.95))


def _crescent(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.maximum(_circle(x + 0.15, y, 0.95), -_circle(x - 0.35, y, 0.78))


def _heart(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    x, y, half = np.abs(x), y + 0.1, 0.52
    lobe = _circle(x - half * _HALF_SQRT_2, y - half * _HALF_SQRT_2, half)
    return np.minimum(lobe, (x + np.abs(y)) * _HALF_SQRT_2 - half)


def _ell(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.minimum(_box(x + 0.42, y, 0.26, 0.9), _box(x, y + 0.64, 0.68, 0.26))


def _hourglass(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.maximum(np.abs(x) - 0.85, 0.8 * (np.abs(y) - 0.1 - 0.75 * np.abs(x)))
