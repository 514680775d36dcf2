"""Native kernels can be switched off, and are never loaded for another platform than the CPU."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import pytest

from metamask_jax.errors import ConfigError
from metamask_jax.kernels import conv2d, switch, use

# Compiles gradients of a convolution and of moments in one way after the other; tells what has been loaded by then.
PROGRAM = """
import json, os, sys
import jax, jax.numpy as jnp
from jax import export
from metamask_jax.kernels import conv2d, use
from metamask_jax.kernels.moments import moments

def loss(x, w):
    y = conv2d(x, w, strides=(1, 1), padding="SAME")
    return jnp.sum(y ** 2) + sum(jnp.sum(m) for m in moments(y, jnp.zeros(y.shape[-1])))

run = jax.jit(jax.grad(loss, (0, 1)))
x, w = jnp.ones((2, 4, 4, 16)), jnp.ones((3, 3, 16, 16))
loaded = {}

def note(name):
    loaded[name] = [m for m in sys.modules if m == "llvmlite" or m.startswith("metamask_jax.kernels.native")]

for platform in ("tpu", "cuda", "rocm"):
    export.export(run, platforms=[platform])(x, w)
    note(platform)
use("xla")
run(x, w)
note("use")
os.environ["METAMASK_KERNELS"] = "xla"
use("native")
run(x, w)
note("variable")
del os.environ["METAMASK_KERNELS"]
use("auto")
run(x, w)
note("auto")
print(json.dumps(loaded))
"""


@pytest.fixture(autouse=True)
def back_to_auto(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("METAMASK_KERNELS", raising=False)
    yield
    monkeypatch.delenv("METAMASK_KERNELS", raising=False)
    use("auto")


@pytest.fixture(scope="module")
def loaded() -> dict[str, list[str]]:
    environment = {key: value for key, value in os.environ.items() if key != "METAMASK_KERNELS"}
    command = [sys.executable, "-c", PROGRAM]
    return json.loads(subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout)


@pytest.mark.parametrize("platform", ["tpu", "cuda", "rocm"])
def test_nothing_native_is_loaded_for_another_platform(platform: str, loaded: dict[str, list[str]]) -> None:
    assert loaded[platform] == []


@pytest.mark.parametrize("way", ["use", "variable"])
def test_nothing_native_is_loaded_when_switched_off(way: str, loaded: dict[str, list[str]]) -> None:
    assert loaded[way] == []


@pytest.mark.skipif(not switch.has_native(), reason="native kernels need llvmlite and a processor with AVX2 or AVX-512")
def test_native_kernels_are_loaded_otherwise(loaded: dict[str, list[str]]) -> None:
    assert {"llvmlite", "metamask_jax.kernels.native.moments"} <= set(loaded["auto"])


@pytest.mark.skipif(not switch.has_native(), reason="native kernels need llvmlite and a processor with AVX2 or AVX-512")
def test_a_compiled_function_follows_the_switch() -> None:
    x, w = jnp.ones((2, 4, 4, 16)), jnp.ones((3, 3, 16, 16))
    traced = []

    @jax.jit
    def convolve(x: jax.Array, w: jax.Array) -> jax.Array:
        traced.append(switch.has_native())
        return conv2d(x, w, strides=(1, 1), padding="SAME")

    def is_native() -> bool:
        convolve(x, w)
        return "kernels.native" in convolve.lower(x, w).as_text()

    for name, native in (("auto", True), ("xla", False), ("native", True), ("xla", False)):
        use(name)
        assert is_native() == native
    assert traced == [True, False, True]  # the last one is not compiled again


def test_unknown_names_are_told() -> None:
    with pytest.raises(ConfigError, match=r"^kernels='fast'; expected 'auto', 'native' or 'xla'$"):
        use("fast")


@pytest.mark.parametrize("value", ["auto", "Native", "0"])
def test_unknown_values_of_the_variable_are_told_when_a_kernel_is_chosen(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("METAMASK_KERNELS", value)
    with pytest.raises(ConfigError) as early:
        use("xla")
    with pytest.raises(ConfigError) as late:
        jax.jit(lambda x: conv2d(x, x, strides=(1, 1), padding="SAME")).lower(jnp.ones((3, 3, 3, 3)))
    assert str(early.value) == str(late.value) == f"METAMASK_KERNELS={value!r}; expected 'native' or 'xla'"


def test_an_empty_variable_counts_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METAMASK_KERNELS", "")
    use("xla")
    assert not switch.has_native()


def test_native_kernels_that_cannot_run_are_an_error_only_if_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(switch, "_can_run", lambda: False)
    assert not switch.has_native()
    use("xla")
    assert not switch.has_native()
    use("native")
    with pytest.raises(ConfigError, match=r"^kernels='native', but llvmlite is missing, .*; expected 'auto' or 'xla'$"):
        switch.has_native()
