"""Missing entries are all named, with a complete contract to copy."""

import re
from typing import Any

import jax.numpy as jnp
import pytest

import ir_passes
from ir_passes import ContractError, Lane, LaneContract, Pool, Shared, SlotMap, compile_step, prove_isolation
from ir_passes.contract.faults import ContractFault

N, D, ROWS = 3, 4, 8
STATE, X, W, B = jnp.zeros((N, D)), jnp.ones((N, D)), jnp.eye(D), jnp.ones(D)
P, L = Pool("s"), Lane()


def step(state, x, w, b):
    new = state * 0.5 + x @ w + b[None]
    return new.sum(1), new


cached = lambda cache, x: (x, {name: pool * 0.5 + x for name, pool in cache.items()})
listed = lambda pools, x: (x.sum(1), [pool * 0.5 + x for pool in pools])
rows = lambda pool, slots, x, w: pool.at[slots].set(pool[slots] + x @ w["kernel"])


ARGUMENTS, PREFIX = ContractFault.ARGUMENTS, ContractFault.PREFIX
KV = {"k": STATE, "v": STATE}
SLOTS = jnp.arange(1, N + 1)
HALF = LaneContract((P, L), (L, P))
BY_NAME = [(ARGUMENTS, "kwargs['b']"), (ARGUMENTS, "kwargs['w']")]
LAST_TWO = [(ARGUMENTS, "args[2]"), (ARGUMENTS, "args[3]")]
KEY = LaneContract(({"k": P}, L), (L, {"k": P, "v": P}))
RESULT = LaneContract((P, L, Shared(), Shared()), (L,))
BOTH = LaneContract((P,), (L, {"k": P}))
LISTED, PART = LaneContract(([P, P],), (L, [P, P])), LaneContract(([P], L), (L, [P, P]))
NOTHING, FIRST_TWO = LaneContract((), (L,)), [(ARGUMENTS, "args[0]"), (ARGUMENTS, "args[1]")]
MAPPED = LaneContract((P, SlotMap("s", ROWS)), P)
CASES = {
    "two arguments": (step, (STATE, X, W, B), {}, HALF, LAST_TWO),
    "by name": (step, (STATE, X), {"w": W, "b": B}, HALF, BY_NAME),
    "part of a dict": (cached, (KV, X), {}, KEY, [(PREFIX, "args[0]")]),
    "a result": (step, (STATE, X, W, B), {}, RESULT, [(PREFIX, "result")]),
    "argument and result": (cached, (KV, X), {}, BOTH, [(ARGUMENTS, "args[1]"), (PREFIX, "result[1]")]),
    "a list, and lanes like its pools": (listed, ([STATE, STATE], X), {}, LISTED, [(ARGUMENTS, "args[1]")]),
    "a pool of a list": (listed, ([STATE, STATE], X), {}, PART, [(PREFIX, "args[0]")]),
    "no argument": (listed, ([STATE, STATE], X), {}, NOTHING, [*FIRST_TWO, (PREFIX, "result")]),
    "a dict after a slot map": (rows, (jnp.zeros((ROWS, D)), SLOTS, X, {"kernel": W}), {}, MAPPED, LAST_TWO),
}


@pytest.mark.parametrize(("fn", "args", "kwargs", "contract", "faults"), CASES.values(), ids=CASES)
def test_all_missing_entries_are_named_and_the_line_is_proved(
    fn: Any, args: Any, kwargs: Any, contract: LaneContract, faults: Any
) -> None:
    with pytest.raises(ContractError) as error:
        prove_isolation(fn, args, contract, kwargs=kwargs)
    assert [(fault.id, fault.about) for fault in error.value.faults] == faults
    line = re.search(r"LaneContract\(.*\)(?=;)", str(error.value))
    assert line is not None
    completed = eval(line[0], dict(vars(ir_passes)))
    assert prove_isolation(fn, args, completed, kwargs=kwargs).lanes == N
    bound = compile_step(fn, args, completed, kwargs=kwargs).bound
    assert len(bound.successors) == sum(isinstance(array.entry, Pool) for array in bound.inputs)
