"""Cutoffs of top_k and top_p on GPUs and TPUs, with a kernel for GPUs.

`sampling.kept_by_filters` defines the tokens. Nothing is sorted: a cutoff is found digit by digit, from sums above each
digit value, in one pass of the kernel each. A lane's parts are program instances, equal for every number of lanes, so
that its bits do not depend on it.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Float32, Int32, UInt32

from models.ops.gpu_call import gpu_call
from models.ops.kernels import Kernel
from models.sharding.devices import Devices, result_like, varying_like

DIGIT = 4
"""Bits of a cutoff per pass; divides 32."""
WEIGHED_DIGIT = 3
"""Bits of a weighed cutoff per pass without the kernel: with more, XLA:GPU writes the weights in each pass."""
PASSES = 32 // DIGIT
"""Passes of the kernel for each cutoff."""
MAX_BLOCK = 2048
"""Logits per read: they fit into registers with a digit's sums."""
PART_BLOCKS = 2
"""Blocks of a program instance: few, to occupy the processors."""
STATE = (jnp.uint32, jnp.uint32, jnp.float32)
"""Dtypes of an instance's state: digits, cutoff of top_k, needed sum."""
MIN_VOCAB = 16


def supports(logits: Any) -> bool:
    return logits.shape[1] >= MIN_VOCAB


KERNEL = Kernel("filter_cutoffs_kernel", "gpu", supports)


def ordered(x: Float32[Array, "*place"]) -> UInt32[Array, "*place"]:
    """Map floats to integers of the same order; equal floats to equal ones."""
    bits = lax.bitcast_convert_type(jnp.where(x == 0.0, 0.0, x), jnp.uint32)
    sign = jnp.uint32(1 << 31)
    return jnp.where(bits >= sign, ~bits, bits | sign)


def filter_cutoffs_kernel(*refs: Any, block: int) -> None:
    """Find a digit of one lane's cutoff, and sum a part of its logits.

    Args:
        refs: index of the pass, int32 [1]: `PASSES` for top_k, as many for top_p, and one without sums; temperature,
            top_k, top_p and highest logit, [lane] each; logits [vocab] of this lane; sums [part, digit value] of this
            lane's previous pass; `STATE` of this instance, [1] each, not read by the first pass. Results: the new sums
            [digit value] of this part, and the new `STATE`. The digits of the last pass are `ordered` of the cutoff.
        block: logits per read.
    """
    from jax.experimental import pallas as pl  # takes a while to import

    index, temperature, top_k, top_p, highest, logits, sums, *refs_of_state = refs
    old_cutoff, old_of_k, old_needed, new_sums, *results = refs_of_state
    lane, part, vocab = pl.program_id(0), pl.program_id(1), logits.shape[0]
    number, top = index[0], highest[lane]
    k, p, heat = top_k[lane], top_p[lane], temperature[lane]
    values = lax.broadcasted_iota(jnp.uint32, (1 << DIGIT,), 0)

    def shift(number: Any) -> Any:
        return (32 - DIGIT - DIGIT * lax.rem(number, np.int32(PASSES))).astype(jnp.uint32)

    above, last = jnp.sum(sums[...], axis=0), jnp.maximum(number - 1, 0)
    total = jnp.sum(jnp.where(values == 0, above, 0.0))
    needed = jnp.where(number <= PASSES, k.astype(jnp.float32), jnp.where(last == PASSES, p * total, old_needed[0]))
    reached = jnp.sum(((above >= needed) & (values > 0)).astype(jnp.int32))
    cutoff = jnp.where(number > 0, old_cutoff[0] + (reached.astype(jnp.uint32) << shift(last)), jnp.uint32(0))
    of_k = jnp.where(number == PASSES, jnp.where(k > 0, cutoff, jnp.uint32(0)), old_of_k[0])
    of_k = jnp.where(number < PASSES, jnp.uint32(0), of_k)
    of_p = jnp.where(p < 1.0, jnp.minimum(cutoff, ordered(top)), jnp.uint32(0))
    cutoff = jnp.where(number == PASSES, jnp.uint32(0), cutoff)
    cutoff = jnp.where(number == 2 * PASSES, jnp.maximum(of_k, of_p), cutoff)
    candidates = cutoff + (values << shift(number))

    def add(turn: Any, sums: Array) -> Array:
        """Add a block; the last begins earlier if blocks do not divide the vocabulary."""
        start = (part * PART_BLOCKS + turn) * block
        first = jnp.minimum(start, vocab - block)
        x = logits[pl.ds(first, block)]
        order = ordered(x)
        # in units of the probability of the most likely token; its logit may be infinite
        weight = jnp.where(x == top, 1.0, jnp.where(order >= of_k, jnp.exp((x - top) / heat), 0.0))
        weight = jnp.where(number < PASSES, jnp.ones_like(weight), weight)
        weight = jnp.where(first + lax.broadcasted_iota(jnp.int32, (block,), 0) >= start, weight, 0.0)
        return sums + jnp.where(order[None] >= candidates[:, None], weight[None], 0.0)

    wanted = ((number < PASSES) & (k > 0)) | ((number >= PASSES) & (number < 2 * PASSES) & (p < 1.0))
    turns = jnp.clip(pl.cdiv(vocab, block) - part * PART_BLOCKS, 0, PART_BLOCKS)
    none = jnp.zeros((1 << DIGIT, block), jnp.float32)
    # A condition, not a number of iterations: reports count its greater branch.
    total_sums = lax.cond(wanted, lambda: lax.fori_loop(0, turns, add, none), lambda: none)
    new_sums[...] = jnp.sum(total_sums, axis=1)
    for result, value in zip(results, (cutoff, of_k, needed), strict=True):
        result[...] = jnp.full((1,), value)


