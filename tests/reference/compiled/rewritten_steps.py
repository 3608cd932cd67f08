"""Runs a step before and after a rewrite on random inputs and compares what a contract claims of it."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from ir_passes import Lane, LaneContract, Pool, SlotMap
from ir_passes.contract.contract import BoundContract
from ir_passes.contract.normal_form import flatten
from ir_passes.jaxpr import ir
from ir_passes.proof.lane_proof import prove_jaxpr
from ir_passes.proof.violations import IsolationError
from ir_passes.rewrites.graph import Graph, Pass
from ir_passes.xla_audit.audit import audit

RUNS = 6


def graph_of(fn: Callable[..., Any], args: tuple[Any, ...], contract: LaneContract) -> Graph:
    return Graph(flatten(ir.trace(fn, *args)), contract.bind(fn, args))


def inputs(bound: BoundContract, idle: int, seed: int) -> list[np.ndarray]:
    """Random operands; `idle` lanes are on the null slot, the others on distinct random rows."""
    draw = np.random.default_rng(seed)
    active = np.ones(bound.lanes, bool)
    active[draw.permutation(bound.lanes)[:idle]] = False
    found: list[np.ndarray] = []
    for one in bound.inputs:
        if isinstance(one.entry, SlotMap):
            slots = 1 + draw.permutation(one.entry.size - 1)[: bound.lanes]
            found.append(np.where(active, slots, 0).astype(np.int32))
            continue
        dtype = np.dtype(one.dtype.name)
        if np.issubdtype(dtype, np.integer):
            found.append(draw.integers(0, 3, one.shape).astype(dtype))
        elif dtype == np.bool_:
            found.append(draw.integers(0, 2, one.shape).astype(np.bool_))
        else:
            found.append(draw.standard_normal(one.shape).astype(dtype))
    return found


def claims(bound: BoundContract, operands: list[np.ndarray], results: list[Any]) -> Iterator[tuple[str, np.ndarray]]:
    """The results of active lanes, the rows other than the null row, and everything shared."""
    slots = [value for one, value in zip(bound.inputs, operands, strict=True) if isinstance(one.entry, SlotMap)]
    mapped = {name for one in bound.inputs if isinstance(one.entry, SlotMap) for name in one.entry.names}
    active = np.flatnonzero(np.all([value != 0 for value in slots], axis=0)) if slots else np.arange(bound.lanes)
    for one, result in zip(bound.outputs, results, strict=True):
        array = np.asarray(result)
        if isinstance(one.entry, Pool):
            rows = np.arange(array.shape[one.entry.axis])
            array = np.take(array, rows[rows != 0] if one.entry.group in mapped else rows, axis=one.entry.axis)
        elif isinstance(one.entry, Lane):
            array = np.take(array, active, axis=one.entry.axis)
        yield one.path, array


def assert_same(before: Graph, after: Graph, tolerance: float = 0.0) -> None:
    """Both programs agree on everything claimed: to the bit, or within a tolerance where a dot changed its rows."""
    old, new = (jax.jit(ir.as_function(graph.program)) for graph in (before, after))
    lanes = before.bound.lanes
    for seed in range(RUNS):
        operands = inputs(before.bound, (0, 0, 1, lanes - 1)[seed % 4], seed)
        expected = dict(claims(before.bound, operands, old(*operands)))
        got = dict(claims(after.bound, operands, new(*operands)))
        for path, value in expected.items():
            if tolerance:
                np.testing.assert_allclose(got[path], value, rtol=tolerance, atol=tolerance, err_msg=path)
            else:
                np.testing.assert_array_equal(got[path], value, err_msg=path, strict=True)
                assert got[path].tobytes() == value.tobytes(), path


def is_proved(graph: Graph) -> bool:
    try:
        prove_jaxpr(graph.program, graph.bound)
    except IsolationError:
        return False
    return True


def rewrite(one: Pass, graph: Graph) -> tuple[Graph, str]:
    """The graph after one pass, and the pass's report.

    It is valid, proved if the one before it was, and a second run leaves it as it is.
    """
    said: list[str] = []
    after = one.run(graph, said.append)
    ir.check(after.program)
    assert after.bound is graph.bound
    if is_proved(graph):
        prove_jaxpr(after.program, after.bound)
    again = one.run(after)
    assert again is after, "a second run changed the graph again"
    return after, "; ".join(said)


def primitives(graph: Graph) -> list[str]:
    return [eqn.primitive.name for eqn in graph.program.jaxpr.eqns]


def copies(graph: Graph, donate: tuple[int, ...]) -> int:
    """Copies of whole pools in the compiled step."""
    values = [jax.ShapeDtypeStruct(one.shape, one.dtype) for one in graph.bound.inputs]
    compiled = jax.jit(ir.as_function(graph.program), donate_argnums=donate).lower(*values).compile()
    return len(audit(compiled, graph.bound).copies)
