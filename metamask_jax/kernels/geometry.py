"""The static numbers of a 2-D convolution."""

from collections.abc import Sequence
from typing import NamedTuple

from jax import lax


class Geometry(NamedTuple):
    """Everything spatial about a convolution; hashable, so it can be a primitive's parameter.

    Attributes:
      image: height and width of the input.
      window: height and width of the kernel.
      strides: vertical and horizontal step.
      padding: the zeros `(low, high)` before and after each spatial axis.
      precision: of the products, as `jax.default_matmul_precision` names it; None: the platform's own.
    """

    image: tuple[int, int]
    window: tuple[int, int]
    strides: tuple[int, int]
    padding: tuple[tuple[int, int], tuple[int, int]]
    precision: str | None = None

    @property
    def output(self) -> tuple[int, int]:
        """Height and width of the output."""
        sizes = zip(self.image, self.window, self.strides, self.padding, strict=True)
        height, width = ((size + sum(pad) - window) // stride + 1 for size, window, stride, pad in sizes)
        return height, width

    @property
    def is_pointwise(self) -> bool:
        """Whether the kernel is a single pixel, so that the convolution is one matrix product."""
        return self.window == (1, 1) and self.padding == ((0, 0), (0, 0))

    @property
    def mirrored(self) -> "Geometry":
        """For stride 1: the geometry of the input gradient, which is a convolution with the kernel turned round."""
        (top, bottom), (left, right) = self.padding
        height, width = (size - 1 for size in self.window)
        padding = ((height - top, height - bottom), (width - left, width - right))
        return self._replace(image=self.output, padding=padding)

    @classmethod
    def make(
        cls,
        *,
        image: Sequence[int],
        window: Sequence[int],
        strides: Sequence[int],
        padding: str | Sequence[Sequence[int]],
        precision: str | None = None,
    ) -> "Geometry":
        """Resolves a named padding and checks that all numbers fit each other.

        Raises:
          ValueError: if they do not.
        """
        if len(strides) != 2 or min(strides) < 1:
            raise ValueError(f"strides={strides!r}; expected two positive integers")
        if isinstance(padding, str):
            if padding not in ("SAME", "VALID"):
                raise ValueError(f"padding={padding!r}; expected 'SAME', 'VALID' or two (low, high) pairs")
            padding = lax.padtype_to_pads(image, window, strides, padding)
        if len(padding) != 2 or not all(isinstance(p, Sequence) and len(p) == 2 and min(p) >= 0 for p in padding):
            raise ValueError(f"padding={padding!r}; expected 'SAME', 'VALID' or two (low, high) pairs, none negative")
        (top, bottom), (left, right) = padding
        geometry = cls(
            image=(image[0], image[1]),
            window=(window[0], window[1]),
            strides=(strides[0], strides[1]),
            padding=((top, bottom), (left, right)),
            precision=precision,
        )
        if min(geometry.output) < 1:
            raise ValueError(f"window={geometry.window} is larger than the padded image {geometry.image}")
        return geometry
