"""CMC: the split encoder, noise-contrastive estimation, and the memories of every image."""

import json
import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metamask_jax.augment import CustomViews
from metamask_jax.core.losses import memory_logits, noise_contrastive
from metamask_jax.errors import ConfigError
from metamask_jax.evaluate.online import OnlineEvaluator
from metamask_jax.evaluate.workdir import load_run
from metamask_jax.methods import METHODS, Clock, Inputs
from metamask_jax.methods.cmc import _draw
from metamask_jax.models import make_split_encoder
from metamask_jax.training.loop import train
from metamask_jax.training.state import init_state
from tests.methods.conftest import REGISTRY, method_config
from tests.methods.test_definitions import linear_head
from tests.references import cosine
from tests.tiny import doubled, tiny_config
from tests.untrained import fill

RNG = np.random.default_rng(0)
SIZE, TEMPERATURE = 24, 0.2
INDICES = np.array([3, 17, 0, 9, 20, 11], np.int32)
HALVES = ("lightness", "color")


def example(views=2, negatives=10):
    config = method_config("cmc", data__views=views, method__negatives=negatives)
    config.train.dtype = "float64"
    method = METHODS["cmc"].build(config, None)
    variables = doubled(method.init(jax.random.key(3), {}, 12))
    h = RNG.normal(size=(6, 12)) + 0.7 * RNG.normal(size=(views, 6, 12))
    return method, variables, h


def inputs_of(h, step=0):
    return Inputs(h, None, None, INDICES, Clock(step, 0.0, 0.0))


def stepper(method, variables):
    """-> (state, h, step) -> the state after a batch of features, compiled."""

    @jax.jit
    def remember(state, h, step):
        output = method.loss(variables._replace(state=state), inputs_of(h, step))
        return method.update(state, None, output.memory, Clock(step, 0.0, 0.0))

    return remember


def projections(variables, h):
    """[2, views, batch, dim]."""
    params = jax.tree.map(np.asarray, variables.params)
    parts = {"lightness": h[..., :6], "color": h[..., 6:]}
    return np.stack([[linear_head(params[half], view, True) for view in parts[half]] for half in HALVES])


def slow_scores(variables, h, drawn):
    """exp(cosine / t) of each half's projections and the other half's memories, own first: [2, views, batch, 1 + m]."""
    z, memories = projections(variables, h), np.asarray(variables.state["memories"])
    return np.array(
        [
            [
                [
                    [math.exp(cosine(a, memories[1 - half, row]) / TEMPERATURE) for row in (index, *drawn)]
                    for a, index in zip(view, INDICES, strict=True)
                ]
                for view in z[half]
            ]
            for half in range(2)
        ]
    )


def slow_loss(scores, normalizers):
    """Equations 8 and 9 for both halves: h = p / (p + m / n), the mean over views and images."""
    total = 0.0
    for half in range(2):
        terms = []
        for own, *drawn in scores[half].reshape(-1, scores.shape[-1]):
            noise = len(drawn) / SIZE
            own, drawn = own / normalizers[half], np.array(drawn) / normalizers[half]
            terms.append(-math.log(own / (own + noise)) - sum(math.log(noise / (p + noise)) for p in drawn))
        total += np.mean(terms)
    return total


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("views", [1, 2])
def test_loss_is_the_papers(views):
    method, variables, h = example(views)
    scores = slow_scores(variables, h, _draw(variables.state["key"], 5, size=SIZE, count=10))
    loss = jax.jit(lambda variables: method.loss(variables, inputs_of(h, 5)).loss)
    first = SIZE * scores.mean(axis=(1, 2, 3))  # the constants as the first batch has them
    assert float(loss(variables)) == pytest.approx(slow_loss(scores, first), rel=1e-9)
    later = variables._replace(state=variables.state | {"normalizers": jnp.array([7.0, 90.0])})
    assert float(loss(later)) == pytest.approx(slow_loss(scores, [7.0, 90.0]), rel=1e-9)


@pytest.mark.usefixtures("x64")
def test_a_batch_moves_its_own_memories_half_way_and_no_others():
    method, variables, h = example()
    state = stepper(method, variables)(variables.state, h, 0)
    before, z = np.asarray(variables.state["memories"]), projections(variables, h)
    expected = before.copy()
    for half in range(2):
        for i, index in enumerate(INDICES):
            mean = np.mean([view[i] / np.linalg.norm(view[i]) for view in z[half]], axis=0)
            moved = 0.8 * before[half, index] + 0.2 * mean
            expected[half, index] = moved / np.linalg.norm(moved)
    np.testing.assert_allclose(state["memories"], expected, rtol=1e-10)
    untouched = np.setdiff1d(np.arange(SIZE), INDICES)
    np.testing.assert_array_equal(state["memories"][:, untouched], before[:, untouched])


@pytest.mark.usefixtures("x64")
def test_constants_are_those_of_the_first_batch_for_ever():
    method, variables, h = example()
    state = variables.state
    assert not np.any(state["normalizers"])
    scores = slow_scores(variables, h, _draw(state["key"], 0, size=SIZE, count=10))
    found = []
    remember = stepper(method, variables)
    for step in range(3):
        state = remember(state, (1 + step) * h**2 if step else h, step)
        found.append(np.asarray(state["normalizers"]))
    np.testing.assert_allclose(found[0], SIZE * scores.mean(axis=(1, 2, 3)), rtol=1e-10)
    np.testing.assert_array_equal(found[1], found[0])
    np.testing.assert_array_equal(found[2], found[0])


