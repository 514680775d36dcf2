"""SwAV: codes, the loss with everything that can join it, prototypes, past projections and small views."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from metamask_jax.augment import PRESETS, CustomViews, example_keys, make_multi_crop
from metamask_jax.core import losses
from metamask_jax.errors import ConfigError
from metamask_jax.methods import METHODS, Clock, Inputs
from metamask_jax.models import make_encoder
from metamask_jax.models.layers import BatchNorm, as_output, dense
from metamask_jax.training.state import build_model
from metamask_jax.training.step import Objective, Sample
from tests.methods.conftest import BATCH, REGISTRY, method_config
from tests.methods.test_definitions import on_views
from tests.tiny import doubled, doubled_start, plain_views, step_on

RNG = np.random.default_rng(0)
# One program each is sooner compiled than all their operations one by one.
sinkhorn = jax.jit(losses.sinkhorn, static_argnames=("epsilon", "iterations", "axis_name"))
swapped_prediction = jax.jit(losses.swapped_prediction, static_argnames=("epsilon", "iterations"))


def slow_codes(scores, epsilon=0.05, iterations=3):
    """Algorithm 1 of the paper's appendix, on all images that share the prototypes: [images, prototypes]."""
    q = np.exp(scores / epsilon)
    images, prototypes = q.shape
    q = q / q.sum()
    for _ in range(iterations):
        for k in range(prototypes):
            q[:, k] = q[:, k] / q[:, k].sum() / prototypes
        for i in range(images):
            q[i] = q[i] / q[i].sum() / images
    return q * images


def slow_loss(z, prototypes, temperature, full_views, past):
    """Equation 2 over all pairs of a code and another view; `past` projections come beside the codes' own view."""
    prototypes = prototypes / np.linalg.norm(prototypes, axis=-1, keepdims=True)
    z = z / np.linalg.norm(z, axis=-1, keepdims=True)
    terms = []
    for i in range(full_views):
        images = z[i] if past is None else np.concatenate([past[i], z[i]])
        codes = slow_codes(images @ prototypes.T)[-len(z[i]) :]
        for j in range(len(z)):
            for code, projection in zip(codes, z[j], strict=True):
                p = np.exp(prototypes @ projection / temperature)
                if j != i:
                    terms.append(-np.sum(code * np.log(p / p.sum())))
    return np.mean(terms)


@pytest.mark.usefixtures("x64")
class TestSinkhorn:
    scores, past = RNG.uniform(-1, 1, size=(8, 5)), RNG.uniform(-1, 1, size=(6, 5))

    def test_is_the_papers_algorithm(self):
        found = sinkhorn(self.scores, epsilon=0.05, iterations=3)
        np.testing.assert_allclose(found, slow_codes(self.scores), rtol=1e-10)

    @pytest.mark.parametrize("iterations", [1, 3])
    def test_an_images_shares_sum_to_one(self, iterations):
        found = sinkhorn(self.scores, epsilon=0.05, iterations=iterations)
        np.testing.assert_allclose(found.sum(axis=1), 1.0, rtol=1e-14)

    def test_prototypes_share_the_images_equally_in_the_end(self):
        assert np.ptp(sinkhorn(self.scores, epsilon=0.5, iterations=1).sum(axis=0)) > 0.1
        found = sinkhorn(self.scores, epsilon=0.5, iterations=20)
        np.testing.assert_allclose(found.sum(axis=0), 8 / 5, rtol=1e-9)

    def test_past_images_join_only_when_they_count(self):
        def codes(counts):
            return sinkhorn(self.scores, epsilon=0.05, iterations=3, past=self.past, past_counts=counts)

        np.testing.assert_allclose(codes(True), slow_codes(np.concatenate([self.past, self.scores]))[6:], rtol=1e-10)
        np.testing.assert_allclose(codes(False), slow_codes(self.scores), rtol=1e-10)

    def test_prototypes_share_the_batch_of_all_devices(self):
        found = jax.pmap(
            lambda scores: sinkhorn(scores, epsilon=0.05, iterations=3, past=self.past, axis_name="i"), axis_name="i"
        )(self.scores.reshape(4, 2, 5))
        expected = sinkhorn(self.scores, epsilon=0.05, iterations=3, past=self.past)
        np.testing.assert_allclose(found.reshape(8, 5), expected, rtol=1e-12)

    def test_hard_codes_do_not_overflow(self):
        found = sinkhorn(self.scores.astype(np.float32), epsilon=1e-3, iterations=3)
        assert np.all(np.isfinite(found))
        np.testing.assert_allclose(found.sum(axis=1), 1.0, rtol=1e-6)


