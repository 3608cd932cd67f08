"""Computed grids and computed blocks of kernels, and blocks of rows in loops."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from isolation_oracle import leaks
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from zoo.kernels.grid_kernels import (
    BLOCKS,
    HALF,
    PROGRAMS,
    ROWS,
    STEPS,
    blocks_body,
    draw_blocks,
    in_blocks,
    only_first,
)
from zoo.kernels.random_blocks import AS_LOADED, random_block_kernel
from zoo.program import LANES

from ir_passes import (
    Assumption,
    ComputedGrid,
    ContractError,
    IsolationError,
    Lane,
    LaneContract,
    Shared,
    ViolationKind,
    prove_isolation,
)
from ir_passes.jaxpr import ir
from ir_passes.kernels import read_kernels

ON_TPU = pltpu.InterpretParams(uninitialized_memory="nan")
"""The machine of a TPU on CPUs: new memory is nan, and a block that stays in place is neither loaded nor stored."""
COMPUTED = PROGRAMS[-1]
TILES = LaneContract((Shared(), Lane()), (Lane(),))


def plain(step: Callable[..., Any], args: tuple[Any, ...], written: bool | None = None) -> Any:
    """Run the plain form of a step of one kernel."""
    read = read_kernels(ir.trace(step, *args), keep=lambda eqn: False, is_written=lambda eqn: written)
    assert not read.unread
    return jax.jit(ir.as_function(read.program))(*args)[0]


def kinds(step: Callable[..., Any], args: tuple[Any, ...], contract: LaneContract) -> set[ViolationKind]:
    """The kinds of violations of a step; empty if proved."""
    try:
        prove_isolation(step, args, contract)
    except IsolationError as error:
        return {violation.kind for violation in error.violations}
    return set()


@pytest.mark.parametrize("seed", range(6))
def test_computed_blocks_are_those_of_a_tpu(seed: int) -> None:
    args = draw_blocks(np.random.default_rng(seed))
    on_tpu = jax.jit(in_blocks(interpret=ON_TPU))(*args)[0]
    assert np.isfinite(on_tpu).all()
    np.testing.assert_allclose(plain(COMPUTED.step, args), on_tpu, rtol=1e-5, atol=1e-6)


def test_memory_of_the_block_before_is_found_where_a_tpu_hands_it_out() -> None:
    """Old rows are loaded in the first step alone: the second block begins with rows of the first."""
    args: tuple[Any, ...] = (
        np.int32(3),
        np.array([0, 1, 1, 1, 1], np.int32),
        np.array([0, 1, 3, 3, 3, 3], np.int32),
        *draw_blocks(np.random.default_rng(0))[3:],
    )
    begun_once = blocks_body(begins=only_first)
    on_tpu = jax.jit(in_blocks(begun_once, interpret=ON_TPU))(*args)[0]
    np.testing.assert_array_equal(on_tpu[3], args[3][1])
    assert not np.isfinite(plain(in_blocks(begun_once), args)[3]).any()
    assert kinds(in_blocks(begun_once), args, BLOCKS) == {ViolationKind.UNINITIALIZED}
    declared = replace(BLOCKS, opaque={"sum_body": ComputedGrid(written=True)})
    assert kinds(in_blocks(begun_once), args, declared) == set()


def random_proved(seed: int) -> bool:
    """Return whether a random kernel is proved; its plain form is a TPU's result."""
    program = random_block_kernel(seed)
    if kinds(program.step, program.args(), program.contract):
        return False
    on_tpu = random_block_kernel(seed, ON_TPU)
    assert not leaks(on_tpu.step, on_tpu.contract, on_tpu.draw, seeds=range(1)), seed
    for draw in range(0 if program.name.endswith(AS_LOADED) else 2):
        args = program.args(draw)
        (result,) = jax.jit(on_tpu.step)(*args)
        assert np.isfinite(result).all(), seed
        np.testing.assert_allclose(plain(program.step, args), result, rtol=1e-5, atol=1e-6, err_msg=str(seed))
    return True


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [range(30), pytest.param(range(100, 1100), marks=pytest.mark.long)], ids=len)
def test_proved_blocks_are_those_of_a_tpu(seeds: range) -> None:
    assert sum(map(random_proved, seeds)) >= len(seeds) // 15


