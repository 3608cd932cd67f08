"""Grouped matrix product of MoE layers: each row times the matrix of its own expert, in several lowerings.

No lowering has an expert capacity and none drops a token. The fastest one depends on the number of rows and on the
platform, so the choice is made here and nowhere else.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Bool, Float, Float32, Int32

from models.ops.expert_rows import KERNEL, expert_rows
from models.ops.float32 import full_einsum
from models.ops.kernels import MODES, RowKernel, combinations
from models.ops.quantised_weight import QuantisedWeight
from models.ops.recurrences.chunk_decay import power_of_two
from models.sharding.devices import SINGLE_DEVICE, Devices
from models.sharding.varying import varying_like

MAX_GATHER_ROWS = 32
"""Rows up to which gathering one matrix per row is the fastest form on a CPU."""
BLOCK = 16
"""Rows of one expert that the block form multiplies in one product."""
MAX_SORTED_ROWS = 4
"""Rows for each expert, on average, up to which a GPU multiplies each row by itself."""
MIN_PASS_ROWS = 16
"""Rows of each expert that a pass of the grouped form has at least: the least that a GPU's matrix units multiply."""
PASS_TILE = 64
"""Rows of each expert that a pass has a multiple of, where it has more than these: rows of a tile of a product."""
FURTHER_PASSES = "further_passes"
"""Named scope of the loop over the passes of the grouped form after the first."""

PLATFORMS = ("cpu", "gpu", "tpu")
"""Platforms that a product has a form for."""

TokenRows = Float32[Array, "row in"]
ExpertWeights = Float[Array, "expert out in"]
ExpertIds = Int32[Array, "row"]
ExpertRows = Float32[Array, "row out"]


@partial(jax.jit, static_argnames=("absent", "devices"))
def expert_dot(
    x: TokenRows,
    weight: ExpertWeights,
    expert: ExpertIds,
    absent: bool = False,
    devices: Devices = SINGLE_DEVICE,
) -> ExpertRows:
    """Return `y[r] = weight[expert[r]] @ x[r]`, accumulated in float32; rows are rounded to the dtype of the weight.

    Args:
        x: rows.
        weight: one `[out, in]` matrix per expert, in the checkpoint's dtype.
        expert: the expert of each row, in `[0, number of experts)`.
        absent: a row may have the number of experts in place of an expert, for an expert of another device (expert
            parallel); its result is zero.
        devices: that the product is for.
    """
    return grouped_product(x, weight, expert, absent, devices)


PRODUCT_DEVICES = tuple(Devices(**form) for form in combinations(platform=PLATFORMS, kernels=MODES))
"""Devices of all declared products of experts."""
_FORMS = combinations(devices=PRODUCT_DEVICES, absent=(False, True))
ROW_KERNELS = (RowKernel(expert_dot, "lane shared lane", _FORMS),)


def grouped_product(
    x: TokenRows, weight: ExpertWeights | QuantisedWeight, expert: ExpertIds, absent: bool, devices: Devices
) -> ExpertRows:
    """Return what `expert_dot` says; quantised experts are dequantised where they are multiplied."""
    if KERNEL.chosen(devices, weight):
        return expert_rows(varying_like(x, expert), weight, expert, interpret=devices.interpret)
    if not absent:
        return _product(x, weight, expert, devices.platform)
    here = expert < weight.shape[0]
    if devices.platform == "cpu":
        # The forms for other platforms multiply only the rows of their groups; for these any expert will do.
        expert = jnp.where(here, expert, 0)
    return jnp.where(here[:, None], _product(x, weight, expert, devices.platform), 0.0)


def _product(x: TokenRows, weight: ExpertWeights | QuantisedWeight, expert: ExpertIds, platform: str) -> ExpertRows:
    if platform == "tpu":
        return ragged_form(x, weight, expert)
    if platform == "gpu":
        few = x.shape[0] <= MAX_SORTED_ROWS * weight.shape[0]
        return (sorted_gather_form if few else grouped_form)(x, weight, expert)
    if x.shape[0] <= MAX_GATHER_ROWS:
        return gather_form(x, weight, expert)
    return block_form(x, weight, expert)