def filter_cutoffs(
    logits: Float32[Array, "lane vocab"],
    highest: Float32[Array, "lane"],
    temperature: Float32[Array, "lane"],
    top_k: Int32[Array, "lane"],
    top_p: Float32[Array, "lane"],
    devices: Devices,
) -> UInt32[Array, "lane"]:
    """Return `ordered` of the least logit by top_k, then top_p; ties stay together.

    Args:
        logits: before the temperature, which is above 0.
    """
    if KERNEL.chosen(devices, logits):
        return _by_kernel(logits, highest, temperature, top_k, top_p, interpret=devices.interpret)
    none = jnp.zeros(top_k.shape, jnp.uint32)
    of_k = _lowest(logits, jnp.ones_like, lambda total: top_k.astype(jnp.float32), none, DIGIT)
    of_k = jnp.where(top_k > 0, of_k, none)
    top, rate = highest[:, None], 1.0 / temperature[:, None]

    def weight(x: Array) -> Array:
        # in units of the probability of the most likely token; its logit may be infinite
        return jnp.where(x == top, 1.0, jnp.exp((x - top) * rate))

    of_p = _lowest(logits, weight, lambda total: top_p * total, of_k, WEIGHED_DIGIT)
    of_p = jnp.minimum(of_p, ordered(highest))
    return jnp.maximum(of_k, jnp.where(top_p < 1.0, of_p, jnp.uint32(0)))


def _number(order: UInt32[Array, "*place"]) -> Float32[Array, "*place"]:
    """Return the inverse of `ordered`: -inf below all numbers, NaN above.

    A subnormal number becomes the next larger normal one: many devices flush it to zero.
    """
    zero, normal, lowest = (ordered(jnp.float32(x)) for x in (0.0, jnp.finfo(jnp.float32).tiny, -jnp.inf))
    order = jnp.where((order > zero) & (order < normal), normal, order)
    order = jnp.where((order < zero) & (order > ~normal), zero, order)
    bits = jnp.where(order >= zero, order ^ zero, ~order)
    return jnp.where(order <= lowest, -jnp.inf, lax.bitcast_convert_type(bits, jnp.float32))


