"""Every method's loss against its paper's definition, loop by loop in float64 NumPy, heads included."""

import math

import jax
import numpy as np
import pytest

from metamask_jax.core.losses import cross_entropy, info_nce, info_nce_in_batch, negative_cosine
from metamask_jax.methods import METHODS, Clock, Inputs
from metamask_jax.methods.queue import Queue
from tests import references
from tests.methods.conftest import every_method, method_config
from tests.references import central_difference, cosine, relative_error
from tests.tiny import doubled

DIM, LABELS = 12, np.array([0, 2, -1, 1, 1, 2], np.int32)


def linear_head(params, h, last_norm):
    """Linear-BatchNorm-ReLU layers of one view [batch, dim], the last without ReLU; BatchNorm by the batch itself."""
    count = sum(name.startswith("fc") for name in params)
    for i in range(1, count + 1):
        h = h @ params[f"fc{i}"]["kernel"] + params[f"fc{i}"]["bias"]
        if i < count or last_norm:
            h = (h - h.mean(0)) / np.sqrt(h.var(0) + 1e-5) * params[f"bn{i}"]["scale"] + params[f"bn{i}"]["bias"]
        if i < count:
            h = np.maximum(h, 0)
    return h


def on_views(params, h, last_norm):
    return np.stack([linear_head(params, view, last_norm) for view in h])


def barlow_twins(config, params, state, h, target_h):
    return references.redundancy_reduction(on_views(params, h, True), 0.005, centered=True, unbiased=True)


def byol(config, params, state, h, target_h):
    """Equation 2, the squared distance of unit vectors, once for each of the two directions."""
    p = on_views(params["predictor"], on_views(params["head"], h, False), False)
    z = on_views(state["head"], target_h, False)
    p, z = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (p, z))
    return sum(np.mean(np.sum((p[i] - z[1 - i]) ** 2, axis=-1)) for i in (0, 1))


def simsiam(config, params, state, h, target_h):
    """Equation 2: D(p1, z2) / 2 + D(p2, z1) / 2."""
    z = on_views(params["head"], h, True)
    p = on_views(params["predictor"], z, False)
    return sum(np.mean([-cosine(a, b) for a, b in zip(p[i], z[1 - i], strict=True)]) for i in (0, 1)) / 2


def nnclr(config, params, state, h, target_h):
    """Equation 3, symmetrised: rows are neighbours of one view, columns predictions of the other."""
    z = on_views(params["head"], h, True)
    p = on_views(params["predictor"], z, False)
    support = np.asarray(state["support"].rows)
    total = 0.0
    for i in (0, 1):
        for image, projection in enumerate(z[i]):
            neighbor = support[np.argmax([cosine(row, projection) for row in support])]
            scores = [math.exp(cosine(neighbor, other) / config.method.temperature) for other in p[1 - i]]
            total += -math.log(scores[image] / sum(scores))
    return total / (2 * h.shape[1])


def moco(config, params, state, h, target_h):
    """Equation 1: the query of the first view, the key of the second, the queue."""
    queries, keys = linear_head(params, h[0], False), linear_head(state["head"], target_h[1], False)
    terms = []
    for query, key in zip(queries, keys, strict=True):
        positive = math.exp(cosine(query, key) / config.method.temperature)
        negatives = [
            math.exp(cosine(query, row) / config.method.temperature) for row in np.asarray(state["queue"].rows)
        ]
        terms.append(-math.log(positive / (positive + sum(negatives))))
    return np.mean(terms)


def simclr(config, params, state, h, target_h):
    return references.nt_xent(on_views(params, h, True), config.method.temperature, np.asarray(state["bank"].rows))


def dcl(config, params, state, h, target_h):
    z, method = on_views(params, h, True), config.method
    return references.debiased_nt_xent(z, method.temperature, method.positive_prior, np.asarray(state["bank"].rows))


def hcl(config, params, state, h, target_h):
    z, method, bank = on_views(params, h, True), config.method, np.asarray(state["bank"].rows)
    return references.hard_nt_xent(z, method.temperature, method.positive_prior, method.concentration, bank)


def supervised(config, params, state, h, target_h):
    terms = []
    for logits in on_views(params, h, False):
        for row, label in zip(logits, LABELS, strict=True):
            if label >= 0:
                terms.append(-math.log(math.exp(row[label]) / sum(math.exp(x) for x in row)))
    return np.mean(terms)


DEFINITIONS = {
    f.__name__: f for f in (barlow_twins, byol, simsiam, nnclr, moco, simclr, dcl, hcl, supervised)
}  # those of other methods stand in files of their own


def example(name):
    """A method with its variables, features of two related views, and those of other encoder weights."""
    config = method_config(name).copy_and_resolve_references()
    config.train.dtype = "float64"
    method = METHODS[name].build(config, None)
    rng = np.random.default_rng(1)
    h = rng.normal(size=(6, DIM)) + 0.7 * rng.normal(size=(3, 2, 6, DIM))
    variables = doubled(method.init(jax.random.key(3), {"weight": h[2]}, DIM))
    return config, method, variables._replace(state=jax.tree.map(moved, variables.state, is_leaf=is_queue)), h[0], h[1]


def is_queue(node):
    return isinstance(node, Queue)


