"""Pallas kernels for a TPU that copy the next block during work, in two buffers."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from zoo.kernels.read_kernels import ONE, Kernel, like
from zoo.kernels.whole_kernels import WHOLE, copied
from zoo.program import LANES, SLOTS, VALUE, Program, normal, slot_map

from ir_passes import Lane, LaneContract, PageTable, Pool, SlotMap

PAGE, WIDE, PAGES = 2, 3, 14
PAGED = LaneContract((Pool("kv"), PageTable("kv", PAGES), Lane()), Lane())
ROWS = LaneContract((Pool("rows"), SlotMap("rows", SLOTS), Lane()), Pool("rows"))
TPU = pltpu.CompilerParams()


def _parity(number: Any) -> Any:
    return lax.rem(number, 2)


def buffered(
    *,
    place: Callable[[Any], Any] = _parity,
    following: Callable[[Any, Any], Any] = lambda number, place: 1 - place,
    condition: Callable[[Any], Any] = lambda blocks: blocks > 0,
    while_: Callable[[Any, Any], Any] = lambda number, blocks: number + 1 < blocks,
    page: Callable[[Any, Any, Any], Any] = lambda table, lane, number: table[lane, number],
    next_number: Callable[[Any], Any] = lambda number: number + 1,
    read: Callable[[Any], Any] = lambda place: place,
    signal: Callable[[Any], Any] = lambda place: place,
    first: int = 0,
    carried: Callable[[Any], Any] | None = None,
    inner: bool = False,
    static: bool = False,
    early: bool = False,
    waits: bool = True,
) -> Kernel:
    """Return a sum over the tokens of a lane, page by page.

    Args:
        place: number of a page -> its place in scratch.
        following: number and place of a page -> the place of the next page.
        before: number of pages -> whether the first page is copied before the loop.
        while_: number of a page, number of pages -> whether the next page is copied.
        page: table, lane, number -> page.
        next_number: number of a page -> number of the next page.
        read: the place that is copied to -> the place that is read.
        signal: place -> semaphore.
        first: place of the first page.
        carried: place of a page -> place of the next page, for a place that the loop carries.
        inner: sum token by token.
        static: all pages, for every lane.
        early: read before the wait.
        waits: wait for the copy of a page.
    """

    def body(table: Any, lengths: Any, pages: Any, out: Any, buffer: Any, signals: Any) -> None:
        lane = pl.program_id(0)
        length = lengths[lane]
        blocks = WIDE if static else jnp.minimum(lax.div(length + PAGE - 1, PAGE), WIDE)

        def copy(number: Any, place: Any) -> Any:
            return pltpu.make_async_copy(
                pages.at[page(table, lane, number)], buffer.at[place], signals.at[signal(place)]
            )

        pl.when(condition(blocks))(lambda: copy(0, first).start())

        def block(number: Any, state: Any) -> Any:
            now, total = state if carried else (place(number), state)
            pl.when(while_(number, blocks))(lambda: copy(next_number(number), following(number, now)).start())
            if early:
                total = total + buffer[read(now), 0]
            if waits:
                copy(number, now).wait()
            if inner:
                total = lax.fori_loop(0, jnp.minimum(PAGE, length - number * PAGE),
                                      lambda token, total: total + buffer[read(now), token], total)  # fmt: skip
            else:
                token = number * PAGE + lax.broadcasted_iota(jnp.int32, (PAGE, VALUE), 0)
                total = total + jnp.sum(jnp.where(token < length, buffer[read(now)], 0.0), axis=0)
            return (carried(now), total) if carried else total

        total = jnp.zeros(VALUE)
        state = lax.fori_loop(0, blocks, block, (jnp.int32(first), total) if carried else total)
        out[...] = state[1] if carried else state

    return body


def paged(body: Kernel) -> Callable[..., Any]:
    def step(pages: Array, table: Array, lengths: Array) -> Any:
        spec = pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(LANES,),
            in_specs=[WHOLE],
            out_specs=pl.BlockSpec((ONE, VALUE), lambda lane, *_: (lane, 0)),
            scratch_shapes=[pltpu.VMEM((2, PAGE, VALUE), jnp.float32), pltpu.SemaphoreType.DMA((2,))],
        )
        shape = like(jnp.zeros((LANES, VALUE)))[0]
        call = pl.pallas_call(body, grid_spec=spec, out_shape=shape, compiler_params=TPU, interpret=True)
        return call(table, lengths, pages)

    return step


def draw_paged(rng: np.random.Generator) -> tuple[Any, ...]:
    table = (1 + rng.permutation(PAGES - 1)[: LANES * WIDE]).reshape(LANES, WIDE).astype(np.int32)
    lengths = rng.permutation(np.resize([0, 1, PAGE + 1, PAGE * WIDE], LANES)).astype(np.int32)
    return normal(rng, PAGES, PAGE, VALUE), table, lengths


def by_lane(semaphore: Callable[[Any], Any] = _parity, place: Callable[[Any], Any] = _parity, other: Any = None) -> Any:
    """Return a step with one copy each way; the lane gives semaphore and place.

    Args:
        semaphore, place: number of the lane -> number of the semaphore, place in scratch.
        other: semaphore of the first wait; None for the semaphore of the copy.
    """

    def body(slots: Any, x: Any, old: Any, new: Any, buffer: Any, signals: Any) -> None:
        lane = pl.program_id(0)
        row, target = new.at[slots[lane]], buffer.at[place(lane)]
        pltpu.make_async_copy(row, target, signals.at[semaphore(lane)]).start()
        pltpu.make_async_copy(row, target, signals.at[(other or semaphore)(lane)]).wait()
        target[...] = target[...] * 0.5 + x[...]
        copied(target, row, signals.at[semaphore(lane)])

    def step(pool: Array, slots: Array, x: Array) -> Any:
        spec = pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(LANES,),
            in_specs=[pl.BlockSpec((ONE, VALUE), lambda lane, *_: (lane, 0)), WHOLE],
            out_specs=WHOLE,
            scratch_shapes=[pltpu.VMEM((2, VALUE), jnp.float32), pltpu.SemaphoreType.DMA((2,))],
        )
        call = pl.pallas_call(
            body, grid_spec=spec, out_shape=like(pool)[0], input_output_aliases={2: 0}, compiler_params=TPU,
            interpret=True,
        )  # fmt: skip
        return call(slots, x, pool)

    return step


def draw_by_lane(rng: np.random.Generator) -> tuple[Any, ...]:
    return normal(rng, SLOTS, VALUE), slot_map(rng), normal(rng, LANES, VALUE)


KERNELS = {
    "the other place": buffered(),
    "the place by number": buffered(place=lambda n: n % 2, following=lambda n, place: (n + 1) % 2),
    "the place by bits": buffered(place=lambda n: n & 1, following=lambda n, place: place ^ 1),
    "a carried place": buffered(carried=lambda place: 1 - place),
    "a carried place from 1": buffered(carried=lambda place: jnp.where(place == 0, 1, 0), first=1),
    "less than the last": buffered(while_=lambda n, blocks: n < blocks - 1),
    "token by token": buffered(inner=True),
    "all pages": buffered(static=True),
}
PROGRAMS = (
    *(Program(f"kernel: two buffers, {name}", paged(body), PAGED, draw_paged) for name, body in KERNELS.items()),
    Program("kernel: a semaphore by lane", by_lane(), ROWS, draw_by_lane),
)
