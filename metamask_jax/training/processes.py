"""The processes of a run: how they find each other, refuse together, and stop after the same step.

What they say to each other before the first step goes through JAX's coordination service, not through the devices: no
program is compiled for it, and it may take its time.
"""

import itertools
import json
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import jax
from jax._src import distributed as _service  # JAX has no public way to exchange text
from jax.experimental import multihost_utils

from metamask_jax.errors import ConfigError, one_line
from metamask_jax.training.heartbeat import Heartbeat

_log = logging.getLogger(__name__)
T = TypeVar("T")
_HEARTBEAT = 75  # seconds until JAX ends a process whose peer is silent; `heartbeat` does so before, and says why
_PATIENCE = 24 * 3600  # seconds to wait for each other before the first step: one may be preparing the data of all
_NEWS = 20.0  # seconds between two words about waiting
_meetings, _steps = itertools.count(), itertools.count(1)


class SharedRefusalError(ConfigError):
    """A refusal that all processes know of already."""


def join_processes(
    *,
    coordinator: str | None,
    process_count: int | None,
    process_index: int | None,
    distributed: str = "auto",
    timeout: int = 300,
) -> None:
    """Connects the processes of a run, before anything else touches JAX.

    Args:
      coordinator: `host:port` of process 0, together with the next two; None asks the launcher's environment (SLURM,
        Open MPI, TPU pods and whatever else JAX knows).
      process_count: how many processes take part.
      process_index: which of them this is.
      distributed: `on` insists on several processes, `off` is a run of one, `auto` looks whether there are several.
      timeout: seconds to wait for the others.
    """
    given = [value is not None for value in (coordinator, process_count, process_index)]
    if any(given) and (distributed == "off" or not all(given)):
        expected = "none of them with --distributed off" if distributed == "off" else "all three or none"
        raise ConfigError(f"--coordinator, --processes and --process belong together; expected {expected}")
    if coordinator is not None and process_count is not None and process_index is not None:
        if not re.fullmatch(r".+:\d{1,5}", coordinator):
            raise ConfigError(f"--coordinator {coordinator}; expected HOST:PORT")
        if process_index >= process_count:
            raise ConfigError(
                f"--process {process_index}; expected 0 to {process_count - 1}, since --processes is {process_count}"
            )
        _connect(timeout, process_count, coordinator, process_index)
    elif distributed != "off":
        found = _launched_processes()
        if found > 1:
            _connect(timeout, found, None, None)
        elif distributed == "on":
            raise ConfigError(
                "--distributed on, but no launcher of several processes was found; expected one that JAX knows, or "
                "--coordinator, --processes and --process"
            )


def _launched_processes() -> int:
    """How many processes the launcher of this one has started, by JAX's own detection; 1 where there is no launcher."""
    try:
        from jax._src.clusters import ClusterEnv

        for cluster in ClusterEnv._cluster_types:
            if not cluster.opt_in_only_method and cluster.is_env_present():
                return int(cluster.get_process_count())
    except Exception as error:  # a metadata server that does not answer, for example
        _log.warning("whether this is one of several processes cannot be found out (%s); it goes on alone", error)
    return 1


def _connect(timeout: int, count: int, coordinator: str | None, index: int | None) -> None:
    """Joins the others, in a thread: JAX would end this process without a word of ours when it has waited enough."""
    failed: list[Exception] = []

    def connect() -> None:
        try:
            jax.distributed.initialize(
                coordinator,
                None if index is None else count,
                index,
                initialization_timeout=timeout + 60,
                heartbeat_timeout_seconds=_HEARTBEAT,
            )
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=connect, name="join", daemon=True)
    thread.start()
    end = time.monotonic() + timeout
    while thread.is_alive() and (left := end - time.monotonic()) > 0:
        thread.join(min(_NEWS, left))
        if thread.is_alive() and left > _NEWS:
            _log.info("waiting for the other processes, for at most %.0f s more", left - _NEWS)
    if thread.is_alive():
        place = coordinator or "their coordinator"
        raise ConfigError(
            f"the {count} processes of this run did not all meet at {place} within {timeout} s; expected each of them "
            "to be started with the same flags (--join-timeout waits longer, --distributed off trains with one)"
        )
    if failed:
        raise ConfigError(f"the {count} processes of this run cannot meet: {one_line(failed[0])}") from failed[0]
    state = _service.global_state
    Heartbeat(state.client, index=state.process_id, count=state.num_processes)