@pytest.mark.usefixtures("x64")
def test_no_gradient_reaches_memories_and_constants():
    method, variables, h = example()

    def loss(memories, normalizers, h):
        state = variables.state | {"memories": memories, "normalizers": normalizers}
        return method.loss(variables._replace(state=state), inputs_of(h)).loss

    gradients = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(variables.state["memories"], jnp.array([30.0, 40.0]), h)
    assert [bool(np.any(gradient)) for gradient in gradients] == [False, False, True]


def test_memories_drawn_are_a_function_of_seed_and_step():
    configs = [method_config("cmc", train__seed=seed) for seed in (0, 1)]
    keys = [jax.jit(lambda c=config: init_state(c).method_state["key"])() for config in configs]
    draw = jax.jit(partial(_draw, size=SIZE, count=500))
    draws = {(seed, step): tuple(np.asarray(draw(keys[seed], step))) for seed in (0, 1) for step in (0, 1)}
    assert len(set(draws.values())) == 4
    assert draws[0, 0] == tuple(np.asarray(_draw(keys[0], 0, size=SIZE, count=500)))
    assert set(draws[0, 0]) == set(range(SIZE))


@pytest.mark.parametrize("name", ["conv", "resnet18"])
def test_each_half_sees_its_own_channels_only(name):
    encoder = make_split_encoder(name, width=1 / 8, stem="cifar", image_size=32, dtype="float32", axis_name=None)
    x = jnp.asarray(RNG.normal(size=(2, 32, 32, 3)), jnp.float32)
    variables = fill(jax.eval_shape(lambda: encoder.init(jax.random.key(0), x, train=False)))
    apply = jax.jit(lambda x: encoder.apply(variables, x, train=False))
    h, other_color, other_lightness = apply(x), apply(x.at[..., 1:].mul(2.0)), apply(x.at[..., 0].mul(2.0))
    half = encoder.features // 2
    assert h.shape == (2, encoder.features)
    np.testing.assert_array_equal(other_color[:, :half], h[:, :half])
    np.testing.assert_array_equal(other_lightness[:, half:], h[:, half:])
    assert not np.allclose(other_color[:, half:], h[:, half:])
    assert not np.allclose(other_lightness[:, :half], h[:, :half])


def test_split_encoder_refuses_other_images():
    encoder = make_split_encoder("conv", width=1 / 8, stem="cifar", image_size=32, dtype="float32", axis_name=None)
    with pytest.raises(ValueError, match=r"x.shape=\(1, 32, 32, 1\); expected three channels"):
        jax.eval_shape(lambda: encoder.init(jax.random.key(0), jnp.zeros((1, 32, 32, 1)), train=False))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            {"data__augmentation": "simclr"},
            r"config\.data\.augmentation='simclr'; expected one of 'cmc', 'shapes_lab', 'eval_lab', 'plain_lab' for "
            r"config\.method\.name='cmc', whose encoders see lab channels",
        ),
        ({"data__views": 1, "loss__drr": "true"}, r"config.data.views=1; expected at least 2"),
    ],
    ids=["no Lab", "one view for redundancy reduction"],
)
def test_what_it_cannot_work_with_is_refused(overrides, message):
    with pytest.raises(ConfigError, match=message):
        method_config("cmc", **overrides)


def test_a_training_set_of_unknown_size_is_refused():
    config = tiny_config({"method.name": "cmc", "data.augmentation": "cmc"})
    with pytest.raises(ConfigError, match=r"config.data.size=None; expected the number of training images"):
        init_state(config)


def test_temperature_of_the_logits_is_checked():
    with pytest.raises(ValueError, match=r"temperature=0.0; expected a number > 0"):
        memory_logits(jnp.eye(2), jnp.eye(2), jnp.eye(2), temperature=0.0)


def test_devices_share_the_mean():
    logits = RNG.normal(size=(8, 5)).astype(np.float32)
    found = jax.pmap(lambda part: noise_contrastive(part, normalizer=3.0, population=9, axis_name="i"), axis_name="i")(
        logits.reshape(4, 2, 5)
    )
    np.testing.assert_allclose(found, noise_contrastive(logits, normalizer=3.0, population=9), rtol=1e-6)


def test_a_run_remembers_every_image_and_can_be_evaluated(tmp_path):
    """One epoch over 32 images, one view of each: the run finds out how many there are, and its workdir tells."""

    def one_view(images, keys):
        return images[None] / 255

    registry = REGISTRY.extended(augmentations={"one": lambda size: CustomViews(one_view, color_space="lab")})
    options = {"data.options.train_size": "32", "data.options.test_size": "16", "data.dir": str(tmp_path / "data")}
    alone = {"data.views": "1", "loss.drr": "false", "mask.learn": "false", "log.tensorboard": "false"}
    cmc = {"method.name": "cmc", "data.augmentation": "one", "train.steps": "2"}
    config = tiny_config(options | alone | cmc, registry)
    result = train(config, tmp_path / "run", registry=registry, make_evaluator=OnlineEvaluator)
    assert 0.0 <= result["knn_accuracy"] <= 1.0
    assert json.loads((tmp_path / "run" / "config.json").read_text())["data"]["size"] == 32
    run = load_run(tmp_path / "run", step="last", registry=registry)
    start = jax.jit(lambda: init_state(run.config, registry=registry).method_state["memories"])()
    moved = np.any(run.state.method_state["memories"] != start, axis=-1)
    assert moved.shape == (2, 32)
    assert moved.all()
