"""A training step compiled for chips that are not there: what it needs, from the chips' own compiler.

libtpu compiles for any topology on any x86 machine, and JAX's plugin for CUDA for H100s. State and batch are shapes, so
nothing is allocated and no dataset is opened.
"""

import dataclasses
import importlib.util
import os
import re
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from metamask_jax.core.state import Judged, Pair
from metamask_jax.data.loader import Batch
from metamask_jax.errors import ConfigError
from metamask_jax.training import distributed
from metamask_jax.training.roofline import CHIPS, PASSES, Chip, Roofline, Traffic, collectives, roofline
from metamask_jax.training.settings import make_program, settings_of
from metamask_jax.training.state import has_judge, init_state, looks_ahead

_TOPOLOGY = re.compile(r"(?P<chip>v\w+):(?P<shape>\d+(x\d+){1,2})|(?P<gpu>h100):(?P<hosts>\d+)x(?P<gpus>\d+)")
# libtpu asks a metadata server what machine it is on, and complains at length where there is none.
_ALONE = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "TPU_MIN_LOG_LEVEL": "3",
    "TPU_STDERR_LOG_LEVEL": "3",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # several programs may compile at a time; none of them touches a chip
}
# What XLA would otherwise ask the driver of an H100 SXM.
_H100 = """
gpu_device_info {
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_block_optin: 232448
  shared_memory_per_core: 233472
  threads_per_core_limit: 2048
  core_count: 132
  fpus_per_core: 128
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000
  l2_cache_size: 52428800
  clock_rate_ghz: 1.98
  device_memory_size: 84929347584
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  cuda_compute_capability { major: 9 }
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 8 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""
_TOO_LARGE = re.compile(r"(?P<used>[\d.]+)(?P<unit>[KMGTP])\)? (?:exceeds available HBM|of [\d.]+\w? hbm)")
_UNITS = {unit: 2.0 ** (10 * (i + 1)) for i, unit in enumerate("KMGTP")}
_EPOCH = 100  # steps; schedules are arithmetic on the step, and cost the same for any length


@dataclasses.dataclass(frozen=True)
class Topology:
    """Chips that are not there.

    Attributes:
      name: such as `v5e:4x4`.
      chip: what its chips can do.
      devices: one per chip, for the compiler alone.
    """

    name: str
    chip: Chip
    devices: Sequence[jax.Device]


@dataclasses.dataclass(frozen=True)
class Account:
    """What the compiler says of one step on one chip.

    Attributes:
      used: bytes of memory, all told.
      fits: whether that is no more than the chip has.
      state: bytes of the training state.
      batch: bytes of the images of a batch, and what belongs to them.
      seconds: how long the compiler took.
      flops: 0 where the compiler does not say (CUDA's, and for a step that does not fit), and so is the following.
      bytes_accessed: by all operations, those on the chip's own fast memory included.
      traffic: its collectives.
      custom_calls: names of what is not XLA's own, each once.
      gathers: how many gathers and scatters the program has.
      limits: the least time for it.
    """

    used: float
    fits: bool
    state: int
    batch: int
    seconds: float
    flops: float = 0.0
    bytes_accessed: float = 0.0
    traffic: Sequence[Traffic] = ()
    custom_calls: Sequence[str] = ()
    gathers: int = 0
    limits: Roofline | None = None


def topology(name: str) -> Topology:
    """Describes a pod to the compiler.

    Args:
      name: `CHIP:SHAPE`, with one of `roofline.CHIPS`, such as `v5e:4x4` or `v4:2x2x4`; or `h100:HOSTSxGPUS`.

    Raises:
      ConfigError: there are no such pods, or their compiler is not installed.
    """
    match = _TOPOLOGY.fullmatch(name)
    if match is None or (match["chip"] or match["gpu"]) not in CHIPS:
        chips = ", ".join(CHIPS)
        raise ConfigError(
            f"topology={name!r}; expected CHIP:SHAPE with one of {chips}, such as v5e:4x4, or h100:HOSTSxGPUS"
        )
    if match["gpu"]:
        module, extra, platform = "jax_cuda12_plugin", "cuda12", "cuda"
        options = {"target_config": _H100, "topology": f"1x{match['hosts']}x{match['gpus']}"}
    else:
        module, extra, platform = "libtpu", "tpu", "tpu"
        options = {"topology_name": name}
        if match["chip"] == "v4":  # both cores of a chip are one device, as they are when JAX runs on it
            options["chip_config_name"] = "megacore"
    if importlib.util.find_spec(module) is None:
        raise ConfigError(
            f"{module} is not installed; expected the extra {extra!r}: pip install 'metamask_jax[{extra}]'"
        )
    for variable, value in _ALONE.items():
        os.environ.setdefault(variable, value)
    from jax.experimental import topologies

    try:
        found = topologies.get_topology_desc(platform=platform, **options)
    except jax.errors.JaxRuntimeError as error:
        raise ConfigError(f"topology={name!r}; expected a shape that there is, but: {_first_line(error)}") from error
    return Topology(name, CHIPS[match["chip"] or match["gpu"]], found.devices)


def picture_shape(config: ConfigDict, size: int | None = None) -> tuple[int, ...]:
    """Shape of what the host sends of one image.

    Args:
      config: a validated configuration.
      size: side of the dataset's pictures; None: as large as the views.
    """
    options = config.data.options
    size = size or options.get("image_size") or config.data.image_size
    return (*([options.views] if options.get("views") else []), size, size, 3)


def lower_step(config: ConfigDict, devices: Sequence[Any], picture: Sequence[int]) -> jax.stages.Lowered:
    """Lowers the whole training step for some devices, without allocating anything.

    Args:
      config: a validated configuration.
      devices: real ones or those of a topology.
      picture: shape of what the host sends of one image.
    """
    distributed.check_batch_size(config.train.batch_size, config.train.accumulate, devices=len(devices))
    per_epoch = max(1, config.data.size // config.train.batch_size) if config.data.size else _EPOCH
    total = config.train.steps or config.train.epochs * per_epoch
    lengths = {"steps_per_epoch": per_epoch, "total_steps": total}
    step = make_program(config, **lengths, axis_name=distributed.AXIS)
    state, batch = _arguments(config, len(devices), picture)
    return distributed.parallelize(step, devices=devices).lower(state, batch, settings_of(config, **lengths))


def _arguments(config: ConfigDict, devices: int, picture: Sequence[int]) -> tuple[Any, Any]:
    """Shapes of the state and of a batch in its shares."""
    share = (devices, config.train.batch_size // devices)
    places: Any = jax.ShapeDtypeStruct(share, jnp.int32)

    def batch_of(*shape: int) -> Batch:
        images: Any = jax.ShapeDtypeStruct((*share, *shape), jnp.uint8)
        return Batch(images, places, places, places)

    batch: Batch | Pair | Judged = batch_of(*picture)
    if looks_ahead(config):
        batch = Pair(batch, batch)
    elif has_judge(config):
        # Labelled images may be fewer than these; they come whole, also where the host crops views.
        batch = Judged(batch, batch_of(*picture[-3:]) if config.meta.outer == "labels" else batch)
    return jax.eval_shape(lambda: init_state(config)), batch


def compile_step(config: ConfigDict, pod: Topology, picture: Sequence[int], *, effort: float = 0.0) -> Account:
    """Compiles the whole training step for a pod.

    Args:
      config: a validated configuration.
      pod: from `topology`.
      picture: shape of what the host sends of one image, from `picture_shape`.
      effort: of the compiler, from -1 (quick) to 1; 0 is its usual one.

    Raises:
      ConfigError: the devices cannot share the batch equally.
    """
    lowered = lower_step(config, pod.devices, picture)
    sizes = [
        sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
        for tree in _arguments(config, len(pod.devices), picture)
    ]
    options: Any = {"exec_time_optimization_effort": effort, "memory_fitting_effort": effort} if effort else {}
    start = time.perf_counter()
    try:
        compiled = lowered.compile(compiler_options=options)
    except jax.errors.JaxRuntimeError as error:
        used = _needed(error)
        return Account(used, False, sizes[0], sizes[1] // len(pod.devices), time.perf_counter() - start)
    seconds = time.perf_counter() - start
    return _account(config, pod, compiled, sizes[0], sizes[1] // len(pod.devices), seconds)


def _account(
    config: ConfigDict, pod: Topology, compiled: jax.stages.Compiled, state: int, batch: int, seconds: float
) -> Account:
    memory: Any = compiled.memory_analysis()
    cost, program = compiled.cost_analysis() or {}, compiled.as_text()
    assert program is not None
    used = (
        memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        - memory.alias_size_in_bytes
        + memory.temp_size_in_bytes
        + memory.generated_code_size_in_bytes
    )
    traffic = collectives(program)
    flops, size = cost.get("flops", 0.0), cost.get("bytes accessed", 0.0)
    passes = PASSES[config.train.precision] if config.train.dtype == "float32" else 1
    return Account(
        used=used,
        fits=used <= pod.chip.memory,
        state=state,
        batch=batch,
        seconds=seconds,
        flops=flops,
        bytes_accessed=size,
        traffic=traffic,
        custom_calls=sorted(set(re.findall(r'custom_call_target="([^"]*)"', program))),
        gathers=len(re.findall(r" (?:gather|scatter)\(", program)),
        limits=roofline(pod.chip, flops=flops, size=size, traffic=traffic, devices=len(pod.devices), passes=passes),
    )


def _needed(error: jax.errors.JaxRuntimeError) -> float:
    """Bytes that a program would have needed, from the compiler's refusal; any other error is raised again."""
    found = _TOO_LARGE.search(str(error))
    if "RESOURCE_EXHAUSTED" not in str(error) or found is None:
        raise error
    return float(found["used"]) * _UNITS[found["unit"]]


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