def _take(weight: ExpertWeights | QuantisedWeight, taken: Callable[[Array], Array]) -> Float[Array, "*place out in"]:
    """Return the matrices of the experts that `taken` takes of an array with one entry for each expert."""
    return weight.each(taken).numbers() if isinstance(weight, QuantisedWeight) else taken(weight)


def _rows(x: Array, at: Array) -> Array:
    """Return `x[at]` for places that are there: nothing is computed for others."""
    return x.at[at].get(mode="promise_in_bounds", wrap_negative_indices=False)


def _precision(weight: ExpertWeights | QuantisedWeight) -> lax.Precision | None:
    return lax.Precision.HIGHEST if weight.dtype == "float32" else None


def gather_form(x: TokenRows, weight: ExpertWeights | QuantisedWeight, expert: ExpertIds) -> ExpertRows:
    """Gather a matrix for every row: the form for the few rows of a decode step."""
    matrices, rounded = (
        _take(weight, lambda one: one[expert]).astype(jnp.float32),
        x.astype(weight.dtype).astype(jnp.float32),
    )
    return full_einsum("roi,ri->ro", matrices, rounded)


def sorted_gather_form(x: TokenRows, weight: ExpertWeights | QuantisedWeight, expert: ExpertIds) -> ExpertRows:
    """Sort rows by expert before `gather_form`: the form for the few rows of a decode step on GPUs.

    XLA:GPU reads the matrices inside of the product, one row's after the other's. Rows of one expert lie next to each
    other, so that its matrix comes from memory once, and for the others from the cache.
    """
    order, x = jnp.argsort(expert, stable=True), varying_like(x, expert)
    count = jnp.arange(x.shape[0], dtype=jnp.int32)
    # the inverse of the order as sums of one term: XLA:GPU makes two operations of another sort
    place = jnp.sum(jnp.where(order[None] == count[:, None], count[None], 0), axis=1, dtype=jnp.int32)
    return _rows(gather_form(_rows(x, order), weight, _rows(expert, order)), place)


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


@jax.custom_vjp
def grouped_form(x: TokenRows, weight: ExpertWeights | QuantisedWeight, expert: ExpertIds) -> ExpertRows:
    """Sort rows by expert, and multiply some rows of every expert at a time: a product that is batched over experts.

    The form for GPUs, on which `ragged_dot` expands the rows to all experts. A pass reads each matrix once and has
    room for twice the mean number of rows of an expert: one pass is enough unless an expert has more. A row has the
    same bits in each place of each pass. Rows of absent experts are in no group: their results are undefined.
    """
    rows = varying_like(x, expert).astype(weight.dtype)
    return _grouped(rows, weight.numbers() if isinstance(weight, QuantisedWeight) else weight, expert, 2)


