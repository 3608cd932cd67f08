"""Every form of the experts' product: its numbers on a GPU, and its precision."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from traced_operations import traced_operations

from models.ops.expert_dot import block_form, expert_dot, gather_form, grouped_form, ragged_form


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_expert_products_agree(dtype: Any) -> None:
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(70, 64)), jnp.float32)
    weight = jnp.asarray(rng.normal(size=(8, 48, 64)), dtype)
    expert = jnp.asarray(rng.integers(0, 8, 70), jnp.int32)
    # a narrower weight meets rounded rows
    exact, rounded = (np.asarray(array.astype(jnp.float32), np.float64) for array in (weight, x.astype(dtype)))
    want = np.einsum("roi,ri->ro", exact[np.asarray(expert)], rounded)
    for form in (expert_dot, gather_form, block_form, grouped_form):
        np.testing.assert_allclose(jax.jit(form)(x, weight, expert), want, atol=1e-3)


@pytest.mark.parametrize(("form", "count"), [(gather_form, 1), (block_form, 1), (grouped_form, 2), (ragged_form, 1)])
def test_products_of_experts_are_in_full_precision(form: Any, count: int) -> None:
    """The grouped form has a second pass."""
    x, weight = jnp.zeros((40, 8), jnp.float32), jnp.zeros((3, 4, 8), jnp.float32)
    operations = traced_operations(form, x, weight, jnp.zeros(40, jnp.int32))
    products = [item for item in operations if item.name in ("dot_general", "ragged_dot_general")]
    assert len(products) == count and all("float32" in item.inputs for item in products)
    assert {kind for item in products for kind in jax.tree.leaves(item.params["precision"])} == {
        jax.lax.Precision.HIGHEST
    }
