"""Compiling for a pod that is not there: reading programs, the arithmetic of the table, and the real compiler."""

import importlib.util
import json

import pytest

from metamask_jax.cli import compile_for
from metamask_jax.errors import ConfigError
from metamask_jax.training import compilation
from metamask_jax.training.roofline import CHIPS, Roofline, Traffic, collectives, roofline, sent
from metamask_jax.training.state import init_state
from tests.test_scaling import expected_joint
from tests.tiny import tiny_config

needs_libtpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed: pip install 'metamask_jax[tpu]'"
)

# In the form in which TPU programs have them, shortened.
PROGRAM = """
  %a = f32[2,12]{1,0:T(2,128)S(1)} all-reduce(%x), channel_id=1, replica_groups={{0,1}}, to_apply=%sum
  %b = (bf16[8]{0}, f32[4,2]{1,0}, /*index=2*/f32[]{:T(128)}) all-reduce(%y, %z, %w), channel_id=2
  %c = f32[2,16,6]{2,0,1} all-gather(%v), dimensions={1}, frontend_attributes={chain_id="3"}
  %d = f32[2,16,6]{2,0,1} all-gather(%p), dimensions={1}, frontend_attributes={chain_id="3"}
  %e = (f32[4]{0}, f32[8]{0}) all-gather-start(%u), dimensions={0}
  %f = f32[8]{0} all-gather-done(%e)
  %g = f32[2,2,6]{2,1,0} reduce-scatter(%t), dimensions={1}
  %h = f32[2,2,6]{2,1,0} fusion(%all-reduce.7), kind=kLoop, metadata={op_name="all-reduce(x)"}
"""


def test_collectives_are_counted_once_each_by_kind_and_format():
    assert collectives(PROGRAM) == [
        Traffic("all-gather", "f32", calls=2, size=4 * (192 + 8)),
        Traffic("all-reduce", "f32", calls=2, size=4 * (24 + 8 + 1)),
        Traffic("reduce-scatter", "f32", calls=1, size=4 * 24),
        Traffic("all-reduce", "bf16", calls=1, size=16),
    ]


def test_a_ring_sends_twice_what_is_reduced_and_once_what_is_gathered_or_scattered():
    assert sent([Traffic("all-reduce", "f32", 1, 800)], 8) == 2 * 700
    assert sent([Traffic("all-gather", "f32", 1, 800)], 8) == 700
    assert sent([Traffic("reduce-scatter", "f32", 1, 100)], 8) == 700  # the result is an eighth of what goes round
    assert sent([Traffic("all-reduce", "f32", 1, 800)], 1) == 0


def test_the_slowest_limit_bounds_a_step():
    chip = CHIPS["v5e"]
    traffic = [Traffic("all-reduce", "f32", 1, round(chip.links))]
    limits = roofline(chip, flops=chip.flops, size=2 * chip.bandwidth, traffic=traffic, devices=2, passes=3)
    assert limits == Roofline(compute=3.0, memory=2.0, links=1.0)
    assert (limits.seconds, limits.bound) == (3.0, "compute")


@pytest.mark.parametrize(
    ("message", "used"),
    [
        ("the total memory required for HLO temporaries (16.04G) exceeds available HBM (15.75G).", 16.04 * 2**30),
        ("Ran out of memory in memory space hbm. Used 512.00M of 15.75G hbm. Exceeded", 512 * 2**20),
    ],
)
def test_what_is_needed_is_read_from_a_refusal(message, used):
    assert compilation._needed(RuntimeError(f"RESOURCE_EXHAUSTED: {message}")) == used


def test_another_error_of_the_compiler_is_raised():
    with pytest.raises(RuntimeError, match="INTERNAL"):
        compilation._needed(RuntimeError("INTERNAL: exceeds available HBM"))


@pytest.mark.parametrize("name", ["v5e", "v5e:", "v5e:2", "v9:2x2", "v5e:2x", "h100:8", "v5e:2x4x", "a100:1x8"])
def test_a_name_that_is_no_topology_is_refused(name, capsys):
    assert compile_for.main([name]) == 2
    chips = "v4, v5e, v5p, v6e, h100, such as v5e:4x4, or h100:HOSTSxGPUS"
    assert capsys.readouterr().err == f"topology={name!r}; expected CHIP:SHAPE with one of {chips}\n"


