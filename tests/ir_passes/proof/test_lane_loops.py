"""Loops that stop each lane separately are proved, other loops are refused.

More than 300 lines: a list. `outside_steps` has the plain forms.
"""

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from isolation_oracle import leaks
from jax import lax

from ir_passes import IsolationError, Lane, LaneContract, Pool, Shared, SlotMap, prove_isolation
from ir_passes.proof.violations import ViolationKind

LANES, WIDTH, TURNS = 3, 4, 6
CONTRACT = LaneContract((Lane(), Lane()), Lane())


def draw(rng: np.random.Generator) -> tuple[Any, ...]:
    return rng.normal(size=(LANES, WIDTH)).astype(np.float32), rng.integers(0, TURNS, LANES).astype(np.int32)


ARGS = draw(np.random.default_rng(0))


def until_none_is_active(choose: Callable[..., Any], active: Callable[..., Any] = lambda n, turns: n < turns) -> Any:
    """Return a loop under `any(active)`; `choose` returns the next values and counts."""

    def step(x, turns):
        count = jnp.zeros(LANES, jnp.int32)
        go_on = lambda state: jnp.any(active(state[1], turns))
        return lax.while_loop(go_on, lambda state: choose(*state, turns), (x, count))[0]

    return step


def counted(x, n, mask, new=jnp.tanh):
    return jnp.where(mask[:, None], new(x), x), jnp.where(mask, n + 1, n)


def flagged(with_flag: bool) -> Any:
    """Return a loop that carries a flag of each lane."""

    def step(x, turns):
        x = jnp.clip(jnp.where(jnp.isfinite(x), x, 0.0), -4.0, 4.0)

        def body(state):
            x, flag = state
            small = jnp.abs(x).max(1) < 0.5
            if with_flag:
                return jnp.where(flag[:, None], x, 0.5 * x), flag | small
            return jnp.where(flag[:, None], 0.5 * x, x), flag & ~small

        test = (lambda state: ~jnp.all(state[1])) if with_flag else (lambda state: jnp.any(state[1]))
        return lax.while_loop(test, body, (x, turns == 0 if with_flag else turns > 0))[0]

    return step


def to_the_greatest(
    mask: Callable[..., Any] = lambda t, turns: t < turns,
    end: Callable[..., Any] = jnp.max,
    new: Callable[..., Any] = jnp.tanh,
    old: Callable[..., Any] = lambda x: x,
    start: int = 0,
) -> Any:
    """Return a loop to the greatest number of turns; a mask selects new values."""

    def step(x, turns):
        turns = jnp.clip(turns, 0, TURNS)
        return lax.fori_loop(start, end(turns), lambda t, x: jnp.where(mask(t, turns)[:, None], new(x), old(x)), x)

    return step


def while_below_the_greatest(result: Callable[..., Any] = lambda t, count, x: x) -> Any:
    """Return the loop with a bound, a second counter, and the end on the left."""

    def step(x, turns):
        turns = jnp.clip(turns, 0, TURNS)

        def body(state):
            t, count, x = state
            return t + 1, count + 1, jnp.where((t >= turns)[:, None], x, 0.5 * x + 1)

        t, count, x = lax.while_loop(lambda state: turns.max() > state[0], body, (0, 0, x))
        return result(t, count, x)

    return step


def recorded(write: Callable[..., Any]) -> Any:
    """Return a loop that records each turn; `write`: record, turn, mask, values -> record."""

    def step(x, turns):
        turns = jnp.clip(turns, 0, TURNS)

        def body(t, state):
            x, record = state
            mask = (t < turns)[:, None]
            new = jnp.where(mask, jnp.tanh(x), x)
            return new, write(record, t, mask, new)

        return lax.fori_loop(0, turns.max(), body, (x, jnp.zeros((LANES, TURNS, WIDTH))))[1].sum(1)

    return step


def while_below_without_counter(x, turns):
    turns = jnp.clip(turns, 0, TURNS)

    def body(state):
        t, x = state
        return t + 1, jnp.where((t < turns)[:, None], jnp.tanh(x), x)

    return lax.while_loop(lambda state: state[0] < turns.max(), body, (0, x))[1]


def counting(
    go_on: Callable[..., Any] = lambda x, t, turns: (t < turns).any(),
    mask: Callable[..., Any] = lambda t, turns: t < turns,
    result: Callable[..., Any] = lambda x, t: x,
    start: int = 0,
    by: int = 1,
) -> Any:
    """Return a loop with a shared counter; a mask selects new or old values."""

    def step(x, turns):
        turns = jnp.clip(turns, 0, TURNS)

        def body(state):
            x, t = state
            return jnp.where(mask(t, turns)[:, None], jnp.tanh(x), x), t + by

        return result(*lax.while_loop(lambda state: go_on(*state, turns), body, (x, jnp.int32(start))))

    return step


