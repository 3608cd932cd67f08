"""Explanations: the equations around a fault, their values, and the lanes concerned."""

import re
from typing import Any

import jax.numpy as jnp
import pytest
from mutants.catalogue import MUTANTS

import ir_passes as compiler
from ir_passes import Lane, LaneContract, Pool, Shared, SlotMap
from ir_passes.proof.concerned import concerned
from ir_passes.proof.numbering import Leaf, Number
from ir_passes.proof.owners import COMMON, LaneRows, OneLane, PoolRows, Symbol
from ir_passes.proof.violations import ViolationKind as Kind
from ir_passes.proof.violations import explain

LANES, SLOTS, SIZE = 4, 9, 5
CONTRACT = LaneContract(inputs=(Pool("p"), SlotMap("p", SLOTS), Lane()), outputs=(Lane(), Pool("p")))
ARGS = jnp.zeros((SLOTS, SIZE)), jnp.arange(1, LANES + 1, dtype=jnp.int32), jnp.ones((LANES, SIZE))


def rolled(pool, slots, x):
    rows = jnp.tanh(pool[slots] + x)
    mixed = jnp.roll(rows, 1, axis=0)
    return mixed.sum(1), pool.at[slots].set(rows)


def refusal(step: Any, args: tuple[Any, ...], contract: LaneContract) -> compiler.IsolationError:
    with pytest.raises(compiler.IsolationError) as caught:
        compiler.prove_isolation(step, args, contract)
    return caught.value


def test_ten_equations_either_side() -> None:
    text = refusal(rolled, ARGS, CONTRACT).explain()
    marked = [line for line in text.splitlines() if line.startswith(">")]
    assert len(marked) == 1 and "concatenate" in marked[0]
    assert "lanes along axis 0" in text and "several lanes" in text
    assert 10 <= len(re.findall(r"^[> ] +\d+  ", text, re.MULTILINE)) <= 21


EXPLAINED = {
    "roll": (Kind.CROSS_LANE, "lanes along axis 0", "lanes 0 to 3"),
    "next-row": (Kind.WRONG_ROW, "pool 'seq', rows along axis 0", "lanes 0 to 3, args[0]"),
    "whole-pool-decays": (Kind.FRAME, "pool 'seq', rows along axis 0", "args[0]"),
    "read-after-write": (Kind.STALE, "lanes along axis 0", "lanes 0 to 3, args[0]"),
    "written-transposed": (Kind.DIMENSIONS, "pool 'seq', rows along axis 0", "args[0]"),
    "orders-differ": (Kind.COUPLING, "permuted", "args[1]['conv'], args[1]['state']"),
    "idle-writes-zeros": (Kind.IDLE, "in [0, 8], Slot", "args[0]"),
    "pool-as-constant": (Kind.CONSTANT, "lanes along axis 0", "args[0]"),
    "any-branch": (Kind.CONTROL, "several lanes", "lanes 0 to 3"),
    "foreign-call": (Kind.OPAQUE, "lanes along axis 0", "lanes 0 to 3"),
    "count-below-zero": (Kind.ACCEPTED, "lanes along axis 0", "lanes 0 to 3"),
    "order-by-device": (Kind.COLLECTIVE, "shared", "lanes 0 to 3"),
}
"""Mutant -> a kind of fault that it has, a value that its explanation shows, and whom the fault concerns."""


@pytest.mark.parametrize("id", EXPLAINED)
def test_every_variable_is_explained_and_the_lanes_and_pools_are_named(id: str) -> None:
    program, (kind, value, concerned) = MUTANTS[id].program, EXPLAINED[id]
    assert program is not None
    error = refusal(program.step, program.args(), program.contract)
    violation = next(violation for violation in error.violations if violation.kind is kind)
    assert ", ".join(violation.concerned) == concerned
    assert f"\n  concerns {concerned}\n" in str(error)
    for text in (explain(violation, 10) for violation in error.violations):
        mentioned, explained = re.findall(r"\bv\d+\b", text), re.findall(r"^ +(v\d+): ", text, re.MULTILINE)
        assert set(mentioned) == set(explained) and len(explained) == len(set(explained)) > 0
    text = explain(violation, 10)
    assert value in text and f"\n  concerns {concerned}\n" in text


def test_a_fault_of_what_is_returned_shows_it() -> None:
    wrong = LaneContract(inputs=CONTRACT.inputs, outputs=(Shared(), Pool("p")))
    error = refusal(lambda pool, slots, x: (x, pool), ARGS, wrong)
    (violation,) = error.violations
    assert violation.concerned == ("lanes 0 to 3",)
    assert error.explain().endswith(
        "> returned v0 v1\n                 v0: lanes along axis 0\n                 v1: pool 'p', rows along axis 0"
    )


def test_lanes_are_named_by_number_and_pools_by_path() -> None:
    bound = CONTRACT.bind(lambda pool, slots, x: (x, pool), ARGS)
    pool = PoolRows(Leaf(0), "p", 0)
    parts = [
        (COMMON, (7,)), (pool, (9, 5)), (OneLane(2), (5,)), (LaneRows(1, inner=2, start=4), (5, 6)), (pool, (9, 5)),
    ]  # fmt: skip
    assert concerned(bound, parts) == ("lanes 2 and 4 to 6", "args[0]")
    split = [(OneLane(0, ("data",)), (5,)), (OneLane(Symbol(Number(3), LANES)), (5,))]
    assert concerned(bound, split) == ("lane 0 of each device along data", "the lane of a loop index")
    assert concerned(bound, [(COMMON, ())]) == ()