@contextmanager
def shared_refusals() -> Iterator[None]:
    """What one process refuses in this block, all refuse: none is left waiting. All leave the block together."""
    if jax.process_count() == 1:
        yield
        return
    try:
        yield
    except SharedRefusalError:
        raise
    except Exception as error:
        exchange("", refused=one_line(error))
        raise
    exchange("")


def exchange(text: str, *, refused: str | None = None) -> list[str]:
    """Waits until every process has come here, and returns what each of them says, by index.

    Args:
      text: what this process says.
      refused: why this process will not go on, if so.

    Raises:
      SharedRefusalError: another process will not go on.
    """
    if jax.process_count() == 1:
        return [text]
    client, name = _service.global_state.client, f"metamask_jax/{next(_meetings)}"
    assert client is not None
    client.key_value_set(f"{name}/{jax.process_index()}", json.dumps([text, refused]))
    client.wait_at_barrier(f"{name}/all", _PATIENCE * 1000)
    found = [
        json.loads(client.blocking_key_value_get(f"{name}/{index}", 60_000)) for index in range(jax.process_count())
    ]
    refusals = {index: reason for index, (_, reason) in enumerate(found) if reason is not None}
    if refusals:
        _before_the_end()
    if refusals and refused is None:
        index, reason = next(iter(refusals.items()))
        raise SharedRefusalError(f"process {index} cannot start: {reason}")
    return [text for text, _ in found]


def _before_the_end() -> None:
    """Gives the others the time to read what they were told: the coordination service ends with process 0."""
    if jax.process_index() == 0:
        time.sleep(1.0)


def check_agreement(facts: Mapping[str, Any]) -> None:
    """Refuses, on every process, a run whose processes were not started alike; names what differs."""
    everyone = [json.loads(text) for text in exchange(json.dumps(facts, sort_keys=True, default=str))]
    keys = sorted({key for found in everyone for key in found})
    different = [key for key in keys if any(found.get(key) != everyone[0].get(key) for found in everyone)]
    if not different:
        return
    parts = []
    for key in different:
        index, value = next((i, f.get(key)) for i, f in enumerate(everyone) if f.get(key) != everyone[0].get(key))
        parts.append(f"{key} is {everyone[0].get(key)!r} on process 0 and {value!r} on process {index}")
    _before_the_end()
    raise SharedRefusalError(
        f"the processes of this run disagree ({'; '.join(parts)}); expected the same command, package and data on all"
    )


def main_first(make: Callable[[], T]) -> T:
    """What `make` gives, on the main process before the others: it may be preparing files for all of them."""
    if jax.process_index() == 0:
        made = make()
        exchange("")
        return made
    exchange("")
    return make()


def from_main(make: Callable[[], Any], like: Any) -> Any:
    """What `make` gives on the main process, on every process; the others pass what it looks like."""
    if jax.process_count() == 1:
        return make()
    made = make() if jax.process_index() == 0 else like
    exchange("")  # the transfer has no patience
    return multihost_utils.broadcast_one_to_all(made)


def asked_to_stop() -> bool:
    """Whether all processes are to stop now because one of them got SIGTERM; all call this after each step."""
    return jax.process_count() > 1 and multihost_utils.reached_preemption_sync_point(next(_steps))


def compile_together(step: Any, *arguments: Any) -> jax.stages.Compiled:
    """Compiles a parallel function for its arguments on all processes before any of them runs it.

    Otherwise the first to be done would wait in its first collective operation, and on CPUs give up after 30 s.

    Returns:
      What was compiled, which the function itself will use when it is called.
    """
    state, index = _service.global_state, _service.global_state.process_id
    with shared_refusals():
        state.process_id = 0  # JAX lets only process 0 keep what it has compiled, also where the others look elsewhere
        try:
            compiled = step.lower(*arguments).compile()
        finally:
            state.process_id = index
    return compiled