def finishing(
    go_on: Callable[..., Any] = lambda flags, t: ~flags.all() & (t < TURNS),
    keep: Callable[..., Any] = lambda flags, new, old: jnp.where(flags[:, None], old, new),
    finished: Callable[..., Any] = lambda flags, t, turns: flags | (turns <= t),
    result: Callable[..., Any] = lambda x, t: x,
) -> Any:
    """Return a loop with a flag of each lane and a limit for all."""

    def step(x, turns):
        turns = jnp.clip(turns, 0, TURNS)

        def body(state):
            x, flags, t = state
            return keep(flags, 0.5 * x + 1, x), finished(flags, t, turns), t + 1

        x, _, t = lax.while_loop(lambda s: go_on(s[1], s[2]), body, (x, jnp.zeros(LANES, bool), jnp.int32(0)))
        return result(x, t)

    return step


CLEAN = {
    "greatest, from 1": to_the_greatest(start=1),
    "greatest, limited": to_the_greatest(end=lambda turns: jnp.clip(turns.max(), 1, 3)),
    "greatest, negated": to_the_greatest(mask=lambda t, turns: ~(turns <= t)),
    "greatest, two masks": to_the_greatest(mask=lambda t, turns: (t < turns) & (turns > 2)),
    "greatest in the condition": while_below_without_counter,
    "greatest, recorded": recorded(
        lambda record, t, mask, new: record.at[:, t].set(jnp.where(mask, new, record[:, t]))
    ),
    "any": until_none_is_active(lambda x, n, turns: counted(x, n, n < turns)),
    "flag": flagged(with_flag=False),
    "done": flagged(with_flag=True),
    "counter": counting(),
    "counter and a limit": counting(lambda x, t, turns: (t < turns).any() & (t < 4)),
    "a limit and a counter": counting(lambda x, t, turns: (t < 4) & (t < turns).any()),
    "flags and a limit": finishing(),
    "flags": finishing(lambda flags, t: ~flags.all()),
    "flags of unfinished lanes": finishing(lambda flags, t: (~flags).any() & (t < TURNS)),
}
LEAKS = {
    "greatest, all values change": to_the_greatest(old=lambda x: 0.5 * x),
    "greatest, cases exchanged": to_the_greatest(mask=lambda t, turns: t >= turns),
    "greatest, one more turn": to_the_greatest(mask=lambda t, turns: t <= turns),
    "greatest, twice the turns": to_the_greatest(mask=lambda t, turns: t < 2 * turns),
    "greatest, other lanes": to_the_greatest(mask=lambda t, turns: t < turns[::-1]),
    "greatest, one lane": to_the_greatest(mask=lambda t, turns: jnp.broadcast_to(t < turns[0], (LANES,))),
    "greatest, either mask": to_the_greatest(mask=lambda t, turns: (t < turns) | (turns > 2)),
    "greatest, less one": to_the_greatest(end=lambda turns: turns.max() - 1),
    "greatest of two": to_the_greatest(end=lambda turns: turns[:2].max()),
    "least": to_the_greatest(end=jnp.min),
    "total": to_the_greatest(mask=lambda t, turns: t < 2 * turns, end=jnp.sum),
    "greatest, the counter": while_below_the_greatest(lambda t, count, x: x + t),
    "greatest, a second counter": while_below_the_greatest(lambda t, count, x: x + count),
    "greatest, recorded without a mask": recorded(lambda record, t, mask, new: record.at[:, t].set(new)),
    "greatest, recorded at the next turn": recorded(
        lambda record, t, mask, new: record.at[:, t + 1].set(jnp.where(mask, new, record[:, t]))
    ),
    "all values change": until_none_is_active(lambda x, n, turns: (jnp.tanh(x), counted(x, n, n < turns)[1])),
    "mask swapped": until_none_is_active(
        lambda x, n, turns: (counted(x, n, n >= turns)[0], counted(x, n, n < turns)[1])
    ),
    "another mask": until_none_is_active(
        lambda x, n, turns: (counted(x, n, n <= turns)[0], counted(x, n, n < turns)[1])
    ),
    "mask of other lanes": until_none_is_active(
        lambda x, n, turns: (counted(x, n, (n < turns)[::-1])[0], counted(x, n, n < turns)[1])
    ),
    "all for any": lambda x, turns: lax.while_loop(
        lambda s: jnp.all(s[1] < turns), lambda s: counted(*s, s[1] < turns), (x, jnp.zeros(LANES, jnp.int32))
    )[0],
    "number of turns": lambda x, turns: x + lax.while_loop(
        lambda s: jnp.any(s[1] < turns), lambda s: (s[0] + 1, counted(x, s[1], s[1] < turns)[1]),
        (jnp.float32(0), jnp.zeros(LANES, jnp.int32)),
    )[0],
    "sum over lanes": lambda x, turns: jax.vmap(
        lambda x, n: lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, s[1] + lax.psum(s[1], "i")), (0, x))[1],
        axis_name="i",
    )(x, turns),
    "the counter returned": counting(result=lambda x, t: x + t.astype(jnp.float32)),
    "a wider mask": counting(mask=lambda t, turns: t <= turns),
    "no mask": counting(mask=lambda t, turns: turns >= 0),
    "a counter that falls": counting(lambda x, t, turns: (t < turns).any() & (t > -4), start=3, by=-1),
    "a test of other lanes' values": counting(lambda x, t, turns: (t < turns).any() & (x.sum() < 1)),
    "until one lane has stopped": counting(lambda x, t, turns: (t < turns).all()),
    "either part": counting(
        lambda x, t, turns: (t < turns).any() | (x[0, 0] < 0.1) & (t < 9), lambda t, turns: turns >= 0
    ),
    "the limit's counter returned": finishing(result=lambda x, t: x + t.astype(jnp.float32)),
    "finished lanes go on": finishing(keep=lambda flags, new, old: new),
    "until one lane has finished": finishing(lambda flags, t: ~flags.any() & (t < TURNS)),
    "flags of other lanes": finishing(finished=lambda flags, t, turns: flags[::-1] | (turns <= t)),
}  # fmt: skip