def swav_example(collected, small):
    """The method of a configuration, its variables with a bank of given fill, and inputs of given small views."""
    settings = {
        "method__head": (16, 6),
        "method__prototypes": 7,
        "method__freeze_epochs": 0.5,
        "method__bank_size": 40,
    }
    config = method_config("swav", data__small_views=small, **settings)
    config.train.dtype = "float64"
    method = METHODS["swav"].build(config, None)
    variables = doubled(method.init(jax.random.key(3), {}, 12))
    if collected is None:
        variables = variables._replace(state={})
    else:
        rows = RNG.normal(size=variables.state["banks"].rows.shape)
        rows /= np.linalg.norm(rows, axis=-1, keepdims=True)
        banks = variables.state["banks"]._replace(rows=jnp.asarray(rows))
        variables = variables._replace(state={"banks": banks, "collected": jnp.asarray(collected)})
    h = RNG.normal(size=(6, 12)) + 0.7 * RNG.normal(size=(2 + small, 6, 12))
    return config, method, variables, h


def inputs_of(h, epoch):
    return Inputs(h[:2], None, None, None, Clock(0, epoch, 0.0), h[2:] if len(h) > 2 else None)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("collected", "small"),
    [(None, 0), (None, 3), (39, 0), (40, 3)],
    ids=["plain", "small views", "bank not full", "bank full and small views"],
)
def test_loss_is_the_papers(collected, small):
    config, method, variables, h = swav_example(collected, small)
    found = jax.jit(lambda variables: method.loss(variables, inputs_of(h, 1.0)).loss)(variables)
    params = jax.tree.map(np.asarray, variables.params)
    past = np.asarray(variables.state["banks"].rows) if collected == 40 else None
    expected = slow_loss(on_views(params["head"], h, False), params["prototypes"], config.method.temperature, 2, past)
    assert float(found) == pytest.approx(expected, rel=1e-9)


@pytest.mark.usefixtures("x64")
def test_small_views_predict_and_are_not_predicted():
    """Their own codes would depend on how the batch is paired; as predictors alone, a lone small view is a mean."""
    z, small, prototypes = RNG.normal(size=(2, 6, 4)), RNG.normal(size=(1, 6, 4)), RNG.normal(size=(5, 4))
    settings = {"temperature": 0.1, "epsilon": 0.05, "iterations": 3}
    without = swapped_prediction(z, prototypes, **settings)
    found = swapped_prediction(z, prototypes, small=small, **settings)
    codes = [slow_codes(_cosines(view, prototypes)) for view in z]
    predicted = [np.mean(np.sum(-code * np.asarray(_log_softmax(small[0], prototypes)), axis=1)) for code in codes]
    assert float(found) == pytest.approx((2 * float(without) + sum(predicted)) / 4, rel=1e-9)


def _cosines(z, prototypes):
    return z @ prototypes.T / np.linalg.norm(z, axis=1)[:, None] / np.linalg.norm(prototypes, axis=1)


def _log_softmax(z, prototypes):
    return jax.nn.log_softmax(_cosines(z, prototypes) / 0.1)


