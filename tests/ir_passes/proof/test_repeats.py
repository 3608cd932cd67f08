"""Runs of equations that occur again are interpreted once: nothing that a proof knows or says is another for it.

Each program is a chain of calls of one step, where every call gets the pools that the one before returned. A walk that
renames what repeats has to end in the state of one that interprets everything: values with their numbers, versions,
accesses, notes. Steps with a fault, also in one call of several, have to be refused in the same words.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from mutants.catalogue import MUTANTS
from zoo.catalogue import PROGRAMS
from zoo.program import Program

from ir_passes import Lane, LaneContract, Opaque, Pool, SlotMap
from ir_passes.contract.contract import BoundContract
from ir_passes.contract.normal_form import flatten
from ir_passes.jaxpr import ir
from ir_passes.jaxpr.tracing import trace_function
from ir_passes.proof import lane_proof
from ir_passes.proof.lane_proof import IDLE_CLAIMS, prove_jaxpr, walk
from ir_passes.proof.prover import Prover
from ir_passes.proof.repeated_runs import repeats, runs
from ir_passes.proof.repeated_runs.runs import Run, runs_of
from ir_passes.proof.rules import opaque_calls
from ir_passes.proof.violations import IsolationError, ViolationKind

CALLS = 4
RANDOM = 6
"""Calls of a chain with arrays that are picked at random."""
FAULTY = [id for id, one in MUTANTS.items() if one.program is not None]


@pytest.fixture
def repeated(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """First equations of the runs that were not interpreted."""
    found: list[int] = []
    repeat = repeats.Template.repeat

    def counting(self: Any, env: Any, jaxpr: Any, run: Run) -> bool:
        same = repeat(self, env, jaxpr, run)
        found.extend([run.first] if same else [])
        return same

    monkeypatch.setattr(repeats.Template, "repeat", counting)
    yield found


def chained(
    programs: Sequence[ir.ClosedJaxpr], bound: BoundContract, strange: random.Random | None = None
) -> ir.ClosedJaxpr:
    """A program that calls others one after the other; each gets the pools that the one before returned.

    Args:
        programs: with the inputs and results of the contract.
        bound: the contract.
        strange: gives some calls another array of the same type in the place of one of theirs.
    """
    steps = {id(one): jax.jit(ir.as_function(one)) for one in programs}

    def run(*given: Any) -> Any:
        values, results, known = list(given), list[Any](), list(given)
        for one in programs:
            mine = list(values)
            for k in range(len(mine)) if strange is not None and strange.random() < 0.5 else ():
                others = [other for other in known if other.aval == mine[k].aval]
                mine[k] = strange.choice(others) if strange is not None and strange.random() < 0.3 else mine[k]
            results = steps[id(one)](*mine)
            known += results
            for before, after in bound.successors.items():
                values[before] = results[after].astype(given[before].dtype)
        return results

    return ir.trace(run, *programs[0].in_avals)


def state(prover: Prover, results: Any) -> dict[str, Any]:
    """Findings of a walk."""
    accesses = [(one.leaf, one.write, one.coordinate, one.lane) for one in prover.accesses]
    names = "violations assumed declared notes same_counts sort_keys own_orders device_varying comparisons".split()
    known = {name: getattr(prover, name) for name in names}
    return known | vars(prover.numbers) | vars(prover.versions) | {"accesses": accesses, "results": results}


def outcome(program: ir.ClosedJaxpr, bound: BoundContract) -> Any:
    """The statements of a proof, or its faults."""
    try:
        proof = prove_jaxpr(program, bound)
    except IsolationError as error:
        return str(error), error.violations
    return proof.equations, proof.proved, proof.assumed, proof.notes


def check(program: ir.ClosedJaxpr, bound: BoundContract, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Compare the walks over a program and its proof with and without repeats; return what the proof says."""
    monkeypatch.setattr(runs, "MIN_EQUATIONS", 1)
    kernels = opaque_calls.undeclared(program, bound.opaque)
    flat = flatten(kernels.program)
    found_runs = runs_of(flat.jaxpr)
    roles = {getattr(one.entry, "role", None) for one in bound.inputs}
    for idle in ["", *(role for role in IDLE_CLAIMS if role in roles)]:
        once, each = (Prover(bound, idle=idle, unread=kernels.unread) for _ in range(2))
        found = state(once, walk(once, flat, found_runs))
        expected = state(each, walk(each, flat))
        assert found == expected, [name for name in expected if found[name] != expected[name]]
    said = outcome(program, bound)
    with monkeypatch.context() as patched:
        patched.setattr(lane_proof, "runs_of", lambda jaxpr: [])
        assert said == outcome(program, bound)
    return said


