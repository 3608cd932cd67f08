"""A kernel for the sequential part of the chunked forms: the state is read once and written once for all chunks.

`chunked_scan.scan_chunks` defines it. One program instance carries some rows of the state of one lane and value head
through the chunks, in registers. What a chunk's tokens do to each other is computed before, for all chunks at once.
"""

from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float32

from models.ops.kernel_products import MIN_ROWS, kernel_product
from models.ops.kernels import Kernel, result_like
from models.ops.recurrence import RecurrenceInputs, RecurrenceOutputs

MAX_ROWS = 16
"""Rows of the state of one program instance."""
MAX_PART = 32
"""Channels of the key that are multiplied at once: each warp holds all of one operand."""
MAX_KEY = 256
"""Channels of the key; with more, an instance's rows do not fit into registers."""
MAX_CHUNKS = 32
"""Chunks of a step: the proof follows so many turns of a kernel's loop one by one."""


class ScanOperands(NamedTuple):
    """Tokens in chunks; heads of keys are those of values, or each is of as many value heads next to each other.

    Attributes:
        reads: keys that read the state before their chunk, to be taken off the values, where there is `corrected`, and
            behind them queries.
        keys: keys that write, each decayed to the end of the chunk.
        decay: over the whole chunk, per channel of the key or one for all.
        values: that are written.
        corrected: matrix that turns values, less what was read, into what is written; None in SSD.
        scores: of each token's query with each token's value.
        since: factor of a token on what it reads.
        seen: values that the scores read; None for those that are written.
    """

    reads: Float32[Array, "chunk lane key_head row key"]
    keys: Float32[Array, "chunk lane key_head place key"]
    decay: Float32[Array, "chunk lane value_head channel"]
    values: Float32[Array, "chunk lane value_head place value"]
    corrected: Any
    scores: Float32[Array, "chunk lane value_head place place"]
    since: Float32[Array, "chunk lane value_head place 1"]
    seen: Any


