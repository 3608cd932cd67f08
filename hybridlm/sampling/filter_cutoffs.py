"""Cutoffs of top_k and top_p on GPUs and TPUs, with a kernel for GPUs.

`sampling.kept_by_filters` defines the tokens. Nothing is sorted: a cutoff is found digit by digit, from sums above each
digit value. The kernel makes all passes in one operation, one lane per program instance.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float32, Int32, UInt32

from models.ops.gpu_call import gpu_call
from models.ops.kernels import Kernel, result_like
from models.sharding.devices import Devices
from models.sharding.varying import varying_like

DIGIT = 4
"""Bits of a cutoff per pass; divides 32."""
WEIGHED_DIGIT = 3
"""Bits of a weighed cutoff per pass without the kernel: with more, XLA:GPU writes the weights of a small vocabulary in
each pass.
"""
MAX_BLOCK = 2048
"""Logits per read: they fit into registers with a digit's sums."""
MIN_VOCAB = 16
MIN_LANES = 64
"""Minimum lanes for the kernel: an instance uses one of a GPU's 58 to 150 processors, the plain form all."""


def unsupported(logits: Any) -> str | None:
    """Return why the kernel rejects logits `[lane, vocab]`, or None."""
    if logits.shape[0] < MIN_LANES:
        return f"{logits.shape[0]} lanes: expected at least {MIN_LANES}, or most processors are idle"
    if logits.shape[1] < MIN_VOCAB:
        return f"a vocabulary of {logits.shape[1]}: expected at least {MIN_VOCAB}"
    return None


KERNEL = Kernel("filter_cutoffs_kernel", ("gpu",), unsupported)


def ordered(x: Float32[Array, "*place"]) -> UInt32[Array, "*place"]:
    """Map floats to integers of the same order; equal floats to equal ones."""
    bits = lax.bitcast_convert_type(jnp.where(x == 0.0, 0.0, x), jnp.uint32)
    sign = jnp.uint32(1 << 31)
    return jnp.where(bits >= sign, ~bits, bits | sign)


def filter_cutoffs_kernel(
    temperature: Any, top_k: Any, top_p: Any, highest: Any, logits: Any, out: Any, *, block: int
) -> None:
    """Find the least logit that one lane's filters keep.

    Args:
        temperature, top_k, top_p, highest: of all lanes.
        logits: [vocab], of this lane.
        out: [1], `ordered` of the cutoff.
    """
    from jax.experimental import pallas as pl  # takes a while to import

    lane, vocab = pl.program_id(0), logits.shape[0]
    top = highest[lane]
    values = lax.broadcasted_iota(jnp.uint32, (1 << DIGIT,), 0)

    def summed(weigh: Any, start: Array, above: Any) -> Array:
        """Sum over the vocabulary; the last block begins earlier if blocks do not divide it."""

        def add(turn: Any, total: Array) -> Array:
            first = jnp.minimum(turn * block, vocab - block)
            x = logits[pl.ds(first, block)]
            new = first + lax.broadcasted_iota(jnp.int32, (block,), 0) >= turn * block
            order = ordered(x)
            return total + above(order, jnp.where(new, weigh(x, order), 0.0))

        return lax.fori_loop(0, pl.cdiv(vocab, block), add, start)

    def lowest(weigh: Any, enough: Any, wanted: Any) -> Any:
        """Return the largest value with enough weight at or above it; 0 if not `wanted`."""

        def digit(index: Any, cutoff: Any) -> Any:
            shift = (32 - DIGIT - DIGIT * index).astype(jnp.uint32)
            candidates = cutoff + (values << shift)
            none = jnp.zeros((1 << DIGIT, block), jnp.float32)
            sums = summed(weigh, none, lambda order, x: jnp.where(order[None] >= candidates[:, None], x[None], 0.0))
            reached = (jnp.sum(sums, axis=1) >= enough) & (values > 0)
            return cutoff + (jnp.sum(reached.astype(jnp.int32)).astype(jnp.uint32) << shift)

        return lax.fori_loop(0, (32 // DIGIT) * wanted.astype(jnp.int32), digit, jnp.uint32(0))

    k, p, heat = top_k[lane], top_p[lane], temperature[lane]
    of_k = lowest(lambda x, order: jnp.ones_like(x), k.astype(jnp.float32), k > 0)

    def weight(x: Array, order: Array) -> Array:
        # in units of the probability of the most likely token; its logit may be infinite
        return jnp.where(x == top, 1.0, jnp.where(order >= of_k, jnp.exp((x - top) / heat), 0.0))

    total = jnp.sum(summed(weight, jnp.zeros((block,), jnp.float32), lambda order, x: x))
    of_p = jnp.minimum(lowest(weight, p * total, p < 1.0), ordered(top))
    out[...] = jnp.full((1,), jnp.maximum(of_k, of_p))


def filter_cutoffs(
    logits: Float32[Array, "lane vocab"],
    highest: Float32[Array, "lane"],
    temperature: Float32[Array, "lane"],
    top_k: Int32[Array, "lane"],
    top_p: Float32[Array, "lane"],
    devices: Devices,
) -> UInt32[Array, "lane"]:
    """Return `ordered` of the least logit that top_k, then top_p keep; ties are kept together.

    Args:
        logits: before the temperature, which is above 0.
        devices: decide whether the kernel is available.
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
    """Return `ordered` of the largest number with enough weight at or above it, per lane.

    Digits are found from the highest on. All sums of a digit are one operation that reads the logits once.

    Args:
        weigh: logits -> their weights.
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
    from jax.experimental import pallas as pl

    lanes, vocab = logits.shape
    block = min(MAX_BLOCK, 1 << (vocab.bit_length() - 1))
    unblocked = pl.BlockSpec(memory_space=pl.ANY)
    cutoffs = gpu_call(
        partial(filter_cutoffs_kernel, block=block),
        pl.GridSpec(
            grid=(lanes,),
            in_specs=[unblocked] * 4 + [pl.BlockSpec((pl.Squeezed(), vocab), lambda lane: (lane, 0))],
            out_specs=pl.BlockSpec((pl.Squeezed(), 1), lambda lane: (lane, 0)),
        ),
        result_like((lanes, 1), jnp.uint32, logits),
        warps=16,
        interpret=interpret,
    )(temperature, top_k, top_p, highest, logits)
    return cutoffs[:, 0]