@pytest.mark.parametrize(
    ("name", "compiler", "extra"), [("v5e:2x4", "libtpu", "tpu"), ("h100:1x8", "jax_cuda12_plugin", "cuda12")]
)
def test_without_the_compiler_a_sentence_says_what_to_install(name, compiler, extra, monkeypatch, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert compile_for.main([name]) == 2
    assert capsys.readouterr().err.startswith(f"{compiler} is not installed; expected the extra {extra!r}")


def test_what_a_compiler_does_not_count_is_not_shown():
    """CUDA's says neither FLOPs nor bytes."""
    traffic = [Traffic("all-reduce", "f32", 3, 900_000_000)]
    limits = roofline(CHIPS["h100"], flops=0, size=0, traffic=traffic, devices=8)
    account = compilation.Account(2.0**33, True, state=0, batch=0, seconds=0.0, traffic=traffic, limits=limits)
    pod = compilation.Topology("h100:1x8", CHIPS["h100"], [None] * 8)
    shown = compile_for.table(tiny_config(), pod, account)
    assert "8.00 GiB of 59.32 GiB: fits" in shown
    assert "3 of f32, 900 MB" in shown
    assert "least time, links       3.50 ms; this compiler counts neither FLOPs nor bytes" in shown
    assert not [word for word in ("bytes accessed", "images/s", "compute") if word in shown]


@pytest.mark.parametrize("effort", ["2", "-1.5", "quick", "nan"])
def test_an_effort_out_of_range_is_refused(effort, capsys):
    assert compile_for.main(["v5e:2x4", f"--effort={effort}"]) == 2
    assert capsys.readouterr().err == f"--effort {effort}; expected a number from -1 to 1\n"


def test_suggestions_grow_until_the_batch_cannot_be_split_further():
    config = tiny_config({"train.batch_size": "64"})
    assert list(compile_for.candidates(config, devices=8)) == [
        {"meta.estimator": "exact_recomputed"},
        {"train.remat": True},
        {"train.accumulate": 2},
        {"train.accumulate": 2, "train.remat": True},
        {"train.accumulate": 4},
        {"train.accumulate": 4, "train.remat": True},
        {"train.accumulate": 8},
        {"train.accumulate": 8, "train.remat": True},
    ]
    lookahead = tiny_config({"meta.estimator": "lookahead", "train.remat": "True"})
    assert list(compile_for.candidates(lookahead, devices=8)) == []


def test_every_suggestion_is_tried_by_itself_until_one_fits(monkeypatch, capsys):
    """Then twice the chips, with the settings that were given."""
    tried = []

    def compile_step(config, pod, picture, *, effort):
        tried.append((pod.name, config.meta.estimator, config.train.remat, config.train.accumulate))
        return compilation.Account(2.0**34, tried[-1] == ("v5e:2x4", "exact", True, 2), state=0, batch=0, seconds=0.0)

    def topology(name):
        return compilation.Topology(name, CHIPS["v5e"], [None] * 8)

    monkeypatch.setattr(compilation, "compile_step", compile_step)
    monkeypatch.setattr(compilation, "topology", topology)
    monkeypatch.setattr(compile_for, "load_config", lambda name: tiny_config().copy_and_resolve_references())
    assert compile_for.main(["v5e:2x4", "--suggest"]) == 1
    exact = [(False, 1), (True, 1), (False, 2), (True, 2)]
    settings = [("exact", *exact[0]), ("exact_recomputed", False, 1), *(("exact", *others) for others in exact[1:])]
    assert tried == [*(("v5e:2x4", *others) for others in settings), ("v5e:4x4", "exact", False, 1)]
    printed = capsys.readouterr()
    assert "16.00 GiB of 15.75 GiB: DOES NOT FIT" in printed.out
    assert "--config.train.accumulate=2 --config.train.remat=True" in printed.err


def test_pictures_have_the_size_of_the_dataset_or_of_the_crops():
    config = tiny_config()
    assert compilation.picture_shape(config) == (32, 32, 3)
    assert compilation.picture_shape(config, 96) == (96, 96, 3)
    cropped = tiny_config({"data.options.image_size": "48", "data.options.views": "2"})
    assert compilation.picture_shape(cropped) == (2, 48, 48, 3)


@pytest.fixture(scope="module")
def account():
    """Of a tiny step on eight chips of v5e, compiled quickly."""
    config = tiny_config()
    return compilation.compile_step(
        config, compilation.topology("v5e:2x4"), compilation.picture_shape(config), effort=-1.0
    )


@pytest.mark.skipif(
    importlib.util.find_spec("jax_cuda12_plugin") is None,
    reason="JAX's plugin for CUDA is not installed: pip install 'metamask_jax[cuda12]'",
)
@pytest.mark.slow
def test_the_compiler_for_gpus_needs_none():
    config = tiny_config({"mask.learn": "False"})
    account = compilation.compile_step(config, compilation.topology("h100:1x8"), compilation.picture_shape(config))
    assert account.fits
    assert not [name for name in account.custom_calls if "metamask" in name]
    assert {entry.kind for entry in account.traffic} == {"all-reduce", "all-gather", "reduce-scatter"}


@needs_libtpu
@pytest.mark.slow
class TestRealCompiler:
    """libtpu."""

    def messages(self, traffic):
        return {(entry.kind, entry.dtype): entry.calls for entry in traffic}

    def test_no_call_is_left_that_only_a_cpu_has(self, account):
        assert not [name for name in account.custom_calls if "metamask" in name or "cpu" in name.lower()]

    def test_sends_what_the_formulas_say(self, account):
        """Those of docs/scaling.md; the small array that could be scattered is reduced whole on a TPU."""
        config = tiny_config({"mask.learn": "False"})
        pod, picture = compilation.topology("v5e:2x4"), compilation.picture_shape(config)
        _, metrics = compilation.lower_step(config, pod.devices, picture).out_info
        unlike = {"learning_rate", "skipped", "skipped_in_a_row"}
        expected = expected_joint(init_state(config), len(metrics.keys() - unlike), devices=8)
        joint = compilation.compile_step(config, pod, picture, effort=-1.0).traffic
        assert {entry.kind: entry.size // 4 for entry in joint} == {
            "all-gather": expected["all-gather"],
            "all-reduce": expected["all-reduce"] + 8 * expected["reduce-scatter"],
        }
        layers, drr_head, method_head = 1, 1, 2  # of BatchNorm, one behind the other
        chain = 2 * (layers + drr_head) + 7 + 2
        assert self.messages(joint) == {("all-reduce", "f32"): chain, ("all-gather", "f32"): 1}
        # Three scattered arrays are reduced whole, with nothing else to go with.
        exact = chain + 5 * layers + 6 * method_head + 3 + 3
        assert self.messages(account.traffic) == {("all-reduce", "f32"): exact, ("all-gather", "f32"): 4}
        assert {entry.kind: entry.size // 4 for entry in account.traffic}["all-gather"] == 4 * expected["all-gather"]

    def test_counts_add_up(self, account):
        assert account.fits
        assert account.state + account.batch < account.used < CHIPS["v5e"].memory
        assert account.limits == roofline(
            CHIPS["v5e"],
            flops=account.flops,
            size=account.bytes_accessed,
            traffic=account.traffic,
            devices=8,
        )

    def test_a_batch_too_large_is_reported_with_what_it_needs(self):
        config = tiny_config({"train.batch_size": str(8 * 250_000), "mask.learn": "False", "method.name": "simsiam"})
        account = compilation.compile_step(
            config, compilation.topology("v5e:2x4"), compilation.picture_shape(config), effort=-1.0
        )
        assert not account.fits
        assert account.used > CHIPS["v5e"].memory

    def test_a_shape_that_there_is_not_is_refused(self):
        with pytest.raises(ConfigError, match=r"topology='v5e:3x3'; expected a shape that there is, but: "):
            compilation.topology("v5e:3x3")

    def test_command_prints_one_json_object(self, capsys, monkeypatch):
        monkeypatch.setattr(compile_for, "load_config", lambda name: tiny_config().copy_and_resolve_references())
        assert compile_for.main(["v5e:2x4", "--json", "--effort=-1", "--config.mask.learn=False"]) == 0
        printed = json.loads(capsys.readouterr().out)
        assert printed["fits"] is True
        assert printed["chips"] == 8
        assert printed["limits"].keys() == {"compute", "memory", "links"}