@pytest.mark.parametrize("name", CLEAN)
def test_a_loop_of_each_lane_is_proved(name: str) -> None:
    assert prove_isolation(CLEAN[name], ARGS, CONTRACT).lanes == LANES
    assert not leaks(CLEAN[name], CONTRACT, draw, seeds=range(2))


@pytest.mark.parametrize("name", LEAKS)
def test_a_loop_that_depends_on_other_lanes_is_refused(name: str) -> None:
    with pytest.raises(IsolationError) as error:
        prove_isolation(LEAKS[name], ARGS, CONTRACT)
    kinds = {violation.kind for violation in error.value.violations}
    assert kinds <= {ViolationKind.CONTROL, ViolationKind.CROSS_LANE}
    assert leaks(LEAKS[name], CONTRACT, draw, seeds=range(8), first=True)


def test_lanes_that_begin_again_at_a_shared_turn_are_refused() -> None:
    step = finishing(finished=lambda flags, t, turns: (flags | (turns <= t)) & (t != 2))
    x = jnp.ones((LANES, WIDTH))
    early, late = (step(x, jnp.array([0, 0, last]))[0, 0] for last in (0, 5))
    assert early != late
    with pytest.raises(IsolationError):
        prove_isolation(step, ARGS, CONTRACT)


def test_a_loop_over_a_shared_number_of_rows() -> None:
    rows = jnp.ones((LANES, WIDTH))
    contract = LaneContract((Pool("s"), Lane(), Shared()), Pool("s"))
    body = lambda x, shift: lambda i, rows: rows.at[i].set(0.5 * rows[i] + x[(i + shift) % LANES])
    step = lambda shift: lambda rows, x, count: lax.fori_loop(0, count, body(x, shift), rows)
    advance = lambda rows, x, count: lax.fori_loop(0, count, lambda i, rows: rows.at[i].set(0.5 * rows[i] + x[i]), rows)
    assert prove_isolation(advance, (rows, rows, jnp.int32(2)), contract).lanes == LANES
    with pytest.raises(IsolationError):
        prove_isolation(step(1), (rows, rows, jnp.int32(2)), contract)


COUNTED = LaneContract((Pool("s"), Lane(), Shared(role="active_count")), Pool("s"))


def draw_count(rng: np.random.Generator) -> tuple[Any, ...]:
    rows, x = (rng.normal(size=(LANES, WIDTH)).astype(np.float32) for _ in range(2))
    return rows, x, np.int32(rng.integers(LANES + 1))