def test_declared_results_need_new_blocks_for_outer_steps() -> None:
    """The first step of an inner axis finds what the last one of the outer step before has stored."""

    def body(blocks: Any, x: Any, out: Any) -> None:
        out[...] = lax.cond(pl.program_id(1) == 0, lambda: pltpu.roll(out[...], 1, 0), lambda: x[...])

    def step(blocks: Array, x: Array) -> Any:
        spec = pl.BlockSpec((ROWS, HALF), lambda outer, inner, blocks: (blocks[2 * outer + inner], 0))
        grid = pltpu.PrefetchScalarGridSpec(num_scalar_prefetch=1, grid=(2, 2), in_specs=[spec], out_specs=spec)
        call = pl.pallas_call(
            body, grid_spec=grid, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=pltpu.InterpretParams(),
            compiler_params=pltpu.CompilerParams(),
        )  # fmt: skip
        return (call(jnp.clip(blocks, 0, 2), x),)

    def draw(rng: np.random.Generator) -> tuple[Any, ...]:
        return np.array([0, 1, 1, 2], np.int32), rng.normal(size=(3 * ROWS, HALF)).astype(np.float32)

    contract = replace(TILES, opaque={"body": ComputedGrid(written=True)})
    assert leaks(step, contract, draw, seeds=range(1))
    assert kinds(step, draw(np.random.default_rng(0)), contract) == {ViolationKind.OPAQUE}


COUNT = np.int32(3)


def scaled(grid: Callable[[Array], Any], block: int = 2, alias: bool = True) -> Callable[..., Any]:
    """Rows of the first lanes times two."""

    def body(x: Any, out: Any) -> None:
        out[...] = x[...] * 2.0

    def step(count: Array, x: Array) -> Any:
        spec = pl.BlockSpec((block, HALF), lambda k: (k, 0))
        call = pl.pallas_call(
            body, grid=(grid(count),), in_specs=[spec], out_specs=spec, compiler_params=pltpu.CompilerParams(),
            out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), input_output_aliases={0: 0} if alias else {},
        )  # fmt: skip
        return (call(x),)

    return step


ROWS_OF_LANES = np.ones((LANES, HALF), np.float32)


@pytest.mark.parametrize("block", [2, 3])
def test_grid_of_the_active_rows_is_read(block: int) -> None:
    """The last of blocks of 3 rows reaches beyond the 4 lanes."""
    step = scaled(lambda count: pl.cdiv(jnp.clip(count, 0, LANES), block), block)
    assert kinds(step, (COUNT, ROWS_OF_LANES), TILES) == set()
    rows = -(-COUNT // block) * block
    np.testing.assert_array_equal(plain(step, (COUNT, ROWS_OF_LANES))[:rows], 2.0)


def test_length_of_a_grid_needs_bounds_or_a_declaration() -> None:
    step, args = scaled(lambda count: pl.cdiv(count, 2)), (COUNT, ROWS_OF_LANES)
    assert kinds(step, args, TILES) == {ViolationKind.BOUNDS}
    proof = prove_isolation(step, args, replace(TILES, opaque={"body": ComputedGrid()}))
    assert [statement.id for statement in proof.assumed] == [Assumption.COMPUTED_GRID]


def test_rows_of_no_step_need_a_mask_and_a_declaration() -> None:
    step, args = scaled(lambda count: jnp.clip(count, 0, 2), alias=False), (COUNT, ROWS_OF_LANES)
    assert kinds(step, args, TILES) == {ViolationKind.UNINITIALIZED}
    assert kinds(step, args, replace(TILES, opaque={"body": ComputedGrid(written=True)})) == set()


def test_declared_grid_is_of_one_function() -> None:
    def both(count: Array, x: Array) -> Any:
        def body(x: Any, out: Any) -> None:
            out[...] = x[...] + 1.0

        other = pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))
        return (other(*scaled(lambda count: count)(count, x)),)

    contract = replace(TILES, opaque={"body": ComputedGrid()})
    with pytest.raises(IsolationError, match="is declared as one kernel and names"):
        prove_isolation(both, (COUNT, ROWS_OF_LANES), contract)


def test_declared_grid_is_a_declaration() -> None:
    contract = replace(TILES, opaque={"body": ComputedGrid(written=1)})  # pyright: ignore[reportArgumentType]
    with pytest.raises(ContractError, match="written=bool"):
        contract.bind(scaled(lambda count: count), (COUNT, ROWS_OF_LANES))


def test_declared_results_need_steps_in_order() -> None:
    """Parallel steps may have one block: what one of them has written is not what another one finds."""
    contract = replace(BLOCKS, opaque={"sum_body": ComputedGrid(written=True)})
    args = draw_blocks(np.random.default_rng(0))
    assert kinds(in_blocks(order="parallel"), args, contract) == {ViolationKind.OPAQUE}