def moved(leaf):
    """Targets start as copies of what is trained: moved apart, so that mistaking one for the other shows."""
    if is_queue(leaf) or leaf.dtype.kind != "f":
        return leaf
    return leaf * (1.0 + 0.3 * np.sin(np.arange(leaf.size).reshape(leaf.shape)))


def inputs_of(h, target_h):
    """Encoding with other weights gives other features, which depend on the weights as a real encoder's do."""

    def encode(encoder_params):
        return target_h + 0.0 * jax.numpy.sum(encoder_params["weight"])

    return Inputs(h, encode, LABELS, np.arange(6, dtype=np.int32), Clock(0, 0.0, 0.0))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", DEFINITIONS)
def test_loss_is_the_papers(name):
    config, method, variables, h, target_h = example(name)
    found = jax.jit(lambda variables: method.loss(variables, inputs_of(h, target_h)).loss)(variables)
    params = jax.tree.map(np.asarray, variables.params)
    assert float(found) == pytest.approx(DEFINITIONS[name](config, params, variables.state, h, target_h), rel=1e-9)


@pytest.mark.usefixtures("x64")
@every_method
def test_no_gradient_reaches_targets_and_queues(name):
    _, method, variables, h, target_h = example(name)
    leaves, structure = jax.tree.flatten(variables.state)
    floating = [i for i, leaf in enumerate(leaves) if leaf.dtype.kind == "f"]

    def loss(chosen):
        replaced = list(leaves)
        for i, leaf in zip(floating, chosen, strict=True):
            replaced[i] = leaf
        state = jax.tree.unflatten(structure, replaced)
        return method.loss(variables._replace(state=state), inputs_of(h, target_h)).loss

    for gradient in jax.jit(jax.grad(loss))([leaves[i] for i in floating]):
        assert not np.any(gradient)


@pytest.mark.usefixtures("x64")
class TestPairs:
    """The losses the methods share, and where their gradients go."""

    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 2, 4, 3))
    negatives = rng.normal(size=(5, 3))

    @pytest.mark.parametrize("views", [2, 3])
    def test_negative_cosine_pairs_each_view_with_the_others(self, views):
        p, z = np.random.default_rng(2).normal(size=(2, views, 4, 3))
        pairs = [(i, j) for i in range(views) for j in range(views) if i != j]
        expected = np.mean([-cosine(p[i, n], z[j, n]) for i, j in pairs for n in range(4)])
        assert float(jax.jit(negative_cosine)(p, z)) == pytest.approx(expected, rel=1e-12)

    def test_targets_get_no_gradient_and_predictions_theirs(self):
        to_p, to_z = jax.jit(jax.grad(negative_cosine, argnums=(0, 1)))(self.a, self.b)
        assert not np.any(to_z)
        expected = central_difference(jax.jit(lambda p: negative_cosine(p, self.b)), self.a, 1e-5)
        assert relative_error(to_p, expected) < 1e-8

    def test_keys_and_negatives_get_no_gradient_and_queries_theirs(self):
        @jax.jit
        def loss(queries, keys, negatives):
            return info_nce(queries, keys, negatives, temperature=0.2)

        gradient = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))
        to_queries, to_keys, to_negatives = gradient(self.a, self.b, self.negatives)
        assert not np.any(to_keys)
        assert not np.any(to_negatives)
        expected = central_difference(lambda q: loss(q, self.b, self.negatives), self.a, 1e-5)
        assert relative_error(to_queries, expected) < 1e-8

    def test_bad_arguments_are_named(self):
        with pytest.raises(ValueError, match=r"targets\.shape=\(2, 3, 3\); expected that of predictions, \(2, 4, 3\)"):
            negative_cosine(self.a, self.b[:, :3])
        with pytest.raises(ValueError, match=r"temperature=0; expected a number > 0"):
            info_nce(self.a, self.b, self.negatives, temperature=0)
        with pytest.raises(ValueError, match=r"temperature=-1; expected a number > 0"):
            info_nce_in_batch(self.a[0], self.b[0], temperature=-1)
        with pytest.raises(TypeError, match=r"dtype=int64; expected a floating-point type"):
            cross_entropy(np.ones((2, 3), int), np.zeros(2, int))


@pytest.mark.usefixtures("x64")
def test_simsiam_does_not_learn_through_its_targets():
    """Its gradient is that of the loss with the projections of the target side held fixed."""
    _, method, variables, h, target_h = example("simsiam")
    params = jax.tree.map(np.asarray, variables.params)
    z_fixed = on_views(params["head"], h, True)

    def loss_with_fixed_targets(bias):
        head = params["head"] | {"fc1": params["head"]["fc1"] | {"kernel": bias}}
        p = on_views(params["predictor"], on_views(head, h, True), False)
        return sum(np.mean([-cosine(a, b) for a, b in zip(p[i], z_fixed[1 - i], strict=True)]) for i in (0, 1)) / 2

    gradient = jax.grad(lambda params: method.loss(variables._replace(params=params), inputs_of(h, target_h)).loss)
    found = jax.jit(gradient)(variables.params)["head"]["fc1"]["kernel"]
    expected = central_difference(loss_with_fixed_targets, params["head"]["fc1"]["kernel"], 1e-6)
    assert relative_error(found, expected) < 1e-6