def while_below(bound: Callable[..., Any], index: Callable[..., Any] = lambda i: i, by: int = 1) -> Any:
    """Return a loop over lane numbers below a bound."""

    def body(i, rows, x):
        return i + by, rows.at[index(i)].set(0.5 * rows[index(i)] + x[index(i)])

    return lambda rows, x, count: lax.while_loop(
        lambda state: state[0] < bound(count), lambda state: body(*state, x), (0, rows)
    )[1]


@pytest.mark.parametrize("name", ["fori", "while"])
def test_a_loop_over_active_lanes_keeps_the_rows_of_the_others(name: str) -> None:
    def fori(rows, x, count):
        return lax.fori_loop(0, count, lambda i, rows: rows.at[i].set(0.5 * rows[i] + x[i]), rows)

    step = fori if name == "fori" else while_below(lambda count: count)
    args = draw_count(np.random.default_rng(0))
    assert any(claim.id == "beyond-count" for claim in prove_isolation(step, args, COUNTED).proved)
    assert not leaks(step, COUNTED, draw_count, seeds=range(4))


@pytest.mark.parametrize("step", [
    while_below(lambda count: count + 1),
    while_below(lambda count: LANES),
    while_below(lambda count: count, index=lambda i: i + 1),
    while_below(lambda count: count, index=lambda i: LANES - 1 - i),
    while_below(lambda count: count, by=2),
    lambda rows, x, count: lax.fori_loop(-1, count, lambda i, rows: rows.at[i].set(x[i]), rows),
], ids=["one too many", "all", "the next", "from the end", "steps of two", "from below zero"])  # fmt: skip
def test_a_loop_over_other_lanes_than_the_active_ones_is_refused(step: Callable[..., Any]) -> None:
    with pytest.raises(IsolationError):
        prove_isolation(step, draw_count(np.random.default_rng(0)), COUNTED)


SLOTTED = LaneContract((Pool("s"), SlotMap("s", 9), Lane(), Shared(role="active_count")), Pool("s"))


def by_slot(
    bound: Callable[..., Any] = lambda count: count,
    row: Callable[..., Any] = lambda i: i,
    test: Callable[..., Any] | None = None,
    start: int = 0,
) -> Any:
    """Return a loop over lanes that writes pool rows, under an optional test."""

    def step(pool, slots, x, count):
        def lane(i, pool):
            write = lambda pool: lax.dynamic_update_slice(pool, x[row(i)][None], (slots[row(i)], 0))
            return write(pool) if test is None else lax.cond(test(i, count), write, lambda pool: pool, pool)

        return lax.fori_loop(start, bound(count), lane, pool)

    return step


ALL = lambda count: LANES  # noqa: E731
BY_SLOT = {
    "to the count": by_slot(),
    "under a test": by_slot(ALL, test=lambda i, count: i < count),
    "under a test from the right": by_slot(ALL, test=lambda i, count: count > i),
}
BESIDE_SLOTS = {
    "one too many": by_slot(lambda count: count + 1),
    "all": by_slot(ALL),
    "the next": by_slot(row=lambda i: jnp.minimum(i + 1, LANES - 1)),
    "from the end": by_slot(ALL, row=lambda i: LANES - 1 - i, test=lambda i, count: i < count),
    "a wider test": by_slot(ALL, test=lambda i, count: i <= count),
    "the opposite test": by_slot(ALL, test=lambda i, count: i >= count),
    "from below zero": by_slot(ALL, test=lambda i, count: i < count, start=-1),
}


def draw_slots(rng: np.random.Generator) -> tuple[Any, ...]:
    pool, x = rng.normal(size=(9, WIDTH)).astype(np.float32), rng.normal(size=(LANES, WIDTH)).astype(np.float32)
    return pool, (1 + rng.permutation(8)[:LANES]).astype(np.int32), x, np.int32(rng.integers(LANES))


def changes_an_idle_row(step: Callable[..., Any], args: tuple[Any, ...]) -> bool:
    pool, slots, _, count = args
    return bool((np.asarray(jax.jit(step)(*args))[slots[count:]] != pool[slots[count:]]).any())


@pytest.mark.parametrize("name", BY_SLOT)
def test_a_loop_over_active_lanes_writes_their_slots_alone(name: str) -> None:
    args = [draw_slots(np.random.default_rng(seed)) for seed in range(8)]
    assert any(claim.id == "beyond-count" for claim in prove_isolation(BY_SLOT[name], args[0], SLOTTED).proved)
    assert not any(changes_an_idle_row(BY_SLOT[name], each) for each in args)


