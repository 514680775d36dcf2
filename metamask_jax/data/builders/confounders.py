"""Known confounders over given pictures: a veil of coloured texture and uneven light, drawn independently of the class.

Two augmented views of one picture share the texture's kind, angle and grain, its colours and the light, which is what
tempts instance discrimination. The pixels are the same on every machine (see `textures`).
"""

from collections.abc import Iterator

import numpy as np

from metamask_jax.data.builders.textures import TEXTURES, angle, colour, cosine, draw, grid, texture, to_bytes

CONTINUOUS = (
    *("texture_angle", "texture_period", "texture_phase", "texture_contrast"),
    *("hue_ground", "hue_texture", "saturation", "opacity", "light_angle", "light_strength"),
)

_KEY = 20222


def confound(
    pictures: Iterator[np.ndarray], count: int, *, strength: float, stream: int
) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
    """Yields chunks of pictures behind a veil, with the factors that it was made from.

    The veil of picture `i` depends on `stream` and `i` alone.

    Args:
      pictures: uint8 [size, size, 3] each, all of one size.
      count: how many of them.
      strength: strength of the confounders from 0 (the pictures as they are) to 1.
      stream: which sequence of random numbers, such as one for training and one for testing.

    Yields:
      Images uint8 [chunk, size, size, 3], and by name the factors [chunk].
    """
    for index, uniform, clouds in draw(count, stream=stream, key=_KEY):
        factors = _factors(uniform, strength)
        yield _veil(np.stack([next(pictures) for _ in index]), factors, clouds), factors


def _factors(u: np.ndarray, strength: float) -> dict[str, np.ndarray]:
    """Turns uniform numbers [chunk, 24] into factors; lengths are in half image widths, angles in turns."""
    return {
        "texture": np.floor(u[:, 0] * len(TEXTURES)).astype(np.int64),
        "texture_angle": angle(u[:, 1]),
        "texture_period": 0.4 + 0.5 * u[:, 2],
        "texture_phase": u[:, 3],
        "texture_contrast": 0.15 + 0.2 * u[:, 4],
        "hue_ground": u[:, 5],
        "hue_texture": u[:, 6],
        "saturation": 0.35 + 0.35 * u[:, 7],
        "opacity": strength * (0.35 + 0.25 * u[:, 8]),
        "light_angle": angle(u[:, 9]),
        "light_strength": strength * (0.1 + 0.35 * u[:, 10]),
    }


def _veil(images: np.ndarray, factors: dict[str, np.ndarray], clouds: np.ndarray) -> np.ndarray:
    """Puts the veils of factors [chunk] over images uint8 [chunk, size, size, 3]."""
    f = {name: value[:, None, None] for name, value in factors.items()}
    x, y = grid(images.shape[1])
    weight = texture(f, clouds, x, y)
    low, high = (
        colour(f[hue], f["saturation"], 0.5 + sign * f["texture_contrast"])
        for hue, sign in (("hue_ground", -1), ("hue_texture", 1))
    )
    gain = 1 + f["light_strength"] * (x * cosine(f["light_angle"]) + y * cosine(f["light_angle"] - 0.25))
    return to_bytes(
        [
            (images[..., c] / 255 * (1 - f["opacity"]) + (low[c] + (high[c] - low[c]) * weight) * f["opacity"]) * gain
            for c in range(3)
        ]
    )