@pytest.fixture(scope="module")
def gradient_at_epoch():
    """epoch -> the gradient of all weights; one program for all epochs."""
    with jax.enable_x64(True):
        _, method, variables, h = swav_example(None, 0)

        def loss(params, epoch):
            return method.loss(variables._replace(params=params), inputs_of(h, epoch)).loss

        return partial(jax.jit(jax.grad(loss)), variables.params)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("epoch", "frozen"), [(0.0, True), (0.49, True), (0.5, False)])
def test_prototypes_are_frozen_at_first(epoch, frozen, gradient_at_epoch):
    gradient = gradient_at_epoch(epoch)
    assert np.any(gradient["prototypes"]) != frozen
    assert np.any(gradient["head"]["fc1"]["kernel"])


def test_past_projections_are_collected_from_an_epoch_on():
    config = method_config("swav", method__bank_size=5, method__bank_start=2.0)
    method = METHODS["swav"].build(config, None)
    state = start = method.init(jax.random.key(0), {}, 12).state
    update = jax.jit(method.update)
    z = RNG.normal(size=(4, 3, 2, 6))  # [step, batch, view, dim]
    counts = []
    for step, epoch in enumerate([1.0, 1.99, 2.0, 3.0]):
        state = update(state, None, {"z": jnp.asarray(z[step])}, Clock(step, epoch, 0.0))
        counts.append(int(state["collected"]))
        if epoch < 2:
            jax.tree.map(np.testing.assert_array_equal, state, start)
    assert counts == [0, 0, 3, 5]
    expected = [z[3, 2], z[2, 1], z[2, 2], z[3, 0], z[3, 1]]  # the sixth projection is over the first
    for view in range(2):
        rows = np.stack([images[view] / np.linalg.norm(images[view]) for images in expected])
        np.testing.assert_allclose(state["banks"].rows[view], rows, rtol=1e-5)


class Pooled(nn.Module):
    """Takes images of any size."""

    dtype: str
    axis_name: str | None
    features: int = 12

    @nn.compact
    def __call__(self, x, *, train):
        x = jnp.concatenate([x.mean((1, 2)), (x**2).mean((1, 2)), x.max((1, 2))], axis=-1)
        x = dense(self.features, dtype=self.dtype, name="fc")(x)
        return as_output(nn.relu(BatchNorm(train=train, dtype=self.dtype, axis_name=self.axis_name, name="bn")(x)))


def small_views(images, keys):
    x = images[:, ::2, 8:24].astype(jnp.float64) / 255
    return jnp.stack([x, x**2, 1 - x])


POOLED = REGISTRY.extended(
    encoders={"pooled": lambda *, dtype, axis_name, **_: Pooled(dtype, axis_name)},
    augmentations={"plain": lambda image_size: CustomViews(plain_views, small_views)},
)


def pooled_start(**overrides):
    pooled = {"encoder__name": "pooled", "data__augmentation": "plain", "data__small_views": 3}
    return doubled_start(method_config("swav", POOLED, **pooled, **overrides), POOLED)


@pytest.mark.usefixtures("x64")
def test_small_views_on_four_devices_do_what_they_do_on_one():
    config, state = pooled_start(train__accumulate=2, method__head=(6,))
    single, single_metrics = step_on(1, config, POOLED)(state, BATCH)
    parallel, metrics = step_on(4, config, POOLED)(state, BATCH)
    for name, value in single_metrics.items():
        assert float(metrics[name]) == pytest.approx(float(value), rel=1e-8), name
    np.testing.assert_allclose(parallel.mask, single.mask, rtol=1e-8)
    assert not np.array_equal(single.mask, state.mask)


@pytest.mark.usefixtures("x64")
def test_the_method_sees_small_views_and_redundancy_reduction_does_not():
    config, state = pooled_start(loss__drr="true")
    objective = Objective(config, build_model(config, axis_name=None, registry=POOLED), None)
    model_state = {"batch_stats": state.batch_stats, "method_state": state.method_state}

    @jax.jit
    def metrics_with(small):
        views = plain_views(BATCH.images, None)
        sample = Sample(views, small, None, BATCH.labels, BATCH.indices, Clock(0, 0.0, 0.0))
        return objective.total_loss(state.params, state.mask, model_state, sample)[2].metrics

    small = small_views(BATCH.images, None)
    first, second = metrics_with(small), metrics_with(small[:, ::-1])
    assert float(first["loss_drr"]) == float(second["loss_drr"])
    assert float(first["loss_method"]) != pytest.approx(float(second["loss_method"]), rel=1e-3)


