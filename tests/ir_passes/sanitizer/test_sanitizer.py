"""The sanitizer passes right steps over long schedules and names every wrong use."""

import copy
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array, lax
from labelled_steps import LabelledSteps, Turns

from hybridlm.compiler import host as host_records
from ir_passes import ContractError, Lane, LaneContract, Opaque, Pool, Shared, SlotMap
from ir_passes.jaxpr import ir
from ir_passes.sanitizer.interpreter import Interpreter
from ir_passes.sanitizer.judge import Judge
from ir_passes.sanitizer.sanitize import UntrackedError, sanitize
from ir_passes.sanitizer.tags import UNKNOWN, along, computed
from ir_passes.sanitizer.verdict import LabelFault, LaneFault, SanitizerError, UntrackedFault

N, SLOTS, TAPS, WIDTH = 3, 7, 2, 4
CONTRACT = LaneContract(
    inputs=(Shared(), Pool("state"), Pool("state"), SlotMap("state", SLOTS), Lane(role="length"), Lane(), Lane()),
    outputs=(Lane(), Pool("state"), Pool("state")),
)
Step = Callable[..., tuple]


weights = lambda: jnp.linspace(0.1, 0.7, TAPS + 1)
baked = lambda w, conv, ssm, slots, lengths, positions, x: (x, conv.at[3].set(x[:TAPS]), ssm)
decayed = lambda w, conv, ssm, slots, lengths, positions, x: (x, conv * 0.5, ssm)
replaced = lambda w, conv, ssm, slots, lengths, positions, x: (x, conv, jnp.zeros_like(ssm))


def pools() -> tuple[Array, Array]:
    return jnp.zeros((SLOTS, TAPS, WIDTH)), jnp.zeros((SLOTS, WIDTH, WIDTH))


def advance(w: Array, conv: Array, ssm: Array, length: Array, position: Array, x: Array) -> tuple[Array, Array, Array]:
    """One token of one lane: convolution taps and a recurrent state, zero at the start."""
    begins = (position == 0) & (length > 0)
    taps = jnp.concatenate([jnp.where(begins, 0.0, conv), x[None]])
    y = w @ taps
    state = jnp.where(begins, 0.0, ssm) * 0.9 + jnp.outer(y, x)
    return state @ x, jnp.where(length > 0, taps[1:], conv), jnp.where(length > 0, state, ssm)


def batched(read: Callable = lambda s: s, write: Callable = lambda s: s, write_ssm: Callable | None = None) -> Step:
    """Gather, compute, scatter; the slots may be spoilt on the way."""

    def step(w, conv, ssm, slots, lengths, positions, x):
        rows = [pool.at[read(slots)].get(mode="fill", fill_value=0.0) for pool in (conv, ssm)]
        out, *rows = jax.vmap(advance, (None, 0, 0, 0, 0, 0))(w, rows[0], rows[1], lengths, positions, x)
        value = [write(slots), (write_ssm or write)(slots)]
        conv, ssm = (pool.at[i].set(row, mode="drop") for pool, i, row in zip((conv, ssm), value, rows, strict=True))
        return out, conv, ssm

    return step


GATHERED = batched()


def example(slots: Any = (1, 2, 0)) -> tuple:
    lane = jnp.zeros(N, jnp.int32)
    return (weights(), *pools(), jnp.array(slots, jnp.int32), lane, lane, jnp.zeros((N, WIDTH)))


PROGRAMS: dict[Step, tuple[LabelledSteps, Any]] = {}
"""Compiled once for all tests: sanitized and plain."""


