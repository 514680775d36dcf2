"""SimSiam (Chen & He 2021): predict the other view's projection, through which no gradient flows."""

import jax
from ml_collections import ConfigDict

from metamask_jax.core.losses import negative_cosine
from metamask_jax.core.types import PyTree
from metamask_jax.methods.base import Inputs, Method, Output, Recipe, Variables, keep_state
from metamask_jax.methods.siamese import Siamese


def simsiam(config: ConfigDict, axis_name: str | None) -> Method:
    """The predictor keeps its learning rate: it has to follow the representation to the end."""
    heads = Siamese.build(config, axis_name, last_norm=True)

    def init(key: jax.Array, encoder_params: PyTree, dim: int) -> Variables:
        del encoder_params
        return Variables(*heads.init(key, dim), state={})

    def loss(variables: Variables, inputs: Inputs) -> Output:
        z, p, batch_stats = heads.apply(variables.params, variables.batch_stats, inputs.h)
        return Output(negative_cosine(p, z, axis_name=axis_name), batch_stats, memory={})

    return Method(init, loss, keep_state, constant_rate=("predictor",))


SIMSIAM = Recipe(simsiam, defaults={"head": (2048, 2048, 2048), "predictor": 512}, min_views=2)
