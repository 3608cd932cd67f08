"""The table of rules against the primitives of the installed JAX: what appears, goes or changes its kind is seen."""

import json
import pathlib
import subprocess
import sys

import pytest

from ir_passes.jaxpr import ir
from ir_passes.kernels.memory import KERNEL_INDEX, UNINITIALIZED
from ir_passes.proof.registry import ELEMENTWISE, IDENTITIES
from ir_passes.proof.rules.all import RULES

WITHOUT_RULE = set(
    """
    addupdate after_all all_gather_reduced call call_hi_primitive call_hi_primitive_linearized check custom_lin
    custom_linear_solve dce_sink dot_product_attention_bwd_wrapper dot_product_attention_fp8_bwd_wrapper
    dot_product_attention_fp8_fwd_wrapper dot_product_attention_fwd_wrapper eval_jaxpr freeze from_edtype geqp3 geqrf
    get hessenberg inspect_sharding new_ref ormqr pbroadcast_dynamic preduced program_order reduced_vary_cast
    reduced_vary_cast_p remat_opt rng_uniform scaled_dot scaled_matmul scaled_matmul_wrapper select_and_gather_add
    select_and_scatter stage
    swap symmetric_product tie to_edtype unreduced_pmax unreduced_pmin unreduced_psum unreduced_reduce_scatter
    vary_unreduced_cast vary_unreduced_cast_p with_memory_space_constraint xla_metadata_call xla_metadata_value
    """.split()
)
"""Primitives of jax 0.10 to 0.12 that a proof refuses."""
ONLY_LATER = {"log2", "one_minus_square", "polynomial"}
ONLY_EARLIER = {"empty"}
UNREGISTERED = {"shard_map", "closed_call", "core_call", "checkpoint", "pjit"}
"""Primitives that cannot be batched by the table, and names of calls that only some versions use."""
OF_KERNELS = {UNINITIALIZED, KERNEL_INDEX}
"""Operations of the plain programs of kernels, which are not JAX's."""
OTHER_ELEMENTWISE = {"add_any", "clamp", "convert_element_type"}
"""Elementwise primitives with a batching rule of their own."""


@pytest.fixture(scope="module")
def primitives() -> dict[str, set[str]]:
    """The primitives of a new process: imports of other tests would add their own."""
    script = pathlib.Path(__file__).parents[2] / "reference/proofs/installed_primitives.py"
    found = subprocess.run([sys.executable, str(script)], check=True, capture_output=True, text=True)
    return {name: set(values) for name, values in json.loads(found.stdout).items()}


def test_every_primitive_has_a_rule_or_is_known_to_have_none(primitives: dict[str, set[str]]) -> None:
    assert primitives["installed"] - set(RULES) <= WITHOUT_RULE


def test_every_rule_is_for_a_primitive_that_exists(primitives: dict[str, set[str]]) -> None:
    assert set(RULES) - primitives["installed"] <= ONLY_LATER | ONLY_EARLIER | UNREGISTERED | OF_KERNELS


def test_no_primitive_has_both() -> None:
    assert not WITHOUT_RULE & set(RULES)
    assert set(ir.CALLS) <= set(RULES)


def test_elementwise_primitives_are_those_that_jax_batches_element_by_element(primitives: dict[str, set[str]]) -> None:
    jax_says = primitives["elementwise"]
    assert set(ELEMENTWISE) - jax_says <= OTHER_ELEMENTWISE | ONLY_LATER
    # The incomplete beta function is batched so, and computed by a loop that all elements share.
    others = {*IDENTITIES, "bitcast_convert_type", "pbroadcast", "regularized_incomplete_beta"}
    keyed = {name for name in jax_says if name.startswith("random_")}
    assert jax_says - set(ELEMENTWISE) - others - keyed <= WITHOUT_RULE
