"""A state's computed size equals its arrays' size."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from tiny_variants import variant

from models import family_of
from models.state.state import state_array


@pytest.mark.parametrize("name", ["falcon_base", "ling_base", "lfm2_base"])
@pytest.mark.parametrize("context", [1, 513])
def test_size_of_a_state(name: str, context: int) -> None:
    """Attention next to a recurrence, compressed keys, convolution inputs alone."""
    config = variant(name).config
    family = family_of(config)
    model = nnx.eval_shape(lambda: family.build(family.read_config(config), nnx.Rngs(0)))

    def total(lanes: int) -> int:
        arrays = jax.eval_shape(lambda: model.init_state(lanes, context, jnp.bfloat16))
        return sum(array.size * array.dtype.itemsize for array in jax.tree.leaves(arrays))

    single, double = total(1), total(2)
    size = model.state_size(jnp.bfloat16)
    assert size.of(context) == double - single == size.fixed + size.token * {1: 256, 513: 640}[context]
    assert 2 * single - double == size.token * 128, "the null page"


def test_formula() -> None:
    cache = state_array(kv_head=2, context=None, key=24)
    assert cache.formula(jnp.float32) == "kv_head*key*4 B = 2*24*4 B = 192 B per token"
    assert cache.zeros(3, 7, jnp.bfloat16).shape == (7, 2, 128, 24)
    matrix = state_array(jnp.float32, value_head=8, key=16, value=128)
    assert matrix.formula(jnp.bfloat16) == "value_head*key*value*4 B = 8*16*128*4 B = 65,536 B"
    assert matrix.zeros(3, 300, jnp.bfloat16).dtype == jnp.float32
