"""Declared kernels called with arguments outside their declaration."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.experimental import pallas as pl
from mutants.mutant import Evidence, Kind, wrong
from zoo import rows
from zoo.program import KEY, LANES, SLOTS, VALUE, normal
from zoo.rows import advance

from ir_passes import Lane, LaneContract, Opaque, Pool, SlotMap, rowwise

PLAIN, OTHER = "rows behind a slot map", "two slot maps"
POOL, SLOTMAP = Pool("seq"), SlotMap("seq", SLOTS)
FEW = LANES + 1


def take_rows(pool: Any, slots: Any) -> np.ndarray:
    """A kernel that clamps, run on the host."""
    return np.take(pool, slots, axis=0, mode="clip")


def put_rows(pool: Any, slots: Any, new: Any) -> np.ndarray:
    """A kernel that clamps, run on the host."""
    pool = np.array(pool)
    pool[np.clip(slots, 0, len(pool) - 1)] = new
    return pool


def put_real_rows(pool: Any, slots: Any, new: Any, lengths: Any) -> np.ndarray:
    """A kernel that leaves idle lanes alone, run on the host."""
    pool = np.array(pool)
    real = np.asarray(lengths) > 0
    pool[np.asarray(slots)[real]] = np.asarray(new)[real]
    return pool


def copy_rows(pool: Any) -> np.ndarray:
    return np.array(pool)


def take(pool: Array, slots: Array) -> Array:
    return jax.pure_callback(take_rows, jax.ShapeDtypeStruct((*slots.shape, *pool.shape[1:]), pool.dtype), pool, slots)


def put(pool: Array, slots: Array, new: Array) -> Array:
    return jax.pure_callback(put_rows, jax.ShapeDtypeStruct(pool.shape, pool.dtype), pool, slots, new)


def put_real(pool: Array, slots: Array, new: Array, lengths: Array) -> Array:
    return jax.pure_callback(put_real_rows, jax.ShapeDtypeStruct(pool.shape, pool.dtype), pool, slots, new, lengths)


def copied(pool: Array) -> Array:
    return jax.pure_callback(copy_rows, jax.ShapeDtypeStruct(pool.shape, pool.dtype), pool)


def kernels(group: str = "seq") -> dict[str, Opaque]:
    """Their declarations for the pools of a group, and one for row pools."""
    pool, slots = Pool(group), SlotMap(group, SLOTS)
    return {
        "take_rows": Opaque((pool, slots), (Lane(),)),
        "put_rows": Opaque((pool, slots, Lane()), (pool,)),
        "put_real_rows": Opaque((pool, slots, Lane(), Lane(role="length")), (pool,)),
        "copy_rows": Opaque((Pool("rows"),), (Lane(),)),
    }


CONTRACT = LaneContract(rows.STEP.inputs, rows.STEP.outputs, opaque=kernels())
LENGTH = LaneContract(rows.LENGTH.inputs, rows.LENGTH.outputs, opaque=kernels())
TWO = LaneContract(rows.TWO.inputs, rows.TWO.outputs, opaque=kernels("a"))
COUPLED = LaneContract((POOL, POOL, SLOTMAP, replace(SLOTMAP, disjoint=True), Lane()), (POOL, POOL), opaque=kernels())
TAKEN = LaneContract((POOL, SLOTMAP, Pool("rows"), Lane()), (Lane(),), opaque=kernels())


def kernel_step(pool, slots, x, w):
    """The right one: rows are read by one kernel and written by another."""
    new = advance(take(pool, slots), x, w)
    return new.sum(1), put(pool, slots, new)


def length_step(pool, slots, x, w, lengths):
    """The right step, with a kernel that knows the idle lanes."""
    new = advance(take(pool, slots), x, w)
    return new.sum(1), put_real(pool, slots, new, lengths)


def row_pool_step(pool, slots, state, x):
    """The right one with a kernel for row pools."""
    return (copied(state) + take(pool, slots) + x,)


def draw_few(rng: np.random.Generator) -> tuple[Any, ...]:
    pool, slots, x, w = rows.draw(rng)
    return pool[:FEW], slots, x, w


def draw_coupled(rng: np.random.Generator) -> tuple[Any, ...]:
    _, slots, *_ = rows.draw(rng)
    return normal(rng, SLOTS, VALUE), normal(rng, SLOTS, VALUE), slots, rows.draw(rng)[1], normal(rng, LANES, VALUE)


def draw_taken(rng: np.random.Generator) -> tuple[Any, ...]:
    _, slots, *_ = rows.draw(rng)
    return normal(rng, SLOTS, VALUE), slots, normal(rng, LANES, VALUE), normal(rng, LANES, VALUE)


def _written(change: Callable[..., Array]) -> Callable[..., Any]:
    def step(pool, slots, x, w):
        new = advance(take(pool, slots), x, w)
        return new.sum(1), put(pool, slots, change(new, x))

    return step


def _read(change: Callable[[Array], Array]) -> Callable[..., Any]:
    def step(pool, slots, x, w):
        new = advance(change(take(pool, slots)), x, w)
        return new.sum(1), put(pool, slots, new)

    return step


def permuted_slots(pool, slots, x, w):
    """The rows of other lanes, in an order that their values decide."""
    new = advance(take(pool, slots), x, w)
    return new.sum(1), put(pool, slots[jnp.argsort(x[:, 0])], new)


def guarded_slots(pool, slots, x, w, lengths):
    """Idle lanes use an index past the end, clamped by the kernel."""
    new = advance(pool[slots], x, w)
    return new.sum(1), put(pool, jnp.where(lengths > 0, slots, SLOTS), new)


def other_lengths(pool, slots, x, w, lengths):
    """A number that is not 0 where the lane's length is."""
    new = advance(take(pool, slots), x, w)
    return new.sum(1), put_real(pool, slots, new, jnp.where(lengths < 2, 2 - lengths, lengths))