class Host:
    """Pools of a sanitized step with their labels and ledger, next to the plain step."""

    def __init__(self, step: Step, contract: LaneContract = CONTRACT, args: tuple | None = None):
        args = example() if args is None else args
        if step not in PROGRAMS:
            PROGRAMS[step] = LabelledSteps(step, args, contract, compiled=True), jax.jit(step)
        steps, self.plain = PROGRAMS[step]
        self.steps, self.pools = copy.copy(steps), args[1:3]
        self.steps.begin()

    def state(self) -> tuple[Any, Any]:
        return self.pools, self.steps.labels

    def put(self, state: tuple[Any, Any]) -> None:
        self.pools, self.steps.labels = state

    def but(self, step: Step) -> "Host":
        """Return the host of another step, with these pools, labels and sequences."""
        other = Host(step)
        other.pools, other.steps.labels, other.steps.ledger = self.pools, self.steps.labels, self.steps.ledger
        return other

    def take(self, slots: Any, turns: Turns) -> None:
        """Take one step, raise findings, and compare with the plain step."""
        lengths, positions = (jnp.array([turn[k] if turn else 0 for turn in turns], jnp.int32) for k in (2, 1))
        x = jnp.asarray(np.random.default_rng(self.steps.ledger.epoch).standard_normal((N, WIDTH)), jnp.float32)
        args = (weights(), *self.pools, jnp.array(slots, jnp.int32), lengths, positions, x)
        want = self.plain(*args)
        result = self.steps.take(args, turns)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), result, want)
        self.pools = result[1:]


def start(host: Host, *lanes: tuple[int, int]) -> None:
    """One token for the owners of these (owner, slot) pairs."""
    pairs = [*lanes, *([None] * (N - len(lanes)))]
    host.take([pair[1] if pair else 0 for pair in pairs], [(pair[0], 0, 1) if pair else None for pair in pairs])


def test_right_steps_pass_with_slots_reused() -> None:
    """`test_sanitizer_zoo` has steps of other forms."""
    host, owner, rng = Host(GATHERED), host_records.SlotOwner(SLOTS), np.random.default_rng(0)
    lanes: list[Any] = [None] * N
    born = 0
    for _ in range(40):
        for lane in range(N):
            if lanes[lane] is None and rng.random() < 0.6:
                born += 1
                lanes[lane] = [born, 0, owner.acquire()]
        rng.shuffle(lanes)
        turns = [None if lane is None else (lane[0], lane[1], int(rng.random() < 0.7)) for lane in lanes]
        host.take(owner.bind([None if lane is None else lane[2] for lane in lanes], N), turns)
        for i, turn in enumerate(turns):
            if turn is not None:
                lanes[i][1] += turn[2]
                if rng.random() < 0.25:
                    host.steps.ledger.forget(turn[0])
                    owner.release(lanes[i][2])
                    lanes[i] = None
    owner.check_integrity()
    assert born > 2 * SLOTS


def test_shadow_labels_cost_sixteen_bytes_a_row_and_pool() -> None:
    sanitized = sanitize(GATHERED, example(), CONTRACT)
    assert sanitized.shadow_label_bytes == 2 * SLOTS * 16
    assert sum(shadow.nbytes for shadow in sanitized.shadow_labels()) == sanitized.shadow_label_bytes


def test_rows_say_who_wrote_them_and_when() -> None:
    host = Host(GATHERED)
    start(host, (5, 3), (9, 1))
    host.take([1, 0, 3], [(9, 1, 1), None, (5, 1, 0)])
    for shadow in host.steps.labels:
        assert shadow.tolist()[1] == [9, 2, 0, 2]
        assert shadow.tolist()[3] == [5, 1, 0, 1]
        assert shadow.tolist()[2] == [0, 0, 0, 0]


def fails(
    host: Host,
    fault: LabelFault,
    slots: Any,
    turns: Turns,
    *,
    index: tuple[int, int | None] | None = None,
    actual: tuple[int, ...] = (),
    expected: tuple[int, ...] = (),
    label: str = "",
) -> SanitizerError:
    """Take a step and check its first faulty (lane, row) for these labels."""
    with pytest.raises(SanitizerError) as error:
        host.take(slots, turns)
    first = error.value.faults[0]
    assert isinstance(first, LaneFault) and first.id == fault, str(error.value)
    assert index is None or (first.lane, first.row) == index
    assert (first.found[: len(actual)], first.expected[: len(expected)]) == (actual, expected)
    assert label in first.sentence
    return error.value