def unsupported(inputs: RecurrenceInputs, chunk: int) -> str | None:
    """Say why the kernel does not take these operands, in chunks of so many tokens; None if it does."""
    values, keys = inputs.state.shape[2:]
    if inputs.tokens < chunk or -(-inputs.tokens // chunk) > MAX_CHUNKS:
        return f"a step of {inputs.tokens} tokens: expected one to {MAX_CHUNKS} chunks of {chunk}"
    if any(size & (size - 1) or size < MIN_ROWS for size in (values, keys, chunk)) or keys > MAX_KEY:
        return (
            f"states of {values} x {keys} and chunks of {chunk}: expected powers of two from {MIN_ROWS}, and a key up "
            f"to {MAX_KEY}"
        )
    return None


KERNEL = Kernel("chunk_scan_kernel", ("gpu",), unsupported)


def chunk_scan_kernel(fresh: Any, active: Any, *refs: Any, given: tuple[str, ...], by_channel: bool) -> None:
    """Carry some rows of the state of one lane and head through all chunks.

    Args:
        fresh, active: int32[lane], in full.
        refs: the operands of `given`, each [chunk, place, ..] of the lane and head, `decay` [chunk, key] or in full;
            the state [value, key]; the outputs [chunk, place, value]; the new state, if it is wanted.
        given: fields of `ScanOperands` that there are.
        by_channel: whether the decay is one for each channel of the key.
    """
    from jax.experimental import pallas as pl  # takes a while to import

    x = dict(zip(given, refs, strict=False))
    state, out, *new = refs[len(given) :]
    lane, head = pl.program_id(0), pl.program_id(1)
    places, parts = out.shape[1], _parts(state.shape[1])
    before = tuple(state[:, part] for part in parts)

    def chunk(index: Any, now: Any) -> Any:
        def read(first: int) -> Any:
            rows = [x["reads"][index, pl.ds(first, places), part] for part in parts]
            found = [kernel_product(one, of_part, 1) for one, of_part in zip(rows, now, strict=True)]
            return x["since"][index, :, 0][:, None] * sum(found[1:], found[0])

        values = x["values"][index, :, :]
        if "corrected" in x:
            values = kernel_product(x["corrected"][index, :, :], values - read(0), 0)
        seen = x["seen"][index, :, :] if "seen" in x else values
        scores = kernel_product(x["scores"][index, :, :], seen, 0)
        out[index, :, :] = read(places if "corrected" in x else 0) + scores
        after = []
        for part, of_part in zip(parts, now, strict=True):
            decay = x["decay"][index, part][None] if by_channel else x["decay"][index, lane, head, 0]
            after.append(decay * of_part + kernel_product(values.T, x["keys"][index, :, part], 0))
        return tuple(after)

    start = tuple(jnp.where(fresh[lane] > 0, 0.0, one) for one in before)
    after = lax.fori_loop(0, out.shape[0], chunk, start)
    ends = [jnp.where(active[lane] > 0, one, old) for one, old in zip(after, before, strict=True)]
    # after the last read of what they overwrite
    for part, end in zip(parts, ends, strict=True):
        if new:
            new[0][:, part] = end


def _parts(keys: int) -> list[Any]:
    """Return the parts of the key that are multiplied one after the other."""
    from jax.experimental import pallas as pl

    size = min(MAX_PART, keys)
    return [pl.ds(first, size) for first in range(0, keys, size)]


def chunk_scan(
    inputs: RecurrenceInputs, operands: ScanOperands, *, keep_state: bool, interpret: bool
) -> RecurrenceOutputs:
    """Carry the state of every lane through all chunks.

    Args:
        inputs: of the recurrence.
        operands: its tokens in chunks; those of padding tokens change no state.
        keep_state: the state before the first token is needed afterwards, and no new one.
        interpret: run by Pallas' interpreter, on any platform.

    Returns:
        Outputs and the new state, None with `keep_state`.
    """
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton as plgpu

    lanes, heads, values, keys = inputs.state.shape
    count, _, key_heads, places, _ = operands.keys.shape
    rows, shared = min(MAX_ROWS, values), heads // key_heads
    by_channel = operands.decay.shape[-1] > 1
    whole = pl.BlockSpec(memory_space=pl.ANY)

    def of_head(size: int, by: int = 1, tiled: bool = False, places: int = places) -> Any:
        def index(lane: Any, head: Any, tile: Any) -> tuple[Any, ...]:
            return 0, lane, lax.div(head, by) if by > 1 else head, 0, tile if tiled else 0

        return pl.BlockSpec((count, pl.Squeezed(), pl.Squeezed(), places, size), index)

    value, key, square = of_head(rows, tiled=True), of_head(keys, shared), of_head(places)
    channels = pl.BlockSpec((count, pl.Squeezed(), pl.Squeezed(), keys), lambda lane, head, tile: (0, lane, head, 0))
    specs = {
        "reads": of_head(keys, shared, places=operands.reads.shape[3]),
        "keys": key,
        "decay": channels if by_channel else whole,
        "values": value,
        "corrected": square,
        "scores": square,
        "since": of_head(1),
        "seen": value,
    }
    given = {name: array for name, array in operands._asdict().items() if array is not None}
    block = (pl.Squeezed(), pl.Squeezed(), rows, keys)
    matrix = pl.BlockSpec(block, lambda lane, head, tile: (lane, head, tile, 0))
    result = result_like((count, lanes, heads, places, values), jnp.float32, inputs.state)
    active = jnp.any(inputs.valid, axis=1).astype(jnp.int32)
    out, *state = pl.pallas_call(
        partial(chunk_scan_kernel, given=tuple(given), by_channel=by_channel),
        grid=(lanes, heads, values // rows),
        in_specs=[whole, whole, *(specs[name] for name in given), matrix],
        out_specs=[value] if keep_state else [value, matrix],
        out_shape=[result] if keep_state else [result, result_like(inputs.state.shape, jnp.float32, inputs.state)],
        input_output_aliases={} if keep_state else {len(given) + 2: 1},
        compiler_params=plgpu.CompilerParams(num_warps=4, num_stages=1),
        interpret=interpret,
        name=KERNEL.name,
    )(inputs.fresh.astype(jnp.int32), active, *given.values(), inputs.state)
    out = jnp.moveaxis(out, 3, 2)
    out = jnp.moveaxis(out, 0, 1).reshape((lanes, -1, heads, values))[:, : inputs.tokens]
    out = jnp.where(inputs.valid[:, :, None, None], out, 0.0)
    return RecurrenceOutputs(out, None if keep_state else state[0])