def test_small_views_show_a_smaller_part_at_a_place_of_their_own():
    """On a picture whose colours are its coordinates, a view's colours tell which part of it one sees."""
    ramp = np.broadcast_to(np.arange(0, 256, 4, dtype=np.uint8), (64, 64))
    images = jnp.asarray(np.broadcast_to(np.stack([ramp, ramp.T, ramp], axis=-1), (40, 64, 64, 3)))
    specs = PRESETS["eval"](64)
    full, small = make_multi_crop(specs, image_size=64, views=2, small_size=24, small_views=3, split=0.3)
    keys = example_keys(0, 0, jnp.arange(40))
    seen = {name: jax.jit(augment)(images, keys) for name, augment in {"full": full, "small": small}.items()}
    assert seen["full"].shape == (2, 40, 64, 64, 3)
    assert seen["small"].shape == (3, 40, 24, 24, 3)

    def part(view):
        """Area as a share of the picture's, and where the crop is between its leftmost and rightmost place."""
        columns = (view * 0.229 + 0.485)[..., 0] * 64
        rows = (view * 0.224 + 0.456)[..., 1] * 64
        # From the middle of the first pixel to that of the last, and half a pixel at either end.
        wide, high = (np.ptp(x, axis=(-2, -1)) * view.shape[-2] / (view.shape[-2] - 1) for x in (columns, rows))
        left = columns.min((-2, -1)) - wide / view.shape[-2] / 2
        return wide * high / 64**2, left / np.where(wide < 62, 64 - wide, np.nan)

    (full_area, full_place), (small_area, small_place) = (part(np.asarray(view)) for view in seen.values())
    assert np.all(full_area > 0.25)
    assert np.all(small_area < 0.35)
    assert small_area.min() < 0.12
    assert np.nanmean(np.abs(full_place[0] - small_place[0])) > 0.1


def test_conv_encodes_smaller_images_with_the_same_weights():
    settings = {"width": 1 / 16, "stem": "cifar", "image_size": 64, "dtype": "float32", "axis_name": None}
    encoder = make_encoder("conv", **settings)
    assert encoder.smallest == 29
    variables = jax.eval_shape(lambda: encoder.init(jax.random.key(0), jnp.zeros((2, 64, 64, 3)), train=False))
    features = jax.eval_shape(lambda v: encoder.apply(v, jnp.zeros((2, 29, 29, 3)), train=False), variables)
    assert features.shape == (2, 16)
    with pytest.raises(ValueError, match=r"x.shape=\(2, 28, 28, 3\); expected images of 64x64, or fewer pixels"):
        jax.eval_shape(lambda v: encoder.apply(v, jnp.zeros((2, 28, 28, 3)), train=False), variables)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"method__name": "simclr"}, r"small_views=2; expected 0 for config.method.name='simclr': only 'swav' can"),
        ({"encoder__name": "fc"}, r"config.data.small_size=16; expected 32 to 32 for config.encoder.name='fc'"),
        ({"encoder__name": "conv", "data__small_size": 14}, r"small_size=14; expected 15 to 32 for .*'conv'"),
        ({"encoder__name": "resnet18", "data__small_size": 33}, r"small_size=33; expected 1 to 32"),
        ({"data__options__views": 2}, r"small_views=2; expected 0 with config.data.options.views"),
    ],
    ids=["another method", "dense layers", "too small", "too large", "cropped on the host"],
)
def test_small_views_that_cannot_be_are_refused(overrides, message):
    with pytest.raises(ConfigError, match=message):
        method_config("swav", data__small_views=2, **overrides)
