"""The moves of a part of a row against NumPy: what they touch, and that nothing else is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hybridlm
from hybridlm.rows.parts import copy_contract, copy_row, keep_span, restore_span
from ir_passes import prove_isolation
from models import KV_BLOCK

AXES = (1, 0)
POSITIONS = 2 * KV_BLOCK


def scalars(*values: int) -> list[jax.Array]:
    return [jnp.array([value], jnp.int32) for value in values]


def pool(rows: int) -> tuple[np.ndarray, ...]:
    """Heads in front of the positions, and positions in front; what it holds says where it stood."""
    sizes = (rows, 2, POSITIONS, 3), (rows, POSITIONS, 5)
    return tuple(np.arange(np.prod(size), dtype=np.float32).reshape(size) + 1 for size in sizes)


def positions(array: np.ndarray, axis: int) -> np.ndarray:
    """Rows with positions as the first axis behind them."""
    return np.moveaxis(array, axis + 1, 1)


@pytest.mark.parametrize(("first", "count"), [(0, 1), (0, 128), (5, 7), (100, 128), (128, 128), (255, 1), (200, 56)])
def test_a_span_is_kept(first: int, count: int) -> None:
    rows, buffers = pool(3), tuple(np.full((2, KV_BLOCK, *size), np.nan, np.float32) for size in ((2, 3), (5,)))
    (got,) = keep_span(AXES)(tuple(map(jnp.array, buffers)), tuple(map(jnp.array, rows)), *scalars(1, 0, first, count))
    for array, row, axis in zip(got, rows, AXES, strict=True):
        assert np.array_equal(array[0, :count], positions(row, axis)[1, first : first + count])
        assert not np.asarray(array[0, count:]).any(), "places behind the span are zeros"
        assert np.isnan(np.asarray(array[1])).all()


@pytest.mark.parametrize("to", [0, 3, 127, 128, 255])
@pytest.mark.parametrize(("first", "count"), [(0, 1), (0, 128), (5, 7), (127, 1), (100, 28)])
def test_a_span_is_put_back(first: int, count: int, to: int) -> None:
    """Behind the end of the row nothing is written, as nothing outside the span is."""
    rows = pool(3)
    buffers = tuple(-np.arange(2 * KV_BLOCK * size, dtype=np.float32).reshape(2, KV_BLOCK, -1) for size in (6, 5))
    buffers = (buffers[0].reshape(2, KV_BLOCK, 2, 3), buffers[1])
    operands = scalars(0, 2, first, count, to)
    (got,) = restore_span(AXES)(tuple(map(jnp.array, rows)), tuple(map(jnp.array, buffers)), *operands)
    for array, row, span, axis in zip(got, rows, buffers, AXES, strict=True):
        expected, length = positions(row.copy(), axis), min(count, POSITIONS - to)
        expected[2, to : to + length] = span[0, first : first + length]
        assert np.array_equal(positions(np.asarray(array), axis), expected)


def test_copies_are_proved_to_touch_one_row(text_lm: hybridlm.LM) -> None:
    source, target = text_lm.engine.new_rows(3), text_lm.engine.new_rows(2)
    args = target, source, np.zeros(1, np.int32), np.zeros(1, np.int32)
    assert prove_isolation(copy_row(), args, copy_contract(3, 2)).proved
    rng = np.random.default_rng(0)
    source, target = (
        jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(leaf.dtype), rows) for rows in (source, target)
    )
    (copied,) = jax.jit(copy_row())(target, source, np.array([2], np.int32), np.array([0], np.int32))
    for new, old, other in zip(*map(jax.tree.leaves, (copied, target, source)), strict=True):
        assert np.asarray(new)[0].tobytes() == other[2].tobytes() and np.asarray(new)[1].tobytes() == old[1].tobytes()


def test_moves_are_proved_to_touch_one_row(text_lm: hybridlm.LM) -> None:
    moves = text_lm.engine.moves
    assert [str(shape) for shape in moves.shapes(3)] == [
        "keep a state of 3", "restore a state to 3", "keep a span of 3", "restore a span to 3",
    ]  # fmt: skip
    for shape in moves.shapes(3):
        step, contract = shape.step()
        assert prove_isolation(step, moves.example_arguments(shape), contract).proved


def test_cached_buffers_are_as_large_as_necessary(text_lm: hybridlm.LM) -> None:
    """The whole state of fixed size, and keys and values of as many spans as there are tokens for."""
    moves = text_lm.engine.moves
    for length, spans in ((2, 1), (129, 1), (130, 2)):
        assert text_lm.prefix([5] * length).nbytes == moves.state_bytes + spans * moves.span_bytes
    total = moves.state_bytes + text_lm.context // KV_BLOCK * moves.span_bytes
    assert total == text_lm.engine.row_bytes_on_a_device