def test_stale_state_of_the_previous_tenant() -> None:
    def step(w, conv, ssm, slots, lengths, positions, x):
        return batched()(w, conv, ssm, slots, lengths, jnp.maximum(positions, 1), x)

    host = Host(step)
    start(host, (5, 3))
    error = fails(
        host,
        LabelFault.OWNER,
        [0, 3, 0],
        [None, (6, 0, 1), None],
        index=(1, 3),
        expected=(host_records.ReservedOwner.FRESH, 0),
        actual=(5, 1, 0, 1),
        label="reads args[1]",
    )
    assert error.lanes == (1,)
    (fault,) = error.faults
    assert isinstance(fault, LaneFault) and "test_sanitizer.py:" in fault.source and fault.source in str(error)


@pytest.mark.parametrize("same_step", [True, False])
def test_slot_shared_by_two_live_sequences(same_step: bool) -> None:
    host = Host(GATHERED)
    if same_step:
        start(host, (5, 3), (6, 3))
    else:
        start(host, (5, 3))
        start(host, (6, 3))
    fails(host, LabelFault.OWNER, [0, 0, 3], [None, None, (5, 1, 1)], index=(2, 3), expected=(5,), actual=(6,))


def test_slots_of_two_lanes_exchanged_by_the_host() -> None:
    host = Host(GATHERED)
    start(host, (5, 3), (6, 4))
    error = fails(host, LabelFault.OWNER, [4, 3, 0], [(5, 1, 1), (6, 1, 1), None], index=(0, 4))
    assert error.lanes == (0, 1) and error.faults[1].about == "lane 1, row 3"


def test_write_lost_in_a_later_step_shows_in_the_position() -> None:
    host = Host(GATHERED)
    start(host, (5, 3))
    old = host.state()
    host.take([3, 0, 0], [(5, 1, 1), None, None])
    host.put(old)
    fails(host, LabelFault.POSITION, [3, 0, 0], [(5, 2, 1), None, None], expected=(5, 2), actual=(5, 1))


def test_layout_that_the_reader_does_not_expect() -> None:
    host = Host(GATHERED)
    host.take([3, 0, 0], [(5, 0, 1, 1), None, None])
    fails(host, LabelFault.LAYOUT, [3, 0, 0], [(5, 1, 1, 0), None, None], expected=(5, 1, 0), actual=(5, 1, 1))


def test_state_of_the_same_position_but_another_time() -> None:
    host = Host(GATHERED)
    start(host, (5, 3))
    old = host.state()
    host.steps.ledger.epoch += 3
    start(host, (5, 3))
    host.put(old)
    fails(host, LabelFault.EPOCH, [3, 0, 0], [(5, 1, 1), None, None], expected=(5, 1, 0, 5), actual=(5, 1, 0, 1))


@pytest.mark.parametrize("read", [
    lambda s: jnp.roll(s, 1),
    *(
        pytest.param(read, marks=pytest.mark.long)
        for read in (lambda s: s[::-1], lambda s: (s + 1) % SLOTS, lambda s: jnp.sort(s))
    ),
])  # fmt: skip
def test_reads_of_rows_that_the_lane_does_not_own(read: Callable) -> None:
    host = Host(GATHERED)
    start(host, (5, 4), (6, 3), (7, 1))
    bad = host.but(batched(read=read))
    with pytest.raises(SanitizerError) as error:
        bad.take([4, 3, 1], [(5, 1, 1), (6, 1, 1), (7, 1, 1)])
    assert 0 in error.value.lanes


