"""Random kernels that find a lane's part of whole arrays in the body."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import triton as plgpu
from zoo.program import LANES, VALUE, Program, normal

from ir_passes import Lane, LaneContract, Pool

CONTRACT = LaneContract(inputs=(Pool("rows"), Lane(role="length"), Lane()), outputs=(Lane(), Pool("rows")))
WHOLE = pl.BlockSpec(memory_space=pl.ANY)
Index = Callable[[Any], Any]
Statement = Callable[["Refs"], None]


class Refs:
    """A step's memory, and its rows, mostly its own."""

    def __init__(self, refs: tuple[Any, ...], rng: np.random.Generator):
        self.lengths, self.x, _, self.out, self.new, self.held, self.done = refs
        self.lane, self._rng = pl.program_id(0), rng
        self.length = self.lengths[self.row()]

    def one_of(self, *choices: Any) -> Any:
        return choices[self._rng.integers(len(choices))]

    def row(self) -> Any:
        lane = self.lane
        return self.one_of(*[lane] * 14, (lane + 1) % LANES, LANES - 1 - lane, lane * 0, lane * 1)

    def rows(self) -> Any:
        return pl.ds(self.row(), 1)


def _show(refs: Refs) -> None:
    refs.out[refs.row()] = refs.new[refs.row()] * refs.x[refs.row()]


def _copy_out(refs: Refs) -> None:
    refs.out[refs.rows()] = refs.x[refs.rows()]


def _by_place(refs: Refs) -> None:
    row = refs.row()
    for place in range(VALUE - refs.one_of(0, 0, 0, 1)):
        refs.out[row, place] = refs.x[row, place] + place


def _update(refs: Refs) -> None:
    refs.new[refs.row()] = refs.new[refs.row()] * 0.5 + refs.x[refs.row()]


def _update_real(refs: Refs) -> None:
    pl.when(refs.length > 0)(lambda: _update(refs))


def _masked(refs: Refs) -> None:
    read, stored = (VALUE - refs.one_of(0, 0, 0, 0, 1) for _ in range(2))
    indices = jnp.arange(VALUE)
    rest = refs.one_of({"other": 0.0}, {"other": 0.0}, {})
    value = plgpu.load(refs.x.at[refs.row(), pl.ds(0, VALUE)], mask=indices < read, **rest)
    plgpu.store(refs.out.at[refs.row(), pl.ds(0, VALUE)], value * 2.0, mask=indices < stored)


def _in_turns(refs: Refs) -> None:
    begin, row = refs.one_of(0, 0, 0, 0, 1, -1), refs.row()
    end = refs.one_of(*[jnp.minimum(refs.length, VALUE)] * 3, refs.length, jnp.minimum(refs.length, VALUE + 1))
    total = lax.fori_loop(begin, end, lambda place, total: total + refs.x[row, place], jnp.float32(0.0))
    refs.out[refs.row()] = refs.x[row] * total


def _scratch(refs: Refs) -> None:
    refs.held[...] = refs.x[refs.rows()]


def _scratch_out(refs: Refs) -> None:
    refs.out[refs.rows()] = refs.held[...] + 1.0


def _copied(refs: Refs, source: Any, target: Any, semaphore: int) -> None:
    copy = pltpu.make_async_copy(source, target, refs.done.at[semaphore])
    copy.start()
    if refs.one_of(*[True] * 9, False):
        copy.wait()


def _fetch(refs: Refs) -> None:
    _copied(refs, refs.new.at[refs.rows()], refs.held, 0)


def _fetch_x(refs: Refs) -> None:
    _copied(refs, refs.x.at[refs.rows()], refs.held, 0)


def _advance(refs: Refs) -> None:
    refs.held[...] = refs.held[...] * 0.5


def _put(refs: Refs) -> None:
    _copied(refs, refs.held, refs.new.at[refs.rows()], 1)


def _put_real(refs: Refs) -> None:
    pl.when(refs.length > 0)(lambda: _put(refs))


def _put_out(refs: Refs) -> None:
    _copied(refs, refs.held, refs.out.at[refs.rows()], 1)


def _straight(refs: Refs) -> None:
    _copied(refs, refs.x.at[refs.rows()], refs.out.at[refs.rows()], 0)


BY_INDEX: tuple[Statement, ...] = (
    _show, _copy_out, _by_place, _masked, _in_turns, _scratch, _scratch_out, _update, _update_real, _update_real,
)  # fmt: skip
BY_COPIES: tuple[Statement, ...] = (
    _fetch, _fetch, _fetch_x, _advance, _put_real, _put_real, _put, _put_out, _put_out, _straight
)  # fmt: skip


def random_whole_kernel(seed: int) -> Program:
    """A step of one random kernel."""
    rng = np.random.default_rng(seed)
    on_tpu = rng.random() < 0.5
    statements = BY_COPIES if on_tpu else BY_INDEX
    picked = sorted(rng.choice(len(statements), size=rng.integers(2, 6), replace=False))
    params = pltpu.CompilerParams() if on_tpu else plgpu.CompilerParams()
    alias, draws = rng.random() < 0.8, int(rng.integers(1 << 31))

    def body(*refs: Any) -> None:
        actual = Refs(refs, np.random.default_rng(draws))
        for k in picked:
            statements[k](actual)

    def step(rows: Array, lengths: Array, x: Array) -> Any:
        length = pl.BlockSpec(memory_space=pltpu.SMEM) if on_tpu else WHOLE
        call = pl.pallas_call(
            body,
            grid=(LANES,),
            in_specs=[length, WHOLE, WHOLE],
            out_specs=[WHOLE, WHOLE],
            out_shape=[jax.ShapeDtypeStruct(array.shape, array.dtype) for array in (x, rows)],
            scratch_shapes=[pltpu.VMEM((1, VALUE), jnp.float32), pltpu.SemaphoreType.DMA((2,))],
            input_output_aliases={2: 1} if alias else {},
            compiler_params=params,
            interpret=True,
        )
        return call(lengths, x, rows)

    return Program(f"random kernel of whole arrays {seed}", step, CONTRACT, _draw)


def _draw(rng: np.random.Generator) -> tuple[Any, ...]:
    lengths = rng.integers(0, VALUE + 1, LANES).astype(np.int32)
    return normal(rng, LANES, VALUE), lengths, normal(rng, LANES, VALUE)