def without_lengths(pool, slots, x, w, lengths):
    """A kernel without idle lanes follows a kernel with them."""
    new = advance(take(pool, slots), x, w)
    return new.sum(1), put(put_real(pool, slots, new, lengths), slots, new)


def other_map(a, b, slots_a, slots_b, x):
    """One group's pool with the other's slot map."""
    state = 0.5 * a[slots_a] + x
    return b, state, put(a, slots_b, state)


def other_pool(a, b, slots_a, slots_b, x):
    """The other group's pool with one group's slot map."""
    state = 0.5 * a[slots_a] + x
    return put(b, slots_a, jnp.stack([state, state], 1)), state, a


def row_pool_by_slot(pool, slots, state, x):
    """A pool with one row per lane replaces a slotted pool."""
    return (take(state, slots) + x,)


def by_two_maps(a, b, slots, rest, x):
    """Two pools of a group, each by its own map."""
    return put(a, slots, x), put(b, rest, x)


def by_halves(a, b, slots, rest, x):
    """Half the lanes write one pool of a group, half the other."""
    first, second = slice(0, LANES // 2), slice(LANES // 2, None)
    return a.at[slots[first]].set(x[first]), b.at[slots[second]].set(x[second])


def made(operation: Callable[[Array], Array]) -> Callable[[Array], Array]:
    @jax.jit
    def by_row(x):
        return operation(x)

    return by_row


doubled, reversed_rows = made(lambda x: x * 2.0), made(lambda x: x[::-1])
rowwise(doubled, (Lane(),))
CAPTURED = np.arange((SLOTS + 1) * KEY * VALUE, dtype=np.float32).reshape(SLOTS + 1, KEY, VALUE)


def namesake(pool, slots, x, w):
    """Another function of the same factory was declared."""
    return rows.plain_step(pool, slots, reversed_rows(x), w)


def tripled_rows(x: Any) -> np.ndarray:
    return np.asarray(x) * 3


def called_back(function: Callable[..., Any], x: Array) -> Array:
    return jax.pure_callback(function, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def _two(first: Callable[..., Any], second: Callable[..., Any]) -> Callable[..., Any]:
    return lambda pool, slots, x, w: rows.plain_step(pool, slots, called_back(second, called_back(first, x)), w)


def _of_name(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def operation(x):
        return function(x)

    operation.__name__ = name
    return operation


BY_ROW = Opaque((Lane(),), (Lane(),))
NAMED = LaneContract(
    rows.STEP.inputs, rows.STEP.outputs, opaque={"tripled_rows": BY_ROW, "<lambda>": BY_ROW, "roll": BY_ROW}
)


def pallas_of_one_name(pool, slots, x, w):
    """Two kernels with one function name; the second reverses rows."""

    def kernel_of(operation: Callable[[Array], Array]) -> Any:
        def tripled_rows(x_ref, out_ref):
            out_ref[...] = operation(x_ref[...])

        return pl.pallas_call(
            tripled_rows, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=True, name="tripled_rows"
        )

    x = kernel_of(lambda array: array[::-1])(kernel_of(lambda array: array * 3)(x))
    return rows.plain_step(pool, slots, x, w)


def captured_rows(pool, slots, x, w):
    """A larger pool, captured during tracing."""
    return advance(pool[slots] + jnp.asarray(CAPTURED)[slots], x, w).sum(1), pool


def _kernel(id: str, description: str, step: Callable[..., Any], *kinds: Kind, **options: Any) -> Any:
    options = {"contract": CONTRACT} | options
    return wrong(options.pop("base", PLAIN), id, "JAX", description, step, *kinds, **options)


MUTANTS = (
    _kernel("kernel-writes-rolled", "a declared kernel is given the values of the next lane to write",
            _written(lambda new, x: jnp.roll(new, 1, 0)), Kind.CROSS_LANE),
    _kernel("kernel-writes-less-mean", "a declared kernel is given values less their mean over lanes to write",
            _written(lambda new, x: new - new.mean(0, keepdims=True)), Kind.CROSS_LANE),
    _kernel("kernel-writes-sorted", "a declared kernel is given sorted rows to write, and slots as they are",
            _written(lambda new, x: new[jnp.argsort(x[:, 0])]), Kind.CROSS_LANE),
    _kernel("kernel-reads-rolled", "the rows that a declared kernel has read are moved on by one lane",
            _read(lambda old: jnp.roll(old, 1, 0)), Kind.CROSS_LANE),
    _kernel("kernel-reads-mean", "the rows that a declared kernel has read are averaged over lanes",
            _read(lambda old: jnp.broadcast_to(old.mean(0, keepdims=True), old.shape)), Kind.CROSS_LANE),
    _kernel("kernel-permuted-slots", "a declared kernel gets sorted slots", permuted_slots, Kind.CROSS_LANE),
    _kernel("kernel-guarded-slots", "a declared kernel gets a row past the end for idle lanes, and clamps it",
            guarded_slots, Kind.OPAQUE, contract=LENGTH, draw=rows.draw_length),
    _kernel("kernel-other-lengths", "a declared kernel is told of lengths that are not the lanes'", other_lengths,
            Kind.IDLE, contract=LENGTH, draw=rows.draw_length),
    _kernel("kernel-without-lengths", "a declared kernel writes the rows of idle lanes, behind one that does not",
            without_lengths, Kind.IDLE, contract=LENGTH, draw=rows.draw_length),
    _kernel("kernel-few-rows", "a declared kernel gets a pool of fewer rows than there are slots, and clamps",
            kernel_step, Kind.BOUNDS, evidence=Evidence.TRACED, draw=draw_few),
    _kernel("kernel-other-map", "a declared kernel gets the slot map of another group", other_map, Kind.OPAQUE,
            Kind.WRONG_ROW, base=OTHER, contract=TWO),
    _kernel("kernel-other-pool", "a declared kernel gets a pool of another group", other_pool, Kind.OPAQUE, base=OTHER,
            contract=TWO),
    _kernel("kernel-row-pool-by-slot", "a kernel that reads by slot gets a pool with one row for each lane",
            row_pool_by_slot, Kind.OPAQUE, contract=TAKEN, draw=draw_taken),
    _kernel("kernel-row-pool-mean", "what a kernel has made of a pool with one row for each lane is averaged",
            lambda pool, slots, state, x: (copied(state).mean(0, keepdims=True) + x,), Kind.CROSS_LANE, contract=TAKEN,
            draw=draw_taken),
    _kernel("kernels-by-two-maps", "kernels write the pools of one group by two maps", by_two_maps, Kind.WRONG_ROW,
            evidence=Evidence.FAULT, contract=COUPLED, draw=draw_coupled),
    _kernel("halves-of-a-group", "two pools of one group are written at the rows of different lanes", by_halves,
            Kind.COUPLING, evidence=Evidence.FAULT, contract=COUPLED, draw=draw_coupled),
    _kernel("namesake", "a function that shares its name and line with one declared row-wise", namesake, Kind.OPAQUE,
            contract=rows.STEP),
    _kernel("kernel-of-one-name", "a second kernel of the name of the one declared takes rows in reverse order",
            pallas_of_one_name, Kind.AMBIGUOUS, contract=NAMED),
    _kernel("callback-of-one-name", "a second callback of the name of the one declared takes rows in reverse order",
            _two(tripled_rows, _of_name("tripled_rows", lambda x: np.asarray(x)[::-1])), Kind.AMBIGUOUS,
            contract=NAMED),
    _kernel("two-lambdas", "two callbacks without a name, of which one was declared",
            _two(lambda x: np.asarray(x) * 3, lambda x: np.roll(x, 1, 0)), Kind.AMBIGUOUS, contract=NAMED),
    _kernel("callback-of-other-arguments",
            "a function that rolls along an axis that it was given beforehand: of the features, and of the lanes",
            _two(partial(np.roll, shift=1, axis=1), partial(np.roll, shift=1, axis=0)), Kind.AMBIGUOUS, contract=NAMED),
    _kernel("captured-by-slot", "a pool of another size was captured, and is read by slot", captured_rows,
            Kind.CONSTANT, evidence=Evidence.FAULT, contract=rows.STEP),
)  # fmt: skip