@pytest.mark.long
def test_lane_that_computes_with_anothers_row_is_told_apart() -> None:
    host = Host(GATHERED)
    start(host, (5, 4), (6, 3), (7, 1))
    bad = host.but(batched(read=lambda s: s[::-1], write=lambda s: s[::-1]))
    fails(bad, LabelFault.LANE, [4, 3, 1], [(5, 1, 1), (6, 1, 1), (7, 1, 1)], index=(0, 1))


@pytest.mark.long
def test_writes_to_anothers_row() -> None:
    host = Host(batched(write=lambda s: s[::-1]))
    fails(
        host,
        LabelFault.LANE,
        [4, 3, 1],
        [(5, 0, 1), (6, 0, 1), (7, 0, 1)],
        index=(0, 1),
        label="scatter writes another lane's row",
    )


@pytest.mark.long
def test_pools_of_a_group_moved_by_different_indices() -> None:
    host = Host(batched(write_ssm=lambda s: jnp.where(s > 0, s % (SLOTS - 1) + 1, 0)))
    start(host, (5, 4), (6, 2))
    assert host.steps.labels[0].tolist()[4][0] == 5 and host.steps.labels[1].tolist()[5][0] == 5
    fails(
        host,
        LabelFault.OWNER,
        [4, 2, 0],
        [(5, 1, 1), (6, 1, 1), None],
        index=(0, 4),
        actual=(host_records.ReservedOwner.FRESH,),
        label="reads args[2]",
    )


@pytest.mark.parametrize("pad", [-1, SLOTS])
def test_padding_that_is_clamped_or_wrapped_into_a_live_row(pad: int) -> None:
    def step(w, conv, ssm, slots, lengths, positions, x):
        begins = (positions == 0)[:, None, None]
        taps = jnp.concatenate([jnp.where(begins, 0.0, conv[slots]), x[:, None]], axis=1)
        state = jnp.where(begins, 0.0, ssm[slots]) + x[:, None]
        return x, conv.at[slots].set(taps[:, 1:], mode="clip"), ssm.at[slots].set(state, mode="clip")

    host = Host(step)
    start(host, (5, SLOTS - 1))
    host.take([SLOTS - 1, pad, pad], [(5, 1, 1), None, None])
    fails(
        host,
        LabelFault.OWNER,
        [SLOTS - 1, pad, pad],
        [(5, 2, 1), None, None],
        actual=(host_records.ReservedOwner.NOBODY,),
    )


@pytest.mark.long
def test_rows_of_lanes_that_meet_after_they_were_read() -> None:
    def step(w, conv, ssm, slots, lengths, positions, x):
        out, conv, ssm = batched()(w, conv, ssm, slots, lengths, positions, x)
        return out + 0.1 * jnp.roll(out, 1, axis=0), conv, ssm

    fails(
        Host(step),
        LabelFault.LANE,
        [4, 0, 0],
        [(5, 0, 1)] * 1 + [None] * 2,
        index=(0, None),
        label="add mixes two lanes",
    )


@pytest.mark.parametrize(
    ("mixed", "primitive"),
    [
        (lambda x: x + x.sum(0, keepdims=True), "reduce_sum"),
        pytest.param(lambda x: x - x.max(0, keepdims=True), "reduce_max", marks=pytest.mark.long),
        (lambda x: jnp.ones((N, N)) @ x, "dot_general"),
        pytest.param(lambda x: jnp.cumsum(x, 0), "cumsum", marks=pytest.mark.long),
    ],
)
def test_a_sum_over_lanes_mixes_them(mixed: Callable[[Array], Array], primitive: str) -> None:
    def step(w, conv, ssm, slots, lengths, positions, x):
        out, conv, ssm = batched()(w, conv, ssm, slots, lengths, positions, x)
        return mixed(out), conv, ssm

    work = [(5, 0, 1), None, None]
    fails(Host(step), LabelFault.LANE, [4, 0, 0], work, index=(0, None), label=f"{primitive} mixes two lanes")


COPY = LaneContract(
    inputs=(Pool("state"), Pool("state"), SlotMap("state", SLOTS, "read"), SlotMap("state", SLOTS, "write")),
    outputs=(Pool("state"), Pool("state")),
)


