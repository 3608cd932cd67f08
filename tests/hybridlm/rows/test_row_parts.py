"""The moves of a part of a row against NumPy: what they touch, and that nothing else is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import hybridlm
from hybridlm.rows.parts import copy_contract, copy_places, copy_row
from ir_passes import prove_isolation
from models import KV_BLOCK

AXES = (1, 0)


def scalars(*values: int) -> list[jax.Array]:
    return [jnp.array([value], jnp.int32) for value in values]


def pool(pages: int, sign: int = 1) -> tuple[np.ndarray, ...]:
    """Heads before the places, and places in front; what it holds tells where it was."""
    sizes = (pages, 2, KV_BLOCK, 3), (pages, KV_BLOCK, 5)
    return tuple(sign * (np.arange(np.prod(size), dtype=np.float32).reshape(size) + 1) for size in sizes)


@pytest.mark.parametrize("count", [0, 1, 28, 127, 128])
def test_the_first_places_of_a_page_are_copied(count: int) -> None:
    """All other places, and all other pages, stay as they are."""
    source, target = pool(3), pool(2, sign=-1)
    operands = scalars(2, 1, count)
    (got,) = copy_places(AXES)(tuple(map(jnp.array, target)), tuple(map(jnp.array, source)), *operands)
    for array, initial, page, axis in zip(got, target, source, AXES, strict=True):
        expected = np.moveaxis(initial.copy(), axis + 1, 1)
        expected[1, :count] = np.moveaxis(page, axis + 1, 1)[2, :count]
        assert np.array_equal(np.moveaxis(np.asarray(array), axis + 1, 1), expected)


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
    assert [str(shape) for shape in moves.shapes(3, 7)] == [
        "keep a state of 3", "restore a state to 3", "keep a span of 7", "restore a span to 7",
    ]  # fmt: skip
    for shape in moves.shapes(3, 7):
        step, contract = shape.step()
        assert prove_isolation(step, moves.example_arguments(shape), contract).proved


def test_cached_buffers_are_as_large_as_necessary(text_lm: hybridlm.LM) -> None:
    """The whole state of fixed size, and keys and values of as many spans as there are tokens for."""
    moves = text_lm.engine.moves
    for length, spans in ((2, 1), (129, 1), (130, 2)):
        assert text_lm.prefix([5] * length).nbytes == moves.state_bytes + spans * moves.span_bytes
    total = moves.state_bytes + text_lm.context // KV_BLOCK * moves.span_bytes
    assert total == text_lm.engine.row_bytes_on_a_device


def test_a_row_moves_between_devices_bit_for_bit() -> None:
    """Row numbers count rows of all devices; other rows and signs of zeros stay."""
    rng = np.random.default_rng(0)
    source, target = (rng.normal(size=(rows, 3)).astype(np.float32) for rows in (8, 4))
    source[:, 0] = -0.0
    specs = (P("data"), P("data"), P(), P())
    step = jax.jit(
        jax.shard_map(copy_row("data", "data"), mesh=hybridlm.mesh(data=4), in_specs=specs, out_specs=P("data"))
    )
    for read in range(8):
        write = (read + 1) % 4
        (actual,) = step(target, source, np.array([read], np.int32), np.array([write], np.int32))
        expected = target.copy()
        expected[write] = source[read]
        assert np.asarray(actual).tobytes() == expected.tobytes()
