"""The tables of primitives and rules cover the primitives of the installed JAX."""

import json
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from ir_passes.jaxpr import ir, primitives
from ir_passes.proof.registry import RULES

ONLY_LATER = {"log2", "one_minus_square", "polynomial"}
ONLY_EARLIER = {"empty"}
UNREGISTERED = {"shard_map", "closed_call", "core_call", "checkpoint", "pjit", "platform_index"}
"""Primitives that cannot be batched by the table, and names of calls that only some versions use."""
OF_KERNELS = {"uninitialized", "kernel_index", "kernel_padding", "or_old"}
"""Operations of the plain programs of kernels, which are not JAX's."""
OTHER_ELEMENTWISE = {"add_any", "clamp", "convert_element_type", "select_n"}
"""Elementwise primitives with a special batching rule."""

UNSUPPORTED = frozenset(
    """
    addupdate after_all all_gather_reduced call call_hi_primitive call_hi_primitive_linearized check custom_lin
    dce_sink dot_product_attention_bwd_wrapper dot_product_attention_fp8_bwd_wrapper
    dot_product_attention_fp8_fwd_wrapper dot_product_attention_fwd_wrapper freeze from_edtype geqp3 geqrf get
    hessenberg inspect_sharding new_ref ormqr pbroadcast_dynamic precv preduced program_order psend
    ragged_all_to_all reduced_vary_cast regularized_incomplete_beta
    reduced_vary_cast_p remat_opt rng_uniform scaled_dot scaled_matmul scaled_matmul_wrapper select_and_gather_add
    stage swap symmetric_product tie to_edtype unreduced_pmax unreduced_pmin unreduced_psum
    unreduced_reduce_scatter vary_unreduced_cast vary_unreduced_cast_p with_memory_space_constraint
    xla_metadata_call xla_metadata_value select_and_scatter
    """.split()
)
"""Primitives without a rule in the proof."""


@pytest.fixture(scope="module")
def names() -> dict[str, set[str]]:
    """Return the primitives of a new process, without imports of other tests."""
    script = pathlib.Path(__file__).parents[2] / "reference/proofs/installed_primitives.py"
    process = subprocess.run([sys.executable, str(script)], check=True, capture_output=True, text=True)
    return {label: set(values) for label, values in json.loads(process.stdout).items()}


def test_every_installed_primitive_has_a_rule_or_is_unsupported(names: dict[str, set[str]]) -> None:
    assert names["installed"] <= set(RULES) | UNSUPPORTED


def test_a_primitive_has_one_row() -> None:
    rows = [name for row in primitives._ROWS.values() for name in row.split()]
    assert sorted(rows) == sorted(primitives.PRIMITIVES)


def test_primitives_have_rules_unless_they_are_unsupported() -> None:
    assert not set(RULES) & UNSUPPORTED
    assert set(primitives.PRIMITIVES) - set(RULES) <= UNSUPPORTED


def test_every_rule_is_for_a_primitive_that_exists(names: dict[str, set[str]]) -> None:
    assert set(RULES) - names["installed"] <= ONLY_LATER | ONLY_EARLIER | UNREGISTERED | OF_KERNELS


def test_elementwise_primitives_are_those_that_jax_batches_element_by_element(names: dict[str, set[str]]) -> None:
    batched = names["elementwise"]
    assert primitives.ELEMENTWISE - batched <= OTHER_ELEMENTWISE | ONLY_LATER
    # The incomplete beta function is batched so, and computed by a loop that all elements share.
    exceptions = {*primitives.IDENTITIES, "bitcast_convert_type", "pbroadcast", "regularized_incomplete_beta"}
    keyed = {name for name in batched if name.startswith("random_")}
    assert batched - primitives.ELEMENTWISE - exceptions - keyed <= UNSUPPORTED


EXAMPLES = {
    "reduce": lambda: lax.reduce(np.ones(3), 0.0, lax.add, (0,)),
    "custom reduce": lambda: lax.reduce(np.ones(3), 0.0, lambda x, y: x + 2 * y, (0,)),
    "reduce_window": lambda: lax.reduce_window(np.ones(3), 1.0, lambda x, y: x * y + 1, (2,), (1,), "VALID"),
    "scatter-add": lambda: jnp.ones(3).at[jnp.array([0])].add(1.0),
    "argmax": lambda: jnp.argmax(np.ones(3)),
    "cumsum": lambda: jnp.cumsum(np.ones(3)),
    "scan": lambda: lax.scan(lambda c, x: (c + x, c), 0.0, np.ones(3)),
    "while": lambda: lax.while_loop(lambda x: x < 3, lambda x: x + 1, 0),
    "cond": lambda: lax.cond(jnp.ones(3).sum() > 2, lambda: 1, lambda: 2),
    "jit": lambda: jax.jit(lambda x: x + 1)(1),
    "remat": lambda: jax.checkpoint(lambda x: x + 1)(1),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_programs_inside_an_operation_are_bodies_or_combine_scalars(name: str) -> None:
    for eqn in ir.all_eqns(ir.trace(EXAMPLES[name]).jaxpr):
        inner = [*ir.sub_jaxprs(eqn)]
        assert bool(inner) == (eqn.primitive.name in primitives.WITH_BODIES | primitives.SCALAR_BODIES)
        if eqn.primitive.name in primitives.SCALAR_BODIES:
            assert {ir.shape_of(var) for body in inner for var in body.invars} == {()}
