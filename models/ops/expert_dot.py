"""Grouped matrix product of MoE layers: each row times its expert's matrix.

No form drops a token.
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
from models.ops.kernels import MODES, combinations
from models.ops.quantised_weight import QuantisedWeight
from models.ops.recurrences.chunk_decay import power_of_two
from models.sharding.devices import SINGLE_DEVICE, Devices, varying_like

MAX_GATHER_ROWS = 32
"""Maximum rows of `gather_form` on a CPU."""
BLOCK = 16
"""Rows of one expert in one product of the block form."""
MAX_SORTED_ROWS = 4
"""Maximum mean rows per expert of `sorted_gather_form` on a GPU."""
MIN_PASS_ROWS = 16
"""Minimum rows per expert in a pass of the grouped form: the least of a GPU's matrix units."""
PASS_TILE = 64
"""Rows per expert of larger passes are a multiple of this product tile."""
FURTHER_PASSES = "further_passes"
"""Named scope of the loop over the passes after the first."""


TokenRows = Float32[Array, "row in"]
ExpertWeights = Float[Array, "expert out in"]
ExpertIds = Int32[Array, "row *choice"]
ExpertRows = Float32[Array, "row *choice result"]


@partial(jax.jit, static_argnames=("devices", "gated"))
def expert_dot(
    x: TokenRows,
    weight: ExpertWeights,
    expert: ExpertIds,
    devices: Devices = SINGLE_DEVICE,
    gated: bool = False,
) -> ExpertRows:
    """Return `y[r] = weight[expert[r]] @ x[r]`, accumulated in float32.

    Args:
        x: rows; rounded to the dtype of the weight.
        weight: `[out, in]` per expert.
        expert: expert or experts of each row, in `[0, number of experts]`; the number of experts: no expert, with the
            result zero.
        gated: the first half of the outputs are gates of the second half; return their SwiGLU.
    """
    return grouped_product(x, weight, expert, devices, gated)


PRODUCT_DEVICES = tuple(Devices(**form) for form in combinations(platform=("cpu", "gpu", "tpu"), kernels=MODES))
"""Devices of all declared products of experts."""
GATING_DEVICES = tuple(devices for devices in PRODUCT_DEVICES if devices.kernels != "off")
"""Devices with a kernel for gates."""
_FORMS = (
    *combinations(devices=PRODUCT_DEVICES),
    *combinations(devices=GATING_DEVICES, gated=(True,)),
)
ROW_KERNELS = ((expert_dot, "lane shared lane", _FORMS),)


def grouped_product(
    x: TokenRows,
    weight: ExpertWeights | QuantisedWeight,
    expert: ExpertIds,
    devices: Devices,
    gated: bool,
) -> ExpertRows:
    """Return `expert_dot` of plain or quantised experts, dequantised inside the product."""
    if KERNEL.chosen(devices, weight, gated):
        return expert_rows(varying_like(x, expert), weight, expert, gated, interpret=devices.interpret)
    if expert.ndim > 1 or gated:
        raise ValueError("several experts of a row, or gates: expected a kernel, or `experts_product`")
    visits = expert < weight.shape[0]
    if devices.platform == "cpu":
        # Forms of other platforms skip rows outside the groups; CPU forms need a valid expert.
        expert = jnp.where(visits, expert, 0)
    return jnp.where(visits[:, None], _product(x, weight, expert, devices.platform), 0.0)


def _product(x: TokenRows, weight: ExpertWeights | QuantisedWeight, expert: ExpertIds, platform: str) -> ExpertRows:
    if platform == "tpu":
        return ragged_form(x, weight, expert)
    if platform == "gpu":
        form = sorted_gather_form if x.shape[0] <= MAX_SORTED_ROWS * weight.shape[0] else grouped_form
        return form(x, weight, expert)
    if x.shape[0] <= MAX_GATHER_ROWS:
        return gather_form(x, weight, expert)
    return block_form(x, weight, expert)


def _take(weight: ExpertWeights | QuantisedWeight, select: Callable[[Array], Array]) -> Float[Array, "*place out in"]:
    return weight.each(select).numbers() if isinstance(weight, QuantisedWeight) else select(weight)


