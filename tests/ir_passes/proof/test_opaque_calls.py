"""Kernels and callbacks are held to their declarations, and right ones are proved."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from isolation_oracle import leaks
from jax.experimental import io_callback
from jax.experimental import pallas as pl
from mutants.kernels import declared
from mutants.kernels.declared import put, take
from zoo import rows

from ir_passes import (
    Assumption,
    IsolationError,
    Lane,
    LaneContract,
    Opaque,
    Packed,
    PageTable,
    Pool,
    Shared,
    SlotMap,
    Unspecified,
    ViolationKind,
)
from ir_passes.proof.lane_proof import prove_isolation

S, N, D = 9, 4, 8
POOL, SLOTS = Pool("a"), SlotMap("a", S)


def args(*shape: int) -> tuple[Any, ...]:
    return jnp.zeros(shape or (S, D)), jnp.arange(1, N + 1, dtype=jnp.int32), jnp.ones((N, D))


def contract(opaque: dict[str, Opaque], *outputs: Any, pool: Pool = POOL, slots: SlotMap = SLOTS) -> LaneContract:
    return LaneContract((pool, slots, Lane()), outputs, opaque=opaque)


def faults(step: Any, args: tuple[Any, ...], con: LaneContract) -> str:
    with pytest.raises(IsolationError) as error:
        prove_isolation(step, args, con)
    return str(error.value)


@pytest.mark.parametrize(("step", "con", "draw"), [
    (declared.kernel_step, declared.CONTRACT, rows.draw),
    (declared.row_pool_step, declared.TAKEN, declared.draw_taken),
    (declared.length_step, declared.LENGTH, rows.draw_length),
], ids=["rows by slot", "row pool", "lengths"])  # fmt: skip
def test_right_calls_are_proved_and_keep_lanes_apart(step, con, draw) -> None:
    assert prove_isolation(step, draw(np.random.default_rng(0)), con)
    assert not leaks(step, con, draw)


def slot_map(changes: dict[str, Any]) -> SlotMap:
    changes = {"size": S} | changes
    return SlotMap("a", **changes)


def put_of(**declared: Any) -> dict[str, Opaque]:
    return {"put_rows": Opaque((POOL, slot_map(declared), Lane()), (POOL,))}


ROLES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "size": ({"size": S + 1}, {}, r"operand 1 is declared SlotMap.*size=10.*args\[1\]"),
    "null row": ({"null": True}, {"null": False}, "operand 1 is declared SlotMap.*null=True"),
    "role": ({}, {"role": "write"}, "operand 1 is declared SlotMap.*role='both'"),
}


@pytest.mark.parametrize(("declared", "values", "message"), ROLES.values(), ids=ROLES)
def test_slot_maps_are_those_declared(declared, values, message) -> None:
    con = contract(put_of(**declared), POOL, slots=slot_map(values))
    assert re.search(message, faults(lambda p, s, x: (put(p, s, x),), args(), con))


@pytest.mark.parametrize("role", ["write", "both"])
def test_a_map_to_write_by_is_enough_for_a_kernel_that_only_writes(role) -> None:
    con = contract(put_of(role="write"), POOL, slots=SlotMap("a", S, role=role))
    assert prove_isolation(lambda p, s, x: (put(p, s, x),), args(), con)


def test_rows_of_a_kernel_by_a_page_table() -> None:
    """Rows of a flat pool for each lane, like a slot mapping."""
    table = PageTable("a", S, role="write")
    con = LaneContract((POOL, table, Lane()), (POOL,), opaque={"put_rows": Opaque((POOL, table, Lane()), (POOL,))})
    assert prove_isolation(lambda p, t, x: (put(p, t, x),), args(), con)


def test_a_kernel_does_not_read_the_null_row_by_a_map_of_second_rows() -> None:
    second = SlotMap("a", S, disjoint=True)
    con = LaneContract((POOL, SLOTS, second), (Lane(), POOL), opaque={"take_rows": Opaque((POOL, SLOTS), (Lane(),))})
    operands = args()[:2]
    assert prove_isolation(lambda p, s, t: (take(p, s), p), (*operands, operands[1] + N), con)
    messages = faults(lambda p, s, t: (take(p, t), p), (*operands, operands[1] + N), con)
    assert "a lane that has no row in args[2] reads the null row of args[0]" in messages


TOKENS = 7
CU = Packed(role="cu_seqlens")
SUMMED = Opaque((Packed(), CU, Lane()), (Packed(), Lane()))
PACKED = LaneContract((Packed(), CU, Lane()), (Packed(), Lane()), opaque={"summed": SUMMED})


def summed(x: Any, cu: Any, rows: Any) -> Any:
    """Add the row of its lane to each token, and the tokens of each lane to its row."""
    ids = np.searchsorted(cu[1:], np.arange(TOKENS), side="right")
    sums = np.stack([x[ids == lane].sum(0) for lane in range(N)])
    return x + np.pad(rows, ((0, 1), (0, 0)))[ids], rows + sums


def call(x: Any, cu: Any, rows: Any) -> Any:
    return jax.pure_callback(summed, (x, rows), x, cu, rows)


def draw_packed(rng: np.random.Generator) -> tuple[Any, ...]:
    lengths = 1 + np.bincount(rng.integers(0, N + 1, TOKENS - N), minlength=N + 1)[:N]
    cu = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return rng.normal(size=(TOKENS, D)).astype(np.float32), cu, rng.normal(size=(N, D)).astype(np.float32)


OF_OTHERS = {
    "tokens": lambda x, cu, rows: (jnp.roll(x, 1, 0), cu, rows),
    "rows": lambda x, cu, rows: (x, cu, rows[::-1]),
    "places": lambda x, cu, rows: (x, jnp.minimum(cu + 1, TOKENS), rows),
    "lengths": lambda x, cu, rows: (x, jnp.pad(jnp.diff(cu), (1, 0)), rows),
    "numbers": lambda x, cu, rows: (x, jnp.arange(N + 1, dtype=jnp.int32), rows),
    "rows of tokens": lambda x, cu, rows: (x, cu, x[:N]),
}
"""Operands of a call for packed tokens that belong to other lanes."""


def test_a_declared_call_for_packed_tokens_keeps_lanes_apart() -> None:
    proof = prove_isolation(call, draw_packed(np.random.default_rng(0)), PACKED)
    assert Assumption.OPAQUE in [statement.id for statement in proof.assumed]
    assert not leaks(call, PACKED, draw_packed)


@pytest.mark.parametrize("changed", OF_OTHERS)
def test_a_declared_call_for_packed_tokens_refuses_operands_of_other_lanes(changed: str) -> None:
    step = lambda *args: call(*OF_OTHERS[changed](*args))
    assert faults(step, draw_packed(np.random.default_rng(0)), PACKED)
    assert leaks(step, PACKED, draw_packed, seeds=range(16), first=True)


def test_the_declaration_of_a_call_for_packed_tokens_can_be_typed() -> None:
    undeclared = LaneContract(PACKED.inputs, PACKED.outputs)
    message = faults(call, draw_packed(np.random.default_rng(0)), undeclared)
    assert "opaque={'summed': Opaque((Packed(), Packed(role='cu_seqlens'), Lane()), (Packed(), Lane()))}" in message


def test_that_idle_lanes_keep_their_rows_is_assumed() -> None:
    operands = rows.draw_length(np.random.default_rng(0))
    assumed = prove_isolation(declared.length_step, operands, declared.LENGTH).assumed
    listed = [
        (assumption.about.split(" at ")[0], assumption.id)
        for assumption in assumed
        if assumption.id.startswith(Assumption.OPAQUE)
    ]
    assert sorted(listed) == [("put_real_rows", Assumption.OPAQUE_IDLE), ("take_rows", Assumption.OPAQUE)]


def test_one_lane_at_a_time_is_proved() -> None:
    def step(p, s, x):
        for i in range(N):
            p = put(p, s[i], x[i])
        return (p,)

    assert prove_isolation(step, args(), contract(put_of(), POOL))
    wrong = contract(put_of(), POOL)
    assert "combines lane 0 with lane 1" in faults(lambda p, s, x: (put(p, s[0], x[1]),), args(), wrong)


def doubled_rows(x: Any) -> Any:
    return np.concatenate([x, x])


def test_results_have_as_many_rows_as_operands() -> None:
    def step(p, s, x):
        shape = jax.ShapeDtypeStruct((2 * N, D), x.dtype)
        return (jax.pure_callback(doubled_rows, shape, x)[N:],)

    messages = faults(step, args(), contract({"doubled_rows": Opaque((Lane(),), (Lane(),))}, Lane()))
    assert "operand 0 has 4, result 0 has 8" in messages


def test_a_successor_has_the_shape_of_its_pool() -> None:
    def step(p, s, x):
        return (jax.pure_callback(declared.put_rows, jax.ShapeDtypeStruct((S, D), jnp.float32), p, s, x)[s],)

    messages = faults(step, args(S, D, 1), contract(put_of(), Lane()))
    assert "result 0, float32[9,8], is declared the successor of operand 0, float32[9,8,1]" in messages


def added(rows_ref, out_ref):
    out_ref[...] = rows_ref[...] + 1.0


def test_aliases_are_those_of_the_call() -> None:
    shape = jax.ShapeDtypeStruct((N, D), jnp.float32)
    kernel = pl.pallas_call(added, out_shape=shape, input_output_aliases={0: 0}, name="added")
    step = lambda p, x: (kernel(p) + x,)
    operands = jnp.zeros((N, D)), jnp.ones((N, D))

    def declared(aliases: dict[int, int]) -> LaneContract:
        opaque = {"added": Opaque((Lane(),), (Lane(),), aliases)}
        return LaneContract((Lane(), Lane()), (Lane(),), opaque=opaque)

    assert prove_isolation(step, operands, declared({0: 0}))
    assert "declared with aliases={}, called with {0: 0}" in faults(step, operands, declared({}))


LABELS = ("slot", "key", "value")


@pytest.mark.parametrize(
    ("dims", "message"), [(LABELS, None), (None, "written with"), (("slot", "value", "key"), "runs together")]
)
def test_a_kernel_writes_the_dimensions_that_it_declares(dims, message) -> None:
    pool, declared = Pool("a", dims=LABELS), Pool("a", dims=dims)
    opaque = {"put_rows": Opaque((declared, SLOTS, Lane()), (declared,))}
    operands = jnp.zeros((S, 5, 5)), args()[1], jnp.ones((N, 5, 5))
    step, con = lambda p, s, x: (put(p, s, x),), contract(opaque, pool, pool=pool)
    if message is None:
        assert prove_isolation(step, operands, con)
    else:
        assert message in faults(step, operands, con)


def test_a_fault_upstream_is_reported_where_it_is() -> None:
    def step(p, s, x):
        return (put(p, s, jnp.cumsum(x, axis=0)),)

    with pytest.raises(IsolationError) as error:
        prove_isolation(step, args(), contract(put_of(), POOL))
    assert [(violation.kind, violation.primitive) for violation in error.value.violations] == [
        (ViolationKind.CROSS_LANE, "cumsum")
    ]


def test_a_call_without_results_is_held_to_its_declaration() -> None:
    step = lambda p, s, x: (io_callback(declared.copy_rows, None, x), x)[1:]
    assert prove_isolation(step, args(), contract({"copy_rows": Opaque((Lane(),), ())}, Lane()))
    assert "operand 0 is declared Shared" in faults(
        step, args(), contract({"copy_rows": Opaque((Shared(),), ())}, Lane())
    )


def test_shared_results_of_a_kernel_are_shared() -> None:
    opaque = {"take_rows": Opaque((Shared(), Shared()), (Shared(),))}
    con = LaneContract((Shared(), Shared(), Lane()), (Lane(),), opaque=opaque)
    assert prove_isolation(lambda t, i, x: (x + take(t, i).sum(),), args(), con)


def with_sum(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return x, x.sum(0)


def test_shared_results_of_rows_are_of_several_lanes() -> None:
    """They have as many elements as there are lanes."""
    con = LaneContract((Lane(),), (Lane(),), opaque={"with_sum": Opaque((Lane(),), (Lane(), Shared()))})
    row, square = jax.ShapeDtypeStruct((N,), np.float32), (np.ones((N, N), np.float32),)
    call = lambda x: jax.pure_callback(with_sum, (jax.ShapeDtypeStruct(x.shape, x.dtype), row), x)
    assert prove_isolation(lambda x: (call(x)[0],), square, con)
    assert "result 1 of with_sum is declared shared" in faults(lambda x: (x + call(x)[1][:, None],), square, con)
    assert "result 1 of with_sum is declared shared" in faults(lambda x: (call(x)[1],), square, con)


@pytest.mark.parametrize("changed", [
    Opaque((POOL, SLOTS, Lane()), (SLOTS,)), Opaque((POOL, SLOTS, Lane()), (Unspecified(),)),
    Opaque((Lane(), SLOTS, Lane()), (POOL,)), Opaque((POOL, Lane(), Lane()), (POOL,)),
    Opaque((POOL, SlotMap("a", S, role="read"), Lane()), (POOL,)), Opaque((POOL, SLOTS, Lane(-2)), (POOL,)),
    Opaque((POOL, SLOTS, Lane()), (Packed(-2),)), Opaque((POOL, SLOTS, Lane()), (Packed(),)),
    Opaque((Pool("a", 1), SLOTS, Lane()), (POOL,)), Opaque((POOL, SLOTS, Lane()), (Pool("a", 1),)),
])  # fmt: skip
def test_declarations_without_meaning_prove_nothing(changed: Opaque, monkeypatch: pytest.MonkeyPatch) -> None:
    """Verdicts do not depend on the checks of entries."""
    monkeypatch.setattr("ir_passes.contract.contract.check_opaque", lambda *_: None)
    step = lambda *operands: (put(*operands),)
    assert prove_isolation(step, args(), contract(put_of(), POOL))
    with pytest.raises(IsolationError):
        prove_isolation(step, args(), contract({"put_rows": changed}, POOL))


def test_an_output_with_the_entry_of_an_input_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ir_passes.contract.contract.check_entries", lambda *_: None)
    con = LaneContract((POOL, SLOTS, Lane()), (POOL, SLOTS))
    with pytest.raises(IsolationError, match="left out of the contract"):
        prove_isolation(lambda pool, slots, x: (pool, x[:, 0].astype(jnp.int32)), args(), con)