def copy_rows(conv: Array, ssm: Array, source: Array, target: Array) -> tuple[Array, Array]:
    return conv.at[target].set(conv[source]), ssm.at[target].set(ssm[source])


def copied(host: Host, source: list[int], target: list[int]) -> None:
    args = (*host.pools, jnp.array(source, jnp.int32), jnp.array(target, jnp.int32))
    steps = LabelledSteps(copy_rows, args, COPY, compiled=True)
    steps.labels, steps.ledger = host.steps.labels, host.steps.ledger
    pools = steps.take(args, [None] * N)
    host.put((pools, steps.labels))


def snapshots() -> tuple[Host, dict[int, host_records.Label]]:
    """Owner 5 in row 1 at position 3, with snapshots in rows 4 and 5."""
    host, labels = Host(GATHERED), {}
    start(host, (5, 1))
    for position, row in ((1, 4), (2, 5)):
        copied(host, [1, 0, 0], [row, 0, 0])
        labels[position] = host.steps.ledger.label(5)
        host.take([1, 0, 0], [(5, position, 1), None, None])
    return host, labels


@pytest.mark.long
def test_a_snapshot_restored_where_it_was_taken() -> None:
    host, labels = snapshots()
    copied(host, [5, 5, 0], [2, 3, 0])
    for owner in (8, 9):
        host.steps.ledger.adopt(owner, labels[2])
    host.take([2, 3, 1], [(8, 2, 1), (9, 2, 1), (5, 3, 1)])
    host.take([3, 2, 1], [(9, 3, 1), (8, 3, 1), (5, 4, 1)])


@pytest.mark.slow
def test_a_snapshot_of_one_pool_only() -> None:
    host, labels = snapshots()
    shadow_labels = host.steps.labels
    copied(host, [5, 0, 0], [2, 0, 0])
    host.steps.labels = (host.steps.labels[0], shadow_labels[1])
    host.steps.ledger.adopt(8, labels[2])
    fails(
        host,
        LabelFault.OWNER,
        [2, 0, 0],
        [(8, 2, 1), None, None],
        actual=(host_records.ReservedOwner.FRESH,),
        label="reads args[2]",
    )


ROWS = LaneContract(
    inputs=(Shared(), Pool("state"), Pool("state"), Shared(), Lane(role="length"), Lane(), Lane()),
    outputs=(Lane(), Pool("state"), Pool("state")),
)


def row_step(w, conv, ssm, _, lengths, positions, x):
    return jax.vmap(advance, (None, 0, 0, 0, 0, 0))(w, conv, ssm, lengths, positions, x)


@pytest.mark.slow
def test_row_pools() -> None:
    args = example()
    host = Host(row_step, ROWS, (args[0], args[1][:N], args[2][:N], *args[3:]))
    host.take([0] * N, [(5, 0, 1), (6, 0, 1), None])
    host.take([0] * N, [(5, 1, 1), (6, 1, 0), (7, 0, 1)])
    host.take([0] * N, [(8, 0, 1), (6, 1, 1), None])
    assert [shadow.tolist()[1] for shadow in host.steps.labels] == [[6, 2, 0, 3]] * 2
    swap = np.array([1, 0, 2])
    host.put(jax.tree.map(lambda rows: rows[swap], host.state()))
    fails(host, LabelFault.OWNER, [0] * N, [(8, 1, 1), (6, 2, 1), None], index=(0, 0), expected=(8,), actual=(6,))


@pytest.mark.long
def test_row_pools_whose_lanes_are_mixed() -> None:
    step = lambda w, conv, ssm, slots, lengths, positions, x: row_step(w, conv, ssm[::-1], slots, lengths, positions, x)
    args = example()
    host = Host(step, ROWS, (args[0], args[1][:N], args[2][:N], *args[3:]))
    fails(host, LabelFault.LANE, [0] * N, [(5, 0, 1), (6, 0, 1), (7, 0, 1)], index=(0, None), label="mul reads args[2]")