def _rows(x: Array, index: Array) -> Array:
    return x.at[index].get(mode="promise_in_bounds", wrap_negative_indices=False)


def _precision(weight: ExpertWeights | QuantisedWeight) -> lax.Precision | None:
    return lax.Precision.HIGHEST if weight.dtype == "float32" else None


def gather_form(x: TokenRows, weight: ExpertWeights | QuantisedWeight, expert: ExpertIds) -> ExpertRows:
    """Gather a matrix for every row, for few rows."""
    matrices = _take(weight, lambda array: array[expert]).astype(jnp.float32)
    return full_einsum("roi,ri->ro", matrices, x.astype(weight.dtype).astype(jnp.float32))


def sorted_gather_form(x: TokenRows, weight: ExpertWeights | QuantisedWeight, expert: ExpertIds) -> ExpertRows:
    """Sort rows by expert before `gather_form`, for a GPU's cache."""
    order, x = jnp.argsort(expert, stable=True), varying_like(x, expert)
    count = jnp.arange(x.shape[0], dtype=jnp.int32)
    # The inverse permutation as sums of one term: a second sort is two operations on XLA:GPU.
    place = jnp.sum(jnp.where(order[None] == count[:, None], count[None], 0), axis=1, dtype=jnp.int32)
    return _rows(gather_form(_rows(x, order), weight, _rows(expert, order)), place)