def traced(program: Program) -> tuple[ir.ClosedJaxpr, BoundContract]:
    trace = trace_function(program.step, program.args())
    return trace.program, program.contract.bind_trace(trace)


LANES, ROWS, WIDTH = 4, 6, 3
BY_SLOT = LaneContract(
    (Lane(), Lane(), SlotMap(("kv",), ROWS), Pool("kv"), SlotMap(("other",), ROWS), Pool("other")),
    (Lane(), Pool("kv"), Pool("other")),
)


@partial(jax.jit, static_argnames=("axis", "factor", "constant"))
def layer(x: Any, y: Any, slots: Any, pool: Any, *, axis: int = 1, factor: float = 2.0, constant: bool = False) -> Any:
    """Add two arrays of lanes to their rows of a pool; with `constant` return a row that is no lane's beside."""
    new = lax.rev(jnp.sin(x * factor) + y + pool[slots], (axis,))
    row = pool[jnp.int32(3)] if constant else slots
    return new, pool.at[slots].set(new), row


def ordinary(k: int, x: Any, y: Any, slots: Any, pool: Any, **settings: Any) -> Any:
    """Call the layer, each time with an array of lanes that no other call is given; nobody uses the row."""
    return layer(x, y + jnp.float32(k), slots, pool, **settings)[:2]


def step_with(fourth: Callable[..., Any]) -> Callable[..., Any]:
    """A step of six layers, the fourth called by a function of (x, y, slots, pool, other slots, other pool, pools)."""

    def step(x: Any, y: Any, slots: Any, pool: Any, slots_there: Any, there: Any) -> Any:
        pools = [pool]
        for k in range(6):
            if k == 3:
                x, *changed = fourth(x, y, slots, pool, slots_there, there, pools)
                pool, there = changed if len(changed) == 2 else (*changed, there)
            else:
                x, pool = ordinary(k, x, y, slots, pool)
            pools.append(pool)
        return x, pool, there

    return step


def found_before(x: Any, y: Any, slots: Any, pool: Any, *_: Any) -> Any:
    known = jnp.sin(x * 2.0)
    return layer(x, known, slots, pool)[:2]


FOURTH: dict[str, tuple[Callable[..., Any], int, str | None]] = {
    "the same": (lambda x, y, slots, pool, *_: ordinary(3, x, y, slots, pool), 4, None),
    "rows of one lane": (
        lambda x, y, slots, pool, *_: layer(x, jnp.broadcast_to(y[1], y.shape), slots, pool)[:2],
        3,
        "cross-lane",
    ),
    "equal arrays": (lambda x, y, slots, pool, *_: layer(jnp.cos(x), jnp.cos(x), slots, pool)[:2], 3, None),
    "an expression that is known": (found_before, 3, None),
    "a pool of another group": (
        lambda x, y, slots, pool, slots_there, there, _: (lambda got: (got[0], pool, got[1]))(
            layer(x, y, slots, there)
        ),
        3,
        "wrong-row",
    ),
    "a pool of another group by its slots": (
        lambda x, y, slots, pool, slots_there, there, _: (lambda got: (got[0], pool, got[1]))(
            layer(x, y, slots_there, there)
        ),
        3,
        None,
    ),
    "an old pool": (lambda x, y, slots, pool, a, b, pools: layer(x, y, slots, pools[1])[:2], 3, "stale-pool"),
    "another parameter": (lambda x, y, slots, pool, *_: ordinary(3, x, y, slots, pool, axis=0), 3, "cross-lane"),
    "another number": (lambda x, y, slots, pool, *_: ordinary(3, x, y, slots, pool, factor=3.0), 3, None),
    "a constant row": (lambda x, y, slots, pool, *_: ordinary(3, x, y, slots, pool, constant=True), 3, "constants"),
}
"""The fourth of six calls, how many are renamed at most, and the fault."""


