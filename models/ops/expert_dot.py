"""Grouped matrix product of MoE layers: each row times the matrix of its own expert, in several lowerings.

No lowering has an expert capacity and none drops a token. The fastest one depends on the number of rows and on the
device, so the choice among those for CPUs is made here and nowhere else.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float, Float32, Int32

from models.ops.float32 import full_einsum
from models.ops.quantised_weight import QuantisedWeight
from models.sharding.varying import varying_like

MAX_GATHER_ROWS = 32
"""Rows up to which gathering one matrix per row is the fastest form on a CPU."""
BLOCK = 16
"""Rows of one expert that the block form multiplies in one product."""

TokenRows = Float32[Array, "row in"]
ExpertWeights = Float[Array, "expert out in"]
ExpertIds = Int32[Array, "row"]
ExpertRows = Float32[Array, "row out"]


@partial(jax.jit, static_argnames=("absent", "ragged"))
def expert_dot(
    x: TokenRows, weight: ExpertWeights, expert: ExpertIds, absent: bool = False, ragged: bool = False
) -> ExpertRows:
    """Return `y[r] = weight[expert[r]] @ x[r]`, accumulated in float32; rows are rounded to the dtype of the weight.

    Args:
        x: rows.
        weight: one `[out, in]` matrix per expert, in the checkpoint's dtype.
        expert: the expert of each row, in `[0, number of experts)`.
        absent: a row may have the number of experts in place of an expert, for an expert of another device (expert
            parallel); its result is zero.
        ragged: use `ragged_form`, as on GPUs and TPUs.
    """
    return grouped_product(x, weight, expert, absent, ragged)


def grouped_product(
    x: TokenRows, weight: ExpertWeights | QuantisedWeight, expert: ExpertIds, absent: bool, ragged: bool
) -> ExpertRows:
    """Return what `expert_dot` says; quantised experts are dequantised where they are multiplied."""
    if not absent:
        return _product(x, weight, expert, ragged)
    here = expert < weight.shape[0]
    if not ragged:
        # The ragged form multiplies only the rows of its groups; for the other forms any expert will do.
        expert = jnp.where(here, expert, 0)
    return jnp.where(here[:, None], _product(x, weight, expert, ragged), 0.0)


def _product(x: TokenRows, weight: ExpertWeights | QuantisedWeight, expert: ExpertIds, ragged: bool) -> ExpertRows:
    if ragged:
        return ragged_form(x, weight, expert)
    if x.shape[0] <= MAX_GATHER_ROWS:
        return gather_form(x, weight, expert)
    return block_form(x, weight, expert)


def _take(weight: ExpertWeights | QuantisedWeight, taken: Callable[[Array], Array]) -> Float[Array, "*place out in"]:
    """Return the matrices of the experts that `taken` takes of an array with one entry for each expert."""
    return weight.each(taken).numbers() if isinstance(weight, QuantisedWeight) else taken(weight)


def _precision(weight: ExpertWeights | QuantisedWeight) -> lax.Precision | None:
    return lax.Precision.HIGHEST if weight.dtype == "float32" else None


def gather_form(x: TokenRows, weight: ExpertWeights | QuantisedWeight, expert: ExpertIds) -> ExpertRows:
    """Gather a matrix for every row: the form for the few rows of a decode step."""
    matrices, rounded = (
        _take(weight, lambda one: one[expert]).astype(jnp.float32),
        x.astype(weight.dtype).astype(jnp.float32),
    )
    return full_einsum("roi,ri->ro", matrices, rounded)


def block_form(
    x: TokenRows, weight: ExpertWeights | QuantisedWeight, expert: ExpertIds, block: int = BLOCK
) -> ExpertRows:
    """Sort rows by expert, fill each group up to whole blocks, and multiply block by block."""
    count, experts = x.shape[0], weight.shape[0]
    blocks = count // block + min(count, experts)
    order, x = jnp.argsort(expert, stable=True), varying_like(x, expert)
    owner = expert[order]
    sizes = jnp.zeros((experts,), jnp.int32).at[expert].add(1)
    padded = -(-sizes // block) * block
    ends = jnp.cumsum(padded)
    place = (ends - padded)[owner] + jnp.arange(count, dtype=jnp.int32) - (jnp.cumsum(sizes) - sizes)[owner]
    filled = jnp.zeros((blocks * block, x.shape[1]), weight.dtype).at[place].set(x[order].astype(weight.dtype))
    # Blocks past the last group are all zero, so their expert does not matter.
    block_expert = jnp.searchsorted(ends, jnp.arange(blocks, dtype=jnp.int32) * block, side="right")
    block_expert = jnp.minimum(block_expert, experts - 1).astype(jnp.int32)

    def one(inputs: tuple[Array, Array]) -> Array:
        rows, index = inputs
        return lax.dot_general(
            rows,
            _take(weight, lambda one: lax.dynamic_index_in_dim(one, index, keepdims=False)),
            (((1,), (1,)), ((), ())),
            precision=_precision(weight),
            preferred_element_type=jnp.float32,
        )

    y = lax.map(one, (filled.reshape((blocks, block, -1)), block_expert)).reshape((blocks * block, -1))
    return jnp.zeros((count, weight.shape[1]), jnp.float32).at[order].set(y[place])


def ragged_form(x: TokenRows, weight: ExpertWeights | QuantisedWeight, expert: ExpertIds) -> ExpertRows:
    """Sort rows by expert and let the backend multiply the ragged groups (`jax.lax.ragged_dot`).

    Rows of absent experts come last and are in no group: their results are undefined.
    """
    order, x = jnp.argsort(expert, stable=True), varying_like(x, expert)
    sizes = jnp.zeros((weight.shape[0],), jnp.int32).at[expert].add(1)
    plain = weight.numbers() if isinstance(weight, QuantisedWeight) else weight
    y = lax.ragged_dot(
        x[order].astype(weight.dtype),
        jnp.swapaxes(plain, 1, 2),
        sizes,
        precision=_precision(weight),
        preferred_element_type=jnp.float32,
    )
    return jnp.zeros_like(y).at[order].set(y)
