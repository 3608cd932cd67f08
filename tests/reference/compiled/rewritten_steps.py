"""Run a step before and after a rewrite and compare its contract's claims."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ir_passes import IsolationError, Lane, LaneContract, Pool, SlotMap
from ir_passes.contract.contract import BoundContract
from ir_passes.contract.guarded_writes import step_form
from ir_passes.jaxpr import ir
from ir_passes.proof.lane_proof import prove_jaxpr
from ir_passes.rewrites.graph import Graph, Pass
from ir_passes.xla_audit.audit import audit

RUNS = 6


def graph_of(fn: Callable[..., Any], args: tuple[Any, ...], contract: LaneContract) -> Graph:
    bound = contract.bind(fn, args)
    return Graph(step_form(ir.trace(fn, *args), bound), bound)


def brackets(pool, slots, x):
    """Rows are written by `.at` and results collected, starting with lane 0 alone."""
    out = jnp.zeros((len(x), 16))
    for i, slot in enumerate(slots):
        row = jnp.tanh(pool[slot]) * 0.5 + x[i]
        pool = pool.at[slot].set(row)
        out = out.at[i].set(row[0])
    return pool, out


def inputs(bound: BoundContract, idle: int, seed: int) -> list[np.ndarray]:
    """Random operands; `idle` lanes are on the null slot, the others on distinct random rows."""
    draw = np.random.default_rng(seed)
    active = np.ones(bound.lanes, bool)
    active[draw.permutation(bound.lanes)[:idle]] = False
    results: list[np.ndarray] = []
    for array in bound.inputs:
        if isinstance(array.entry, SlotMap):
            slots = 1 + draw.permutation(array.entry.size - 1)[: bound.lanes]
            results.append(np.where(active, slots, 0).astype(np.int32))
            continue
        dtype = np.dtype(array.dtype.name)
        if np.issubdtype(dtype, np.integer):
            results.append(draw.integers(0, 3, array.shape).astype(dtype))
        elif dtype == np.bool_:
            results.append(draw.integers(0, 2, array.shape).astype(np.bool_))
        else:
            results.append(draw.standard_normal(array.shape).astype(dtype))
    return results


def claims(bound: BoundContract, operands: list[np.ndarray], results: list[Any]) -> Iterator[tuple[str, np.ndarray]]:
    """The results of active lanes, the rows other than the null row, and everything shared."""
    slots = [value for entry, value in zip(bound.inputs, operands, strict=True) if isinstance(entry.entry, SlotMap)]
    mapped = {name for entry in bound.inputs if isinstance(entry.entry, SlotMap) for name in entry.entry.names}
    active = np.flatnonzero(np.all([value != 0 for value in slots], axis=0)) if slots else np.arange(bound.lanes)
    for item, result in zip(bound.outputs, results, strict=True):
        array = np.asarray(result)
        if isinstance(item.entry, Pool):
            rows = np.arange(array.shape[item.entry.axis])
            array = np.take(array, rows[rows != 0] if item.entry.group in mapped else rows, axis=item.entry.axis)
        elif isinstance(item.entry, Lane):
            array = np.take(array, active, axis=item.entry.axis)
        yield item.path, array


def assert_same(initial: Graph, final: Graph, tolerance: float = 0.0) -> None:
    """Assert equal claimed results: bitwise, or within a tolerance for changed dots."""
    old, new = (jax.jit(ir.as_function(graph.program)) for graph in (initial, final))
    lanes = initial.bound.lanes
    for seed in range(RUNS):
        operands = inputs(initial.bound, (0, 0, 1, lanes - 1)[seed % 4], seed)
        expected = dict(claims(initial.bound, operands, old(*operands)))
        got = dict(claims(final.bound, operands, new(*operands)))
        for path, value in expected.items():
            if tolerance:
                np.testing.assert_allclose(got[path], value, rtol=tolerance, atol=tolerance, err_msg=path)
            else:
                np.testing.assert_array_equal(got[path], value, err_msg=path, strict=True)
                assert got[path].tobytes() == value.tobytes(), path


def check_proved(graph: Graph) -> None:
    """Raise IsolationError unless the program of a graph is proved."""
    prove_jaxpr(graph.program, graph.bound)


def is_proved(graph: Graph) -> bool:
    try:
        check_proved(graph)
    except IsolationError:
        return False
    return True


def rewrite(item: Pass, graph: Graph) -> tuple[Graph, str]:
    """The graph after one pass, and the pass's report.

    It is valid, proved if the one before it was, and a second run changes nothing.
    """
    messages: list[str] = []
    run = item(graph, messages.append)
    ir.check(run.program)
    assert run.bound is graph.bound
    if is_proved(graph):
        check_proved(run)
    repeat = item(run)
    assert repeat is run, "a second run changed the graph again"
    return run, "; ".join(messages)


def primitives(graph: Graph) -> list[str]:
    return [eqn.primitive.name for eqn in graph.program.jaxpr.eqns]


def copies(graph: Graph, donate: tuple[int, ...]) -> int:
    """Copies of whole pools in the compiled step."""
    values = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in graph.bound.inputs]
    compiled = jax.jit(ir.as_function(graph.program), donate_argnums=donate).lower(*values).compile()
    return len(audit(compiled, graph.bound).copies)