@pytest.mark.parametrize("name", FOURTH)
def test_call_that_is_another(name: str, repeated: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    fourth, most, fault = FOURTH[name]
    lanes, pool = jnp.zeros((LANES, WIDTH)), jnp.zeros((ROWS, WIDTH))
    slots = jnp.arange(LANES, dtype=jnp.int32)
    trace = trace_function(step_with(fourth), (lanes, lanes, slots, pool, slots, pool))
    bound = BY_SLOT.bind_trace(trace)
    said = check(trace.program, bound, monkeypatch)
    assert fault in said[0] if fault else said[1], said
    repeated.clear()
    flat = flatten(trace.program)
    walk(Prover(bound), flat, [run for run in runs_of(flat.jaxpr) if run.end - run.first > 4])
    assert 1 <= len(repeated) <= most, repeated


def double_rows(x: Any) -> Any:
    return x * 2


DECLARED = LaneContract((Lane(), Lane()), Lane(), opaque={"double_rows": Opaque((Lane(),), (Lane(),))})


def another_double_rows() -> Callable[..., Any]:
    """A function of the same name that is another."""

    def double_rows(x: Any) -> Any:
        return x[::-1] * 2

    return double_rows


@jax.jit
def calling(x: Any, y: Any) -> Any:
    """Call what is declared among enough equations for a run."""
    x = jnp.sin(x + y) * jnp.cos(x - y)
    return jnp.tanh(jax.pure_callback(double_rows, x, jnp.exp(x))) + x


FIFTH: dict[str, tuple[Callable[..., Any], str | None]] = {
    "the same": (calling, None),
    "rows in another order": (lambda x, y: calling(x[::-1], y), "cross-lane"),
    "another function": (lambda x, y: jax.pure_callback(another_double_rows(), x, x + y), "ambiguous-name"),
}
"""The fifth of six calls, and the fault."""


@pytest.mark.parametrize("name", FIFTH)
def test_declared_calls_are_counted_where_they_are_renamed(
    name: str, repeated: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    fifth, fault = FIFTH[name]

    def step(x: Any, y: Any) -> Any:
        for k in range(6):
            x = (fifth if k == 4 else calling)(x, y + jnp.float32(k))
        return x

    lanes = jnp.zeros((LANES, WIDTH))
    trace = trace_function(step, (lanes, lanes))
    said = check(trace.program, DECLARED.bind_trace(trace), monkeypatch)
    assert repeated
    if fault:
        assert fault in said[0], said
    else:
        assert any("(6 calls)" in one.about for one in said[2]), said[2]


def test_faults_of_every_call_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call whose results nobody uses reports a fault by itself: it is not renamed."""
    lanes, pool = jnp.zeros((LANES, WIDTH)), jnp.zeros((ROWS, WIDTH))
    slots = jnp.arange(LANES, dtype=jnp.int32)

    def step(x: Any, slots: Any, pool: Any) -> Any:
        for k in range(5):
            x, pool = ordinary(k, x, x, slots, pool, constant=True)
        return x, pool

    trace = trace_function(step, (lanes, slots, pool))
    contract = LaneContract((Lane(), SlotMap(("kv",), ROWS), Pool("kv")), (Lane(), Pool("kv")))
    said = check(trace.program, contract.bind_trace(trace), monkeypatch)
    assert isinstance(said[0], str) and {fault.kind for fault in said[1]} == {ViolationKind.CONSTANT}


def test_equations_with_other_parameters_are_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program without literals, which would tell the two bodies apart."""

    @partial(jax.jit, static_argnames="axis")
    def mixed(x: Any, y: Any, axis: int) -> Any:
        return lax.rev(lax.sin(x) + y, (axis,))

    def step(x: Any, y: Any) -> Any:
        for k in range(6):
            x = mixed(x, lax.cos(y), axis=0 if k == 3 else 1)
        return x

    lanes = jnp.zeros((LANES, WIDTH))
    trace = trace_function(step, (lanes, lanes))
    said = check(trace.program, LaneContract((Lane(), Lane()), Lane()).bind_trace(trace), monkeypatch)
    assert "cross-lane" in said[0]


def test_pools_that_the_contract_describes_otherwise_are_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A position of a pool with names of dimensions may not be a constant; without names nobody knows of positions."""

    @jax.jit
    def layer_at_0(x: Any, slots: Any, pool: Any) -> Any:
        return jnp.sin(x) + pool[slots, 0], pool.at[slots].set(pool[slots] * 2)

    def step(x: Any, slots: Any, pools: Any) -> Any:
        pools = list(pools)
        for k, pool in enumerate(pools):
            x, pools[k] = layer_at_0(x, slots, pool)
        return x, tuple(pools)

    args = jnp.zeros(LANES), jnp.arange(LANES, dtype=jnp.int32), (jnp.zeros((ROWS, WIDTH)),) * 5
    pools = tuple(Pool("kv", dims=(None, "position")) if k == 3 else Pool("kv") for k in range(5))
    trace = trace_function(step, args)
    bound = LaneContract((Lane(), SlotMap(("kv",), ROWS), pools), (Lane(), pools)).bind_trace(trace)
    assert "constants" in check(trace.program, bound, monkeypatch)[0]


def chain_of_a_correct_step(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program, bound = traced(PROGRAMS[name])
    check(chained([program] * CALLS, bound), bound, monkeypatch)


@pytest.mark.parametrize("name", list(PROGRAMS)[::5])
def test_chain_of_a_correct_step(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    chain_of_a_correct_step(name, monkeypatch)


def test_most_correct_steps_repeat(repeated: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparisons are of something: all but the first two calls are renamed."""
    monkeypatch.setattr(runs, "MIN_EQUATIONS", 1)
    for name in "gated delta, idle lanes", "mamba2", "layers with carried pools", "layers unrolled", "scan over chunks":
        program, bound = traced(PROGRAMS[name])
        repeated.clear()
        prove_jaxpr(chained([program] * CALLS, bound), bound)
        assert len(repeated) >= CALLS - 2, name


def chains_with_a_fault(id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All calls faulty, and one call of correct ones."""
    mutant = MUTANTS[id]
    assert mutant.program is not None
    wrong, bound = traced(mutant.program)
    check(chained([wrong] * CALLS, bound), bound, monkeypatch)
    base = PROGRAMS.get(mutant.base)
    if base is None:
        return
    right, of_right = traced(base)
    if [one.str_short() for one in right.in_avals] == [one.str_short() for one in wrong.in_avals]:
        if len(right.out_avals) == len(wrong.out_avals) and of_right.successors == bound.successors:
            check(chained([right] * 3 + [wrong] + [right] * 2, bound), bound, monkeypatch)


def calls_of_strange_arrays(name: str, seeds: Sequence[int], monkeypatch: pytest.MonkeyPatch) -> None:
    program, bound = traced(PROGRAMS[name])
    for seed in seeds:
        check(chained([program] * RANDOM, bound, random.Random(seed)), bound, monkeypatch)


@pytest.mark.parametrize("id", FAULTY[::20])
def test_chain_with_a_fault(id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    chains_with_a_fault(id, monkeypatch)


@pytest.mark.parametrize("name", list(PROGRAMS)[::20])
def test_chain_of_calls_of_strange_arrays(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls_of_strange_arrays(name, range(2), monkeypatch)


@pytest.mark.long
@pytest.mark.parametrize("name", PROGRAMS)
def test_chain_of_every_correct_step(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    chain_of_a_correct_step(name, monkeypatch)


@pytest.mark.long
@pytest.mark.parametrize("id", FAULTY)
def test_every_chain_with_a_fault(id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    chains_with_a_fault(id, monkeypatch)


@pytest.mark.long
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_chain_of_calls_of_strange_arrays(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls_of_strange_arrays(name, range(20), monkeypatch)