def summed(tiles: int, resets: Callable[[Any], Any]) -> Callable[..., Any]:
    """Sums over many tiles of channels, in scratch."""

    def body(x: Any, out: Any, total: Any) -> None:
        tile = pl.program_id(1)

        @pl.when(resets(tile))
        def _() -> None:
            total[...] = jnp.zeros_like(total)

        total[...] += x[...]

        @pl.when(tile == tiles - 1)
        def _() -> None:
            out[...] = total[...]

    def step(scale: Array, x: Array) -> Any:
        call = pl.pallas_call(
            body, grid=(LANES, tiles), in_specs=[pl.BlockSpec((1, HALF), lambda lane, tile: (lane, tile))],
            out_specs=pl.BlockSpec((1, HALF), lambda lane, tile: (lane, 0)),
            out_shape=jax.ShapeDtypeStruct((LANES, HALF), x.dtype), scratch_shapes=[pltpu.VMEM((1, HALF), jnp.float32)],
            compiler_params=pltpu.CompilerParams(),
        )  # fmt: skip
        return (call(x) * scale,)

    return step


@pytest.mark.parametrize("tiles", [3, 40])
def test_scratch_lasts_for_the_tiles_of_a_lane(tiles: int) -> None:
    x = np.arange(LANES * tiles * HALF, dtype=np.float32).reshape(LANES, -1)
    right = summed(tiles, lambda tile: tile == 0)
    assert kinds(right, (np.float32(1.0), x), TILES) == set()
    np.testing.assert_allclose(plain(right, (np.float32(1.0), x)), x.reshape(LANES, tiles, HALF).sum(1), rtol=1e-6)
    for resets in (lambda tile: tile < 0, lambda tile: (tile == 0) & (pl.program_id(0) == 0)):
        assert kinds(summed(tiles, resets), (np.float32(1.0), x), TILES)


def rows_in_a_loop(
    written: Callable[[Any, Any], Any] = lambda k, start: start, carried: bool = False
) -> Callable[..., Any]:
    """Blocks of rows at shared places, read and written back."""

    def step(starts: Array, x: Array) -> Any:
        def block(k: Any, state: Any) -> Any:
            rows, before = state
            start = starts[k]
            part = lax.dynamic_slice(rows, (start, 0), (ROWS, HALF)) * 2.0
            after = part + before if carried else part
            return lax.dynamic_update_slice(rows, after, (written(k, start), 0)), part

        return (lax.fori_loop(0, STEPS, block, (x, jnp.zeros((ROWS, HALF))))[0],)

    return step


PLACES = np.array([0, 2, 1, 0, 1], np.int32)


def test_block_of_rows_goes_back_to_its_place() -> None:
    assert kinds(rows_in_a_loop(), (PLACES, ROWS_OF_LANES), TILES) == set()


@pytest.mark.parametrize("written", [lambda k, start: start + 1, lambda k, start: k, lambda k, start: 0])
def test_block_of_rows_at_another_place_is_refused(written: Any) -> None:
    assert kinds(rows_in_a_loop(written), (PLACES, ROWS_OF_LANES), TILES) == {ViolationKind.CROSS_LANE}


def test_block_of_rows_of_the_iteration_before_is_refused() -> None:
    assert kinds(rows_in_a_loop(carried=True), (PLACES, ROWS_OF_LANES), TILES) == {ViolationKind.CROSS_LANE}


@pytest.mark.parametrize(
    "step",
    [
        lambda starts, x: (lax.dynamic_slice(x, (starts[0], 0), (LANES - 1, HALF)),),
        lambda starts, x: (
            lax.dynamic_update_slice(x, lax.dynamic_slice(x, (starts[0], 0), (2, HALF)), (starts[1], 0)),
        ),
        lambda starts, x: (lax.dynamic_slice(jnp.concatenate([x, x]), (starts[0], 0), (LANES, HALF)),),
    ],
)
def test_block_of_rows_is_no_output(step: Any) -> None:
    with pytest.raises((IsolationError, ContractError)):
        prove_isolation(step, (PLACES, ROWS_OF_LANES), TILES)


def test_numbers_of_repeated_groups_are_in_bounds() -> None:
    """`jnp.repeat` with a total length reads elements of its argument for any counts."""

    def step(counts: Array, x: Array) -> Any:
        numbers = jnp.repeat(jnp.arange(LANES // ROWS), counts, total_repeat_length=STEPS)
        return in_blocks(numbers=lambda count, blocks, x: (jnp.clip(count, 0, STEPS), numbers))(
            STEPS, numbers, jnp.zeros(STEPS + 1, jnp.int32), x, jnp.concatenate([x, x], 1)
        )

    counts = np.array([2, 3], np.int32)
    assert kinds(step, (counts, ROWS_OF_LANES), TILES) == set()
    for draw in range(20):
        counts = np.random.default_rng(draw).integers(-3, 9, 2)
        numbers = jnp.repeat(jnp.arange(2), counts, total_repeat_length=STEPS)
        assert ((numbers >= 0) & (numbers < 2)).all(), counts