def block_form(
    x: TokenRows, weight: ExpertWeights | QuantisedWeight, expert: ExpertIds, block: int = BLOCK
) -> ExpertRows:
    """Sort rows by expert, fill groups up to whole blocks, and multiply by blocks."""
    count, experts = x.shape[0], weight.shape[0]
    blocks = count // block + min(count, experts)
    order, x = jnp.argsort(expert, stable=True), varying_like(x, expert)
    owner = expert[order]
    sizes = jnp.zeros((experts,), jnp.int32).at[expert].add(1)
    padded = -(-sizes // block) * block
    ends = jnp.cumsum(padded)
    place = (ends - padded)[owner] + jnp.arange(count, dtype=jnp.int32) - (jnp.cumsum(sizes) - sizes)[owner]
    filled = jnp.zeros((blocks * block, x.shape[1]), weight.dtype).at[place].set(x[order].astype(weight.dtype))
    # Blocks past the last group are zero.
    block_expert = jnp.searchsorted(ends, jnp.arange(blocks, dtype=jnp.int32) * block, side="right")
    block_expert = jnp.minimum(block_expert, experts - 1).astype(jnp.int32)

    def multiply(inputs: tuple[Array, Array]) -> Array:
        rows, index = inputs
        return lax.dot_general(
            rows,
            _take(weight, lambda array: lax.dynamic_index_in_dim(array, index, keepdims=False)),
            (((1,), (1,)), ((), ())),
            precision=_precision(weight),
            preferred_element_type=jnp.float32,
        )

    y = lax.map(multiply, (filled.reshape((blocks, block, -1)), block_expert)).reshape((blocks * block, -1))
    return jnp.zeros((count, weight.shape[1]), jnp.float32).at[order].set(y[place])


@jax.custom_vjp
def grouped_form(x: TokenRows, weight: ExpertWeights | QuantisedWeight, expert: ExpertIds) -> ExpertRows:
    """Sort rows by expert, and multiply in batched passes: the form for GPUs.

    `ragged_dot` on a GPU expands the rows to all experts. A pass reads each matrix once, with room for twice an
    expert's mean rows; a row has the same bits in every pass. Results of rows without an expert are undefined.
    """
    rows = varying_like(x, expert).astype(weight.dtype)
    return _grouped(rows, weight.numbers() if isinstance(weight, QuantisedWeight) else weight, expert, 2)


@dataclass(frozen=True)
class _Passes:
    """The passes of a product of rows sorted by expert.

    Attributes:
        order: rows in the order of their experts.
        first, sizes: start and number of each expert's rows in that order.
        height: rows of each expert in a pass.
        slot, turn: place of each row's result in its pass, and the number of the pass.
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
        rank = turn * self.height + jnp.arange(self.height, dtype=jnp.int32)[None]
        places = jnp.minimum(self.first[:, None] + rank, x.shape[0] - 1)
        return _rows(x, _rows(self.order, places)), rank < self.sizes[:, None]

    def run(self, step: Callable[[Array | int], Array], join: Callable[[Array, Array, Array], Array], *like: Array):
        """Run the passes with `step(turn)`, and `join(total, result, turn)` of the results."""
        turns = jnp.max(-(-self.sizes // self.height))

        def further(carry: tuple[Array, Array]) -> tuple[Array, Array]:
            turn, y = carry
            return turn + 1, join(y, step(turn), turn)

        # The first pass is outside the loop: XLA would make the loop's initial zeros for all layers at once.
        start = varying_like((jnp.int32(1), step(0)), *like)
        with jax.named_scope(FURTHER_PASSES):
            return lax.while_loop(lambda carry: carry[0] < turns, further, start)[1]


def _grouped(
    rows: Float[Array, "row size"], weight: ExpertWeights, expert: ExpertIds, contracted: int
) -> Float32[Array, "row other"]:
    """Multiply each row with its expert's matrix, over the dimension `contracted`."""
    passes = _Passes.of(expert, weight.shape[0])

    def step(turn: Array | int) -> Array:
        dims, precision = (((2,), (contracted,)), ((0,), (0,))), _precision(weight)
        y = lax.dot_general(
            passes.rows(rows, turn)[0], weight, dims, precision=precision, preferred_element_type=jnp.float32
        )
        return _rows(y.reshape((-1, y.shape[2])), passes.slot)

    return passes.run(step, lambda y, new, turn: jnp.where((passes.turn == turn)[:, None], new, y), rows, weight)


def _grouped_forward(x: Array, weight: Any, expert: Array) -> tuple[Array, tuple[Array, Any, Array]]:
    return grouped_form(x, weight, expert), (x, weight, expert)


def _grouped_backward(operands: tuple[Array, Any, Array], gradient: Array) -> tuple[Any, ...]:
    x, weight, expert = operands
    if isinstance(weight, QuantisedWeight):
        return jax.vjp(ragged_form, *operands)[1](gradient)
    wide = weight.astype(jnp.float32)
    of_rows = jnp.where((expert < weight.shape[0])[:, None], _grouped(gradient, wide, expert, 1), 0.0)
    passes, rounded = _Passes.of(expert, weight.shape[0]), x.astype(weight.dtype).astype(jnp.float32)

    def step(turn: Array | int) -> Array:
        (upward, real), (inputs, _) = passes.rows(gradient, turn), passes.rows(rounded, turn)
        upward, inputs = (jnp.where(real[:, :, None], rows, 0.0) for rows in (upward, inputs))
        return lax.dot_general(upward, inputs, (((1,), (1,)), ((0,), (0,))), precision=_precision(wide))

    of_weight = passes.run(step, lambda y, new, turn: y + new, gradient, x, weight)
    return of_rows.astype(x.dtype), of_weight.astype(weight.dtype), np.zeros(expert.shape, jax.dtypes.float0)


# JAX cannot differentiate a loop with a data-dependent number of turns.
grouped_form.defvjp(_grouped_forward, _grouped_backward)


RAGGED_DIMS = lax.RaggedDotDimensionNumbers((((1,), (2,)), ((), ())), [0], [0])
"""Rows `[row, in]` in groups, by matrices `[expert, out, in]`."""


def ragged_form(x: TokenRows, weight: ExpertWeights | QuantisedWeight, expert: ExpertIds) -> ExpertRows:
    """Sort rows by expert and multiply ragged groups; without an expert: undefined."""
    order, x = jnp.argsort(expert, stable=True), varying_like(x, expert)
    sizes = jnp.zeros((weight.shape[0],), jnp.int32).at[expert].add(1)
    plain = weight.numbers() if isinstance(weight, QuantisedWeight) else weight
    # `ragged_dot` takes transposed matrices, which libtpu copies in every step.
    y = lax.ragged_dot_general(
        x[order].astype(weight.dtype),
        plain,
        sizes,
        RAGGED_DIMS,
        precision=_precision(weight),
        preferred_element_type=jnp.float32,
    )
    return jnp.zeros_like(y).at[order].set(y, unique_indices=True)