def begins_inside(*args: Array) -> np.ndarray:
    lengths, fresh, x, rows = map(np.asarray, args)
    return np.where(fresh[:, None, None], np.float32(0), rows) + np.where(lengths > 0, x.T, np.float32(0)).T[:, None]


def declared_step(w, conv, ssm, slots, lengths, positions, x):
    like = jax.ShapeDtypeStruct(ssm.shape, ssm.dtype)
    new = jax.pure_callback(begins_inside, like, lengths, positions == 0, x, ssm)
    return x, conv, jnp.where((lengths > 0)[:, None, None], new, ssm)


@pytest.mark.slow
def test_rows_that_a_declared_operation_does_not_read() -> None:
    """New lanes may find anything in a row; continuing lanes need their state."""
    entries = (Lane(role="length"), Lane(), Lane(), Pool("state"))
    turns = [(5, 0, 1), (6, 0, 1), None], [(7, 0, 1), (6, 1, 1), None]
    for fresh in (1, None):
        declared = Opaque(entries, (Pool("state"),), fresh=fresh)
        contract = LaneContract(ROWS.inputs, ROWS.outputs, opaque={"begins_inside": declared})
        args = example()
        PROGRAMS.pop(declared_step, None)
        host = Host(declared_step, contract, (args[0], args[1][:N], args[2][:N], *args[3:]))
        host.take([0] * N, turns[0])
        if fresh is None:
            fails(
                host,
                LabelFault.OWNER,
                [0] * N,
                turns[1],
                index=(0, 0),
                expected=(host_records.ReservedOwner.FRESH,),
                actual=(5,),
            )
            continue
        host.take([0] * N, turns[1])
        host.put(jax.tree.map(lambda rows: rows[np.array([1, 0, 2])], host.state()))
        last = [(7, 1, 1), (6, 2, 1), None]
        fails(host, LabelFault.OWNER, [0] * N, last, index=(0, 0), expected=(7,), actual=(6,))


def test_rows_of_no_known_lane_are_looked_at_whatever_lanes_begin() -> None:
    lanes = np.array([[UNKNOWN], [1], [0]], np.int32)
    for mask in (np.array([False, True]), jnp.array([False, True])):
        assert np.asarray(computed(lanes).of_lanes(mask)).tolist() == [[True], [True], [False]]


LAYERS = 3
STACKED = LaneContract(
    inputs=(Pool("state", axis=1), SlotMap("state", SLOTS), Lane()), outputs=(Lane(), Pool("state", axis=1))
)


def stack(spoil: Callable = lambda slots, layer: slots) -> Step:
    """A scan over layers with a pool of each as `xs` and `ys`."""

    def step(pool, slots, x):
        def layer(x: Array, inputs: tuple) -> tuple:
            rows, number = inputs
            y = rows[slots] + x
            return y, rows.at[spoil(slots, number)].set(y)

        return lax.scan(layer, x, (pool, jnp.arange(LAYERS)))

    return step


def test_pools_stacked_over_layers() -> None:
    args = (jnp.zeros((LAYERS, SLOTS, WIDTH)), jnp.array([1, 2, 3], jnp.int32), jnp.ones((N, WIDTH)))
    steps = LabelledSteps(stack(), args, STACKED, compiled=True)
    assert steps.sanitized.shadow_label_bytes == 16 * SLOTS
    pool, slots, x = args
    for position in range(3):
        _, pool = steps.take((pool, slots, x), [(4 + lane, position, 1) for lane in range(N)])
    assert steps.labels[0].tolist()[1:4] == [[4 + lane, 3, 0, 3] for lane in range(N)]