@pytest.mark.parametrize("name", BESIDE_SLOTS)
def test_a_loop_that_writes_slots_of_idle_lanes_is_refused(name: str) -> None:
    args = [draw_slots(np.random.default_rng(seed)) for seed in range(8)]
    with pytest.raises(IsolationError):
        prove_isolation(BESIDE_SLOTS[name], args[0], SLOTTED)
    assert any(changes_an_idle_row(BESIDE_SLOTS[name], each) for each in args)


def steps_of_rows(
    role: Literal["length", "active"], body: Callable[..., Any]
) -> tuple[Callable[..., Any], tuple[Any, ...], LaneContract]:
    """Return a step that advances rows behind a slot map, its arguments and its contract."""
    work = jnp.array([True, False, True]) if role == "active" else jnp.array([2, 0, 1], jnp.int32)
    args = jnp.ones((7, WIDTH)), jnp.array([4, 2, 5], jnp.int32), jnp.ones((LANES, WIDTH)), work
    return body, args, LaneContract((Pool("s"), SlotMap("s", 7), Lane(), Lane(role=role)), Pool("s"))


def one_by_one(old: Callable[..., Any]) -> Callable[..., Any]:
    def step(pool, slots, x, active):
        def lane(pool, of):
            slot, x, active = of
            return pool.at[slot].set(jnp.where(active, x, old(pool, slot))), None

        return lax.scan(lane, pool, (slots, x, active))[0]

    return step


def turns_of_each(turns: Callable[..., Any]) -> Callable[..., Any]:
    def step(pool, slots, x, lengths):
        row = lambda h, x, n: lax.fori_loop(0, turns(n), lambda i, h: h * 0.9 + x, h)
        return pool.at[slots].set(jax.vmap(row)(pool[slots], x, lengths))

    return step


IDLE_ROWS = {
    "a row put back by its slot": (steps_of_rows("active", one_by_one(lambda pool, slot: pool[slot])), True),
    "a changed row": (steps_of_rows("active", one_by_one(lambda pool, slot: pool[slot][::-1])), False),
    "a loop of no turns": (steps_of_rows("length", turns_of_each(lambda n: n)), True),
    "a loop of one turn more": (steps_of_rows("length", turns_of_each(lambda n: n + 1)), False),
}


@pytest.mark.parametrize("name", IDLE_ROWS)
def test_loops_keep_the_rows_of_idle_lanes(name: str) -> None:
    (step, args, contract), keeps = IDLE_ROWS[name]
    if keeps:
        prove_isolation(step, args, contract)
    else:
        with pytest.raises(IsolationError) as error:
            prove_isolation(step, args, contract)
        assert error.value.violations[0].kind == ViolationKind.IDLE


@pytest.mark.parametrize("by", [lambda active: active, lambda active: ~active])
def test_a_count_of_each_lane_grows_by_its_flag(by: Callable[..., Any]) -> None:
    """`count + flag` of a stopped lane is `count`."""
    ends = by(jnp.array(True))

    def step(x, turns):
        def turn(state):
            active, count, x = state
            x = jnp.where(active[:, None], jnp.tanh(x), x)
            return active & (count < turns), count + by(active).astype(jnp.int32), x

        return lax.while_loop(lambda state: state[0].any(), turn, (turns > 0, jnp.zeros(LANES, jnp.int32), x))[1:]

    contract = LaneContract((Lane(), Lane()), (Lane(), Lane()))
    if ends:
        prove_isolation(step, ARGS, contract)
    else:
        with pytest.raises(IsolationError):
            prove_isolation(step, ARGS, contract)


def test_branches_by_platform_are_proved_if_all_are() -> None:
    contract = LaneContract((Lane(),), Lane())
    by_platform = lambda other: lambda x: lax.platform_dependent(x, cpu=lambda x: 2 * x, default=other)
    assert prove_isolation(by_platform(lambda x: x + x), (ARGS[0],), contract).lanes == LANES
    with pytest.raises(IsolationError):
        prove_isolation(by_platform(lambda x: x[::-1]), (ARGS[0],), contract)


def test_debugging_callbacks_get_a_note() -> None:
    def step(x):
        jax.debug.print("greatest {}", x.max())
        jax.debug.callback(lambda value: None, x)
        return 2 * x

    notes = prove_isolation(step, (jnp.ones((LANES, WIDTH)),), LaneContract((Lane(),), Lane())).notes
    assert [note.about.split()[0] for note in notes if note.id == "debug-callback"] == ["debug_callback", "debug_print"]
