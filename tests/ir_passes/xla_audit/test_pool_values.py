"""Values that are pool versions, and values that only have its size."""

import jax
import jax.numpy as jnp
from audited_steps import LANES, Step
from jax.experimental.layout import Layout, with_layout_constraint

from ir_passes import Lane, LaneContract, Pool, Shared
from ir_passes.xla_audit.dataflow import live_values


def test_an_array_of_the_pools_size_made_from_part_of_its_rows_is_no_copy() -> None:
    """One fusion pads a part of every row to the pool's size."""
    row_major = Layout(major_to_minor=(0, 1))

    def step(pool, x):
        part = jnp.pad(jnp.sin(pool[:, :2]), [(0, 0), (0, 14)]).astype(jnp.bfloat16)
        weight = jnp.eye(16, dtype=jnp.bfloat16)
        product = jax.lax.dot_general(weight, part, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)
        turned = with_layout_constraint(with_layout_constraint(product, row_major).T, row_major)
        return pool + x + turned.sum(axis=1, keepdims=True), turned

    contract = LaneContract((Pool("p"), Lane()), (Pool("p"), Lane()))
    result = Step(step, contract, (jnp.ones((LANES, 16)),) * 2)
    assert any("copy" in path.name for path in live_values(result.executable()).executed)
    report = result.audit()
    assert not report.copies and not report.findings


def test_an_array_of_the_pools_size_that_the_next_state_is_a_product_of_is_no_copy() -> None:
    """A layer's queries may have the state's size through the products between them."""
    row_major = Layout(major_to_minor=(0, 1))

    def step(pool, x, weight):
        product = jax.lax.dot_general(weight, x, (((1,), (1,)), ((), ())))
        turned = with_layout_constraint(with_layout_constraint(product, row_major).T, row_major)
        return pool + jax.lax.dot_general(turned, weight, (((1,), (1,)), ((), ()))), turned

    contract = LaneContract((Pool("p"), Lane(), Shared()), (Pool("p"), Lane()))
    result = Step(step, contract, (*(jnp.ones((LANES, 16)),) * 2, jnp.eye(16)))
    assert any("copy" in path.name for path in live_values(result.executable()).executed)
    report = result.audit()
    assert not report.copies and not report.findings
