"""Compiles the training step of a configuration for TPUs or GPUs, without any: does it fit, and how fast can it be?

    metamask-compile-for v5e:2x4 --config cifar10_resnet18 [--config.train.batch_size=1024 ...]

The compiler is the chip's own and runs on any x86 machine: libtpu (pip install 'metamask_jax[tpu]') or, for H100s such
as h100:1x8, JAX's plugin for CUDA (pip install 'metamask_jax[cuda12]'). Nothing is allocated and no dataset is needed.
Exit codes: 0 the step fits; 1 it does not; 2 something about the input is wrong.
"""

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ml_collections import ConfigDict

from metamask_jax.cli.common import OVERRIDES, Parser, guarded, split_overrides, whole_number
from metamask_jax.config import apply_overrides, load_config
from metamask_jax.errors import ConfigError

if TYPE_CHECKING:
    from metamask_jax.training.compilation import Account, Topology

_MOST_ACCUMULATED = 16  # micro-batches that --suggest goes up to


def table(config: ConfigDict, pod: "Topology", account: "Account") -> str:
    """What the compiler says, in lines of two columns."""
    share = config.train.batch_size // len(pod.devices)
    verdict = "fits" if account.fits else "DOES NOT FIT"
    rows = [
        ("pod", f"{pod.name}, {len(pod.devices)} chips, {share} images each of {config.train.batch_size}"),
        ("memory per chip", f"{_binary(account.used)} of {_binary(pod.chip.memory)}: {verdict}"),
        ("  of it, state", _binary(account.state)),
        ("  of it, batch", _binary(account.batch)),
    ]
    if account.limits is not None:
        rows += _costs(config, pod, account, share)
    rows.append(("compiled in", f"{account.seconds:.0f} s"))
    return "\n".join(f"{name:24}{value}" for name, value in rows)


def _costs(config: ConfigDict, pod: "Topology", account: "Account", share: int) -> Iterator[tuple[str, str]]:
    limits, flops, size = account.limits, account.flops, account.bytes_accessed
    assert limits is not None
    if flops:
        yield "FLOPs", f"{_decimal(flops)} per chip and step, {_decimal(flops / share)} per image"
        yield "bytes accessed", f"{_decimal(size)}B per chip and step, {_decimal(size / share)}B per image"
    for entry in account.traffic:
        yield entry.kind, f"{entry.calls} of {entry.dtype}, {_decimal(entry.size)}B"
    yield "gathers and scatters", str(account.gathers)
    if not flops:
        yield "least time, links", f"{1e3 * limits.links:.2f} ms; this compiler counts neither FLOPs nor bytes"
        return
    for name, seconds in limits._asdict().items():
        yield f"least time, {name}", f"{1e3 * seconds:.2f} ms"
    best = config.train.batch_size / limits.seconds
    yield "at best", f"{best:,.0f} images/s, bound by {limits.bound}"


def _binary(size: float) -> str:
    return f"{size / 2**30:.2f} GiB" if size >= 0.1 * 2**30 else f"{size / 2**20:.2f} MiB"


def _decimal(number: float) -> str:
    for unit, factor in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= factor:
            return f"{number / factor:.3g} {unit}"
    return f"{number:.0f} "


def candidates(config: ConfigDict, devices: int) -> Iterator[dict[str, Any]]:
    """Settings that need less memory, each kind in the order of what it costs.

    Args:
      config: a validated configuration, of a step that does not fit.
      devices: how many chips share the batch.
    """
    if config.mask.learn and config.meta.estimator == "exact":
        yield {"meta.estimator": "exact_recomputed"}
    if not config.train.remat:
        yield {"train.remat": True}
    if config.meta.estimator == "lookahead" and config.mask.learn:
        return  # learns from whole steps only
    count = 2 * config.train.accumulate
    while count <= _MOST_ACCUMULATED and config.train.batch_size % (devices * count) == 0:
        yield {"train.accumulate": count}
        if not config.train.remat:
            yield {"train.accumulate": count, "train.remat": True}
        count *= 2