def _lowest(
    logits: Float32[Array, "lane vocab"],
    weigh: Callable[[Array], Array],
    enough: Callable[[Array], Array],
    min_order: UInt32[Array, "lane"],
    bits: int,
) -> UInt32[Array, "lane"]:
    """Return `ordered` of the largest number with enough weight at or above it.

    All sums of a digit are one operation that reads the logits once.

    Args:
        enough: total weight per lane -> minimum sum.
        min_order: `ordered` of each lane's least weighed logit.
        bits: of a digit; the last digit may overlap the previous one.
    """

    def added(totals: Sequence[Array], addends: Sequence[Array]) -> list[Array]:
        return [candidate + addend for candidate, addend in zip(totals, addends, strict=True)]

    def risen(cutoff: Array, value: Array, shift: Array) -> Array:
        return cutoff + jnp.minimum(value << shift, ~cutoff)

    def digit(number: Array, cutoff: Array) -> Array:
        shift = jnp.maximum(32 - bits - bits * number, 0).astype(jnp.uint32)
        weight = weigh(logits)
        candidates = [jnp.maximum(risen(cutoff, jnp.uint32(value), shift), min_order) for value in range(1, 1 << bits)]
        above = [
            jnp.where(logits >= _number(candidate)[:, None], weight, 0.0) for candidate in (min_order, *candidates)
        ]
        total, *sums = lax.reduce(above, [jnp.float32(0.0)] * len(above), added, (1,))
        short = jnp.stack(sums, axis=1) < enough(total)[:, None]
        return risen(cutoff, jnp.sum(jnp.logical_not(short), axis=1, dtype=jnp.uint32), shift)

    start = varying_like(jnp.zeros(logits.shape[0], jnp.uint32), logits)
    return lax.fori_loop(0, -(-32 // bits), digit, start)


def _by_kernel(
    logits: Float32[Array, "lane vocab"],
    highest: Float32[Array, "lane"],
    temperature: Float32[Array, "lane"],
    top_k: Int32[Array, "lane"],
    top_p: Float32[Array, "lane"],
    *,
    interpret: bool,
) -> UInt32[Array, "lane"]:
    lanes, vocab = logits.shape
    block = min(MAX_BLOCK, 1 << (vocab.bit_length() - 1))
    parts = 1 << (-(-vocab // (PART_BLOCKS * block)) - 1).bit_length()
    of_lane = (None, vocab), lambda lane, part: (lane, 0)
    sums = (None, parts, 1 << DIGIT), lambda lane, part: (lane, 0, 0)
    new_sums = (None, None, 1 << DIGIT), lambda lane, part: (lane, part, 0)
    number = (None, 1), lambda lane, part: (lane, part)
    shapes = [((lanes, parts, 1 << DIGIT), jnp.float32), *(((lanes, parts), dtype) for dtype in STATE)]
    run = gpu_call(
        partial(filter_cutoffs_kernel, block=block),
        (lanes, parts),
        [*[None] * 5, of_lane, sums, *[number] * len(STATE)],
        [
            (spec, result_like(shape, dtype, logits))
            for spec, (shape, dtype) in zip([new_sums, *[number] * len(STATE)], shapes, strict=True)
        ],
        warps=16,
        interpret=interpret,
    )
    start = tuple(varying_like(jnp.zeros(shape, dtype), logits) for shape, dtype in shapes)

    def make_pass(number: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
        return tuple(run(number[None], temperature, top_k, top_p, highest, logits, *state))

    # A GPU's loop would have twice the operations; the interpreter would be compiled for each pass.
    count = 2 * PASSES + 1
    state = lax.fori_loop(np.int32(0), np.int32(count), make_pass, start, unroll=1 if interpret else count)
    return state[1][:, 0]