@pytest.mark.long
def test_a_layer_that_is_moved_unlike_the_others() -> None:
    args = (jnp.zeros((LAYERS, SLOTS, WIDTH)), jnp.array([1, 2, 3], jnp.int32), jnp.ones((N, WIDTH)))
    steps = LabelledSteps(stack(lambda slots, layer: jnp.where(layer == 1, slots + 1, slots)), args, STACKED)
    expected = steps.expect([(4 + lane, 0, 1) for lane in range(N)])
    *_, steps.labels, _ = steps.run(*args, shadow_labels=steps.labels, expected=expected)
    with pytest.raises(SanitizerError) as error:
        steps.take(args, [(4 + lane, 1, 1) for lane in range(N)])
    fault = error.value.faults[0]
    assert isinstance(fault, LaneFault) and fault.found.owner == host_records.ReservedOwner.MIXED


CACHE = LaneContract(inputs=(Pool("cache"), SlotMap("cache", SLOTS), Lane(), Lane()), outputs=(Lane(), Pool("cache")))


def cache_step(cache: Array, slots: Array, positions: Array, x: Array) -> tuple[Array, Array]:
    """A cache of one number per position; a lane reads earlier positions."""
    visible = jnp.arange(cache.shape[1], dtype=jnp.int32)[None] < positions[:, None]
    return jnp.where(visible, jnp.exp(cache[slots]), 0.0).sum(axis=1) + x, cache.at[slots, positions].set(x)


@pytest.mark.long
def test_caches_are_masked_by_position() -> None:
    args = (jnp.zeros((SLOTS, 8)), jnp.array([1, 2, 0], jnp.int32), jnp.zeros(N, jnp.int32), jnp.ones(N))
    strict, lenient = (LabelledSteps(cache_step, args, CACHE, masked=masked) for masked in ((), ("args[0]",)))

    def serve(steps: LabelledSteps, owners: tuple[int, ...]) -> None:
        steps.begin()
        for owner in owners:
            for position in range(2):
                now = jnp.array([position, 0, 0], jnp.int32)
                steps.take((args[0], args[1], now, args[3]), [(owner, position, 1), None, None])

    serve(lenient, (4, 5))
    serve(strict, (4,))
    with pytest.raises(SanitizerError, check=lambda error: error.ids == (LabelFault.OWNER,)):
        serve(strict, (4, 5))
    with pytest.raises(ValueError, match=re.escape(r"masked: ['cache'] are no pools of the step; pools: ['args[0]']")):
        sanitize(cache_step, args, CACHE, masked=["cache"])


@pytest.mark.long
def test_a_row_with_new_and_old_tokens_is_new() -> None:
    """The later of two writes moves old tokens; the row still has a new token."""

    def step(cache: Array, slots: Array, positions: Array, x: Array) -> tuple[Array, Array]:
        old, place = cache[slots][:, :2], jnp.arange(2, dtype=jnp.int32)[None]
        new = jnp.stack([x * 2.0, old[:, 1]], axis=1)
        return x, cache.at[slots[:, None], jnp.broadcast_to(place, new.shape)].set(new)

    args = (jnp.zeros((SLOTS, 8)), jnp.array([1, 2, 0], jnp.int32), jnp.zeros(N, jnp.int32), jnp.ones(N))
    steps = LabelledSteps(step, args, CACHE)
    steps.take(args, [(4, 0, 1), (5, 0, 1), None])
    assert steps.labels[0].tolist()[1:3] == [[4, 1, 0, 1], [5, 1, 0, 1]]


