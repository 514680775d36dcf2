"""What a compiled step costs on a chip: collectives read from its program, and the least time its counts allow."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

_BYTES = {
    "pred": 1, "s8": 1, "u8": 1, "s16": 2, "u16": 2, "bf16": 2, "f16": 2,
    "s32": 4, "u32": 4, "f32": 4, "s64": 8, "u64": 8, "f64": 8,
}  # fmt: skip
_ARRAY = re.compile(r"\b(?P<dtype>[a-z]+\d*)\[(?P<sizes>[\d,]*)\]")
# An asynchronous collective is two instructions; the second, "-done", has the result of the first, which also carries
# its operands. So "-done" is read in its place.
_COLLECTIVE = re.compile(
    r"= (?P<results>\S.*?) (?P<kind>all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(-done)?\("
    # Or it is fused with the operations that it runs beside, and stands in each of these parts of its chain.
    r'.*?(chain_id="(?P<chain>\d+)"|$)'
)
# Passes of bfloat16 products that a TPU makes of one float32 product (jax.lax.Precision).
PASSES = {"default": 1, "high": 3, "highest": 6}


class Chip(NamedTuple):
    """What the maker says of a chip, per device of JAX.

    Attributes:
      flops: products and sums of bfloat16 matrices per second.
      bandwidth: of its memory, in bytes per second.
      links: what it can send to its neighbours, all links together, in bytes per second and direction.
      memory: bytes that a program may use.
    """

    flops: float
    bandwidth: float
    links: float
    memory: float


CHIPS: Mapping[str, Chip] = {
    # FLOP/s, bandwidth and links: cloud.google.com/tpu/docs, pages v4, v5e, v5p and v6e ("Interchip interconnect", in
    # Gbit/s or as the sum of both directions). Memory: what libtpu 0.0.42 itself calls available when a program is too
    # large for it.
    "v4": Chip(flops=275e12, bandwidth=1228e9, links=300e9, memory=30.75 * 2**30),
    "v5e": Chip(flops=197e12, bandwidth=819e9, links=200e9, memory=15.75 * 2**30),
    "v5p": Chip(flops=459e12, bandwidth=2765e9, links=600e9, memory=95.74 * 2**30),
    "v6e": Chip(flops=918e12, bandwidth=1638e9, links=400e9, memory=31.25 * 2**30),
    # NVIDIA's data sheet of the H100 SXM: dense bfloat16, and NVLink in one direction. Memory: the three quarters that
    # JAX takes of a GPU's unless told otherwise.
    "h100": Chip(flops=989e12, bandwidth=3350e9, links=450e9, memory=0.75 * 84929347584),
}
"""Chips by the name that a topology begins with."""
KINDS: Mapping[str, str] = {
    "TPU v4": "v4",
    "TPU v5 lite": "v5e",
    "TPU v5e": "v5e",
    "TPU v5": "v5p",
    "TPU v5p": "v5p",
    "TPU v6 lite": "v6e",
    "TPU v6e": "v6e",
    "NVIDIA H100 80GB HBM3": "h100",
}
"""Names of `CHIPS` by what JAX calls a device of theirs (`device_kind`)."""


class Traffic(NamedTuple):
    """Collectives of one kind and one number format in a program.

    Attributes:
      kind: such as `all-reduce`.
      dtype: such as `f32`.
      calls: how many operations have results of this format.
      size: bytes of these results.
    """

    kind: str
    dtype: str
    calls: int
    size: int


def collectives(program: str) -> list[Traffic]:
    """Collectives in the text of a compiled program.

    What stands in the body of a loop is counted once.

    Args:
      program: HLO, from `compiled.as_text()`.

    Returns:
      One entry for each kind and number format, the largest first.

    Example:
      >>> collectives("%sum = (f32[2,3]{1,0}, f32[]) all-reduce(%a, %b), channel_id=1")
      [Traffic(kind='all-reduce', dtype='f32', calls=1, size=28)]
    """
    found: dict[tuple[str, str], tuple[int, int]] = {}
    chains = set()
    for match in map(_COLLECTIVE.search, program.splitlines()):
        if match is None or match["chain"] in chains:
            continue
        chains |= {match["chain"]} - {None}
        for dtype, size in _sizes(match["results"]).items():
            calls, total = found.get((match["kind"], dtype), (0, 0))
            found[match["kind"], dtype] = calls + 1, total + size
    traffic = [Traffic(*key, *value) for key, value in found.items()]
    return sorted(traffic, key=lambda entry: (-entry.size, entry))


def _sizes(shapes: str) -> dict[str, int]:
    """Bytes of all arrays in a piece of HLO, by number format."""
    sizes: dict[str, int] = {}
    for array in _ARRAY.finditer(shapes):
        if array["dtype"] in _BYTES:
            numbers = math.prod(int(size) for size in array["sizes"].split(",") if size)
            sizes[array["dtype"]] = sizes.get(array["dtype"], 0) + numbers * _BYTES[array["dtype"]]
    return sizes


def sent(traffic: Sequence[Traffic], devices: int) -> float:
    """Bytes that each device sends in rings: twice what it reduces, once what it gathers or scatters.

    Example:
      >>> sent([Traffic("all-reduce", "f32", 1, 800)], devices=8)
      1400.0
    """
    share = (devices - 1) / devices
    # The result of a reduce-scatter is one device's share of what goes round.
    factors = {"all-reduce": 2 * share, "reduce-scatter": devices * share, "collective-permute": 1.0}
    return sum(entry.size * factors.get(entry.kind, share) for entry in traffic)


class Roofline(NamedTuple):
    """The least seconds that a step can take, by each of its three limits, were it alone.

    Attributes:
      compute: all FLOPs at the chip's peak.
      memory: all bytes at the bandwidth of its memory.
      links: all that is sent, over all of its links at once.
    """

    compute: float
    memory: float
    links: float

    @property
    def seconds(self) -> float:
        """If everything overlaps: the longest of the three."""
        return max(self)

    @property
    def bound(self) -> str:
        """Which of them that is."""
        return max(self._fields, key=lambda name: getattr(self, name))


def roofline(
    chip: Chip, *, flops: float, size: float, traffic: Sequence[Traffic], devices: int, passes: int = 1
) -> Roofline:
    """The limits of a step on a chip.

    Args:
      chip: one of `CHIPS`.
      flops: of the step on one device.
      size: bytes that it reads and writes there.
      traffic: its collectives.
      devices: how many take part.
      passes: over the matrix unit per product; see `PASSES`.

    Example:
      >>> limits = roofline(CHIPS["v5e"], flops=197e9, size=8.19e9, traffic=[], devices=8)
      >>> limits.compute, limits.seconds, limits.bound
      (0.001, 0.01, 'memory')
    """
    return Roofline(flops * passes / chip.flops, size / chip.bandwidth, sent(traffic, devices) / chip.links)


class Peak(NamedTuple):
    """What a step would take if a chip did nothing but multiply and add at its peak.

    Attributes:
      name: of the share of it that is reached: `mfu`, or `hfu` where what is computed twice counts twice.
      seconds: for a step.
    """

    name: str
    seconds: float


def peak(kind: str, *, flops: float, recomputes: bool = False) -> Peak | None:
    """The least time of a step on the device that runs it; None if the device or its FLOPs are not known.

    Args:
      kind: what JAX calls the device.
      flops: of the step on one device, by the compiler's count.
      recomputes: whether some of them are of what was computed before, and not kept.

    Example:
      >>> peak("TPU v5 lite", flops=197e9)
      Peak(name='mfu', seconds=0.001)
      >>> peak("cpu", flops=197e9)
    """
    if kind not in KINDS or not flops > 0:
        return None
    return Peak("hfu" if recomputes else "mfu", flops / CHIPS[KINDS[kind]].flops)
