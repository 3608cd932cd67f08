"""JAX's ragged paged attention reads another sequence's pages after a sequence without positions.

The kernel copies the first page of the next sequence ahead. A sequence without positions never waits for its copy, so
the next one takes these pages for its own. The arguments pass JAX's `dynamic_validate_inputs`.
"""

import importlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

pytestmark = pytest.mark.slow
ragged: Any = importlib.import_module("jax.experimental.pallas.ops.tpu.ragged_paged_attention.kernel")

SEQUENCES, WIDE, PAGE, HEADS, SIZE, TOKENS = 3, 4, 16, 2, 128, 8
TABLE = np.arange(1, SEQUENCES * WIDE + 1, dtype=np.int32).reshape(SEQUENCES, WIDE)


class WholeBuffer:
    """Pages after their copy; the interpreter reads no reshaped reference."""

    def __init__(self, buffer: Any):
        self.buffer = buffer

    def reshape(self, *shape: int) -> Any:
        return self.buffer[...].reshape(*shape)


@pytest.fixture(autouse=True)
def as_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    call, wait = pl.pallas_call, ragged.MultiPageAsyncCopyDescriptor.wait
    interpreter = pltpu.InterpretParams(dma_execution_mode="eager", uninitialized_memory="zero")

    def store(ref: Any, value: Any, mask: Any) -> None:
        ref[...] = jnp.where(mask, value, ref[...])  # the interpreter stores no masked part of a reference

    monkeypatch.setattr(pl, "pallas_call", lambda *args, **options: call(*args, **options | {"interpret": interpreter}))
    monkeypatch.setattr(ragged.MultiPageAsyncCopyDescriptor, "wait", lambda copy: WholeBuffer(wait(copy)))
    monkeypatch.setattr(pltpu, "store", store)


def attended(lengths: list[int], counts: list[int], disturbed: int | None = None) -> Any:
    """Return the result of each sequence's tokens, after a change of one sequence's pages."""
    rng = np.random.default_rng(0)
    query = rng.normal(size=(TOKENS, 2 * HEADS, SIZE)).astype(np.float32)
    pages = rng.normal(size=(TABLE.size + 1, PAGE, 2 * HEADS, SIZE)).astype(np.float32)
    if disturbed is not None:
        pages[TABLE[disturbed]] += 5.0
    begins = np.cumsum([0, *counts]).astype(np.int32)
    operands = query, pages, np.array(lengths, np.int32), TABLE, begins, np.array([SEQUENCES], np.int32)
    with jax.numpy_dtype_promotion("standard"):
        ragged.dynamic_validate_inputs(*operands)
        kernel = ragged.ragged_paged_attention.__wrapped__
        result = kernel(*map(jnp.asarray, operands), num_kv_pages_per_block=2, num_queries_per_block=8)
    return [np.asarray(result[begin:end]) for begin, end in zip(begins, begins[1:], strict=False)]


def test_sequences_with_positions_are_kept_apart():
    result, changed = attended([5, 20, 40], [2, 1, 3]), attended([5, 20, 40], [2, 1, 3], disturbed=1)
    assert [np.array_equal(*pair) for pair in zip(result, changed, strict=True)] == [True, False, True]


def test_a_sequence_reads_the_pages_of_one_without_positions():
    result, changed = attended([5, 0, 40], [2, 0, 3]), attended([5, 0, 40], [2, 0, 3], disturbed=1)
    assert np.array_equal(result[0], changed[0]) and not np.allclose(result[2], changed[2])