MOVED: dict[str, Callable[[Array], Array]] = {
    "merge and split": lambda x: x.reshape((N * 2, 4)).reshape((N, 8))[:, 3:],
    "swap axes": lambda x: jnp.swapaxes(x, 0, 2)[::-1],
    "halves": lambda x: jnp.concatenate(jnp.split(x, 2, axis=1)[::-1], axis=0),
    "stack and unstack": lambda x: jnp.stack([row + 0.0 for row in jnp.unstack(x)][::-1], axis=1),
    "tile and repeat": lambda x: jnp.repeat(jnp.tile(x, (2, 1, 1)), 2, axis=0),
    "roll and flip": lambda x: jnp.flip(jnp.roll(x, 1, axis=0), axis=0),
    "take": lambda x: jnp.take(x, jnp.array([2, 0, 0, 1]), axis=0),
    "dynamic slice": lambda x: lax.dynamic_slice_in_dim(x, jnp.int32(1), 2)[:, None],
    "along an axis": lambda x: jnp.take_along_axis(x, jnp.array([1, 0, 2]).reshape((N, 1, 1)), axis=0),
    "batched gather": lambda x: jax.vmap(lambda row, i: row[i])(x, jnp.array([1, 0, 1])),
    "arithmetic": lambda x: (x * 2.0 - x) + jnp.zeros((1, 1, 4)),
    "dot": lambda x: jnp.einsum("nij,jk->kni", x, jnp.eye(4)[:, :1]),
    "batched dot": lambda x: jnp.einsum("nij,nij->n", x, jnp.ones_like(x)) / 8.0,
    "running maximum": lambda x: lax.cummax(x, axis=1).max(axis=2),
}


@pytest.mark.parametrize("name", MOVED)
def test_lanes_follow_their_values(name: str) -> None:
    """Every entry is its lane's number, before and after."""
    x = jnp.broadcast_to(jnp.arange(N, dtype=jnp.float32)[:, None, None], (N, 2, 4))
    nothing = jnp.zeros((N, 4), jnp.int32)
    run = Interpreter(Judge(host_records.Expected(nothing, nothing), {}, frozenset()))
    (value,), (tags,) = run.run(ir.trace(MOVED[name], x), [x], [computed(along(N, 0, 3))])
    assert tags is not None
    np.testing.assert_array_equal(np.broadcast_to(np.asarray(tags.lanes), value.shape), value)


@pytest.mark.parametrize(("step", "faults"), [
    (baked, [(UntrackedFault.WRITE, "args[1], scatter"), (UntrackedFault.SUCCESSOR, "result[1]")]),
    (decayed, [(UntrackedFault.WHOLE, "args[1], mul"), (UntrackedFault.SUCCESSOR, "result[1]")]),
    (replaced, [(UntrackedFault.SUCCESSOR, "result[2]")]),
])  # fmt: skip
def test_untracked_operations_are_refused(step: Step, faults: list[tuple[UntrackedFault, str]]) -> None:
    with pytest.raises(UntrackedError) as error:
        sanitize(step, example(), CONTRACT)
    assert [(fault.id, fault.about.split(" at ")[0]) for fault in error.value.faults] == faults


def test_the_contract_has_to_fit() -> None:
    with pytest.raises(ContractError):
        sanitize(batched(), example(), LaneContract(CONTRACT.inputs[:-1], CONTRACT.outputs))


def test_shapes_are_checked() -> None:
    with pytest.raises(ValueError, match=r"expected found: expected int32\[3, 4\], got int32\[4, 4\]"):
        LabelledSteps(GATHERED, example(), CONTRACT).take(example(), [None] * (N + 1))


@pytest.mark.long
def test_the_verdict_is_of_the_first_fault_and_traced_again_alike() -> None:
    host = Host(GATHERED)
    start(host, (5, 3))
    expected = host.steps.expect([(5, 1, 1), None, None])
    args = (weights(), *host.pools, jnp.array([2, 0, 0], jnp.int32), jnp.ones(N, jnp.int32), jnp.ones(N, jnp.int32))
    sanitized = host.steps.sanitized
    results = [
        run(*args, jnp.ones((N, WIDTH)), shadow_labels=host.steps.labels, expected=expected)[-1]
        for run in (host.steps.run, jax.jit(lambda *args, **kwargs: sanitized.step(*args, **kwargs)))
    ]
    assert results[0].code.tolist()[0] != 0
    jax.tree.map(np.testing.assert_array_equal, *results)