def doubled(name: str) -> str:
    """The topology with twice the chips: its shortest side doubled.

    Example:
      >>> doubled("v5e:2x4"), doubled("v4:2x2x4")
      ('v5e:4x4', 'v4:2x4x4')
    """
    chip, _, shape = name.partition(":")
    sides = [int(side) for side in shape.split("x")]
    shortest = len(sides) - 1 - sides[::-1].index(min(sides))
    sides[shortest] *= 2
    return f"{chip}:{'x'.join(map(str, sides))}"


def _parser() -> Parser:
    parser = Parser("Compiles a training step for TPUs or GPUs that are not there, and says what it needs.", OVERRIDES)
    parser.add_argument("topology", help="CHIP:SHAPE, such as v5e:2x4, v4:2x2x4 or v6e:16x16, or h100:HOSTSxGPUS")
    parser.add_config(default="quickstart")
    parser.add_argument(
        "--picture-size", type=whole_number(1), help="side of the dataset's pictures (that of the views)"
    )
    parser.add_argument(
        "--effort", type=_effort, default=0.0, help="of the compiler, from -1, quick, to 1 (%(default)s)"
    )
    parser.add_argument(
        "--suggest", action="store_true", help="if it does not fit, compile with less memory until it does"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    return parser


def _effort(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 2.0
    if not -1 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text}; expected a number from -1 to 1")
    return value


def _compile_for(arguments: Sequence[str]) -> int:
    others, overrides = split_overrides(arguments)
    flags = _parser().read(others)
    config = apply_overrides(load_config(flags.config), overrides)

    import jax

    # The chips of this machine, if it has any, are not needed and stay free for others.
    jax.config.update("jax_platforms", "cpu")
    from metamask_jax.training.compilation import compile_step, picture_shape, topology
    from metamask_jax.training.registry import validate

    config, pod = validate(config), topology(flags.topology)
    picture = picture_shape(config, flags.picture_size)
    account = compile_step(config, pod, picture, effort=flags.effort)
    if flags.json:
        print(json.dumps(_as_json(config, pod, account)))
    else:
        print(table(config, pod, account), flush=True)
    if account.fits:
        return 0
    if flags.suggest:
        _suggest(config, pod, picture, flags)
    else:
        print(
            "--suggest compiles with exact_recomputed, train.remat, train.accumulate and more chips until it fits",
            file=sys.stderr,
        )
    return 1


def _as_json(config: ConfigDict, pod: "Topology", account: "Account") -> dict[str, Any]:
    values = dataclasses.asdict(account)
    values["traffic"] = [entry._asdict() for entry in account.traffic]
    values["limits"] = account.limits and account.limits._asdict()
    return {
        "topology": pod.name,
        "chips": len(pod.devices),
        "batch_size": config.train.batch_size,
        "available": pod.chip.memory,
    } | values


def _suggest(config: ConfigDict, pod: "Topology", picture: Sequence[int], flags: argparse.Namespace) -> None:
    """Compiles with less memory per chip, in one way after the other, until one fits; then with twice the chips."""
    from metamask_jax.training.compilation import compile_step, topology
    from metamask_jax.training.registry import validate

    def attempt(pod: "Topology", changes: dict[str, Any]) -> bool:
        copy = config.copy_and_resolve_references()
        changed = validate(apply_overrides(copy, {key: str(value) for key, value in changes.items()}))
        account = compile_step(changed, pod, picture, effort=flags.effort)
        settings = " ".join(f"--config.{key}={value}" for key, value in changes.items())
        verdict = "fits" if account.fits else "does not fit"
        print(f"{pod.name:12}{settings:52}{_binary(account.used):>12}  {verdict}", file=sys.stderr, flush=True)
        return account.fits

    any(attempt(pod, changes) for changes in candidates(config, len(pod.devices)))
    try:
        larger = topology(doubled(pod.name))
        attempt(larger, {})
    except ConfigError as error:
        print(error, file=sys.stderr)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    return guarded(_compile_for, arguments)


if __name__ == "__main__":
    sys.exit(main())