@dataclass(frozen=True)
class _Passes:
    """The passes of a product whose rows are sorted by expert.

    Attributes:
        order: rows in the order of their experts.
        first, sizes: of the rows of each expert in that order.
        height: rows of each expert in a pass.
        slot, turn: place of each row's result among those of a pass, and the number of the pass.
    """

    order: Int32[Array, "row"]
    first: Int32[Array, "expert"]
    sizes: Int32[Array, "expert"]
    height: int
    slot: Int32[Array, "row"]
    turn: Int32[Array, "row"]

    @classmethod
    def of(cls, expert: ExpertIds, experts: int) -> "_Passes":
        count = expert.shape[0]
        twice = -(-2 * count // experts)
        height = max(MIN_PASS_ROWS, min(power_of_two(twice), -(-twice // PASS_TILE) * PASS_TILE))
        order = jnp.argsort(expert, stable=True)
        sizes = jnp.sum(expert[:, None] == jnp.arange(experts, dtype=jnp.int32)[None], axis=0, dtype=jnp.int32)
        first = jnp.cumsum(sizes) - sizes
        rank = jnp.argsort(order) - jnp.take(first, expert, mode="clip")
        slot = jnp.minimum(expert, experts - 1) * height + rank % height
        return cls(order, first, sizes, height, slot, rank // height)

    def rows(self, x: Array, turn: Array | int) -> tuple[Array, Bool[Array, "expert place"]]:
        """Return rows `[expert, place, size]` of a pass, and which places have a row of the expert; others hold any."""
        at = turn * self.height + jnp.arange(self.height, dtype=jnp.int32)[None]
        places = jnp.minimum(self.first[:, None] + at, x.shape[0] - 1)
        return _rows(x, _rows(self.order, places)), at < self.sizes[:, None]

    def run(self, one: Callable[[Array | int], Array], joined: Callable[[Array, Array, Array], Array], *alike: Array):
        """Run the passes: (pass) -> its result, and (result so far, result of a pass, pass) -> both."""
        turns = jnp.max(-(-self.sizes // self.height))

        def further(carry: tuple[Array, Array]) -> tuple[Array, Array]:
            turn, y = carry
            return turn + 1, joined(y, one(turn), turn)

        # The first pass is outside the loop: XLA would make the loop's initial zeros for all layers at once.
        start = varying_like((jnp.int32(1), one(0)), *alike)
        with jax.named_scope(FURTHER_PASSES):
            return lax.while_loop(lambda carry: carry[0] < turns, further, start)[1]


def _grouped(
    rows: Float[Array, "row size"], weight: ExpertWeights, expert: ExpertIds, contracted: int
) -> Float32[Array, "row other"]:
    """Multiply each row with its expert's matrix, over the matrix' dimension `contracted`."""
    passes = _Passes.of(expert, weight.shape[0])

    def one(turn: Array | int) -> Array:
        dims = (((2,), (contracted,)), ((0,), (0,)))
        given, precision = passes.rows(rows, turn)[0], _precision(weight)
        found = lax.dot_general(given, weight, dims, precision=precision, preferred_element_type=jnp.float32)
        return _rows(found.reshape((-1, found.shape[2])), passes.slot)

    return passes.run(one, lambda y, new, turn: jnp.where((passes.turn == turn)[:, None], new, y), rows, weight)


def _grouped_forward(x: Array, weight: Any, expert: Array) -> tuple[Array, tuple[Array, Any, Array]]:
    return grouped_form(x, weight, expert), (x, weight, expert)


def _grouped_backward(operands: tuple[Array, Any, Array], gradient: Array) -> tuple[Any, ...]:
    """Return the gradients by passes of the same kind: of rows by transposed matrices, of matrices by sums of rows."""
    x, weight, expert = operands
    if isinstance(weight, QuantisedWeight):
        return jax.vjp(ragged_form, *operands)[1](gradient)
    wide = weight.astype(jnp.float32)
    of_rows = jnp.where((expert < weight.shape[0])[:, None], _grouped(gradient, wide, expert, 1), 0.0)
    passes, rounded = _Passes.of(expert, weight.shape[0]), x.astype(weight.dtype).astype(jnp.float32)

    def one(turn: Array | int) -> Array:
        (upward, there), (given, _) = passes.rows(gradient, turn), passes.rows(rounded, turn)
        upward, given = (jnp.where(there[:, :, None], rows, 0.0) for rows in (upward, given))
        return lax.dot_general(upward, given, (((1,), (1,)), ((0,), (0,))), precision=_precision(wide))

    of_weight = passes.run(one, lambda y, new, turn: y + new, gradient, x, weight)
    return of_rows.astype(x.dtype), of_weight.astype(weight.dtype), np.zeros(expert.shape, jax.dtypes.float0)


# A loop whose turns the data decide has no gradient of its own.
grouped_form.defvjp(_grouped_forward, _grouped_backward)


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
    return jnp.zeros_like(y).at[order].set(y, unique_indices=True)
