"""Proof, rewrites and scratch plan of a step, without XLA."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ir_passes.compile.certifying import uncovered_by_proof
from ir_passes.compile.proving import prove_graph
from ir_passes.contract.contract import BoundContract, LaneContract
from ir_passes.contract.guarded_writes import step_form
from ir_passes.contract.statements import NotCovered, Statement
from ir_passes.jaxpr.collectives import Collective, schedule_of
from ir_passes.jaxpr.placement import of_one_device
from ir_passes.jaxpr.timing import Timings, new_seconds, paused, timed
from ir_passes.jaxpr.tracing import trace_function
from ir_passes.rewrites.graph import Graph, Pass
from ir_passes.rewrites.pipeline import DEFAULT_PASSES
from ir_passes.scratch.planner import Plan, plan_program
from ir_passes.targets import Target, as_target


@dataclass(frozen=True)
class PlannedStep:
    """Statements about a step before XLA.

    Attributes:
        equations: of the rewritten program, on one device.
        plan: arena of its scratch.
        seconds: of each phase.
    """

    bound: BoundContract
    equations: int
    proved: tuple[Statement, ...]
    assumed: tuple[Statement, ...]
    not_covered: tuple[Statement, ...]
    collectives: tuple[Collective, ...]
    plan: Plan
    seconds: dict[str, float]


def plan_step(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    contract: LaneContract,
    *,
    passes: tuple[Pass, ...] = DEFAULT_PASSES,
    target: Target | str | None = None,
) -> PlannedStep:
    """Prove a step and plan its scratch without compilation; arguments and errors as for `compile_step`."""
    seconds = new_seconds()
    args = args if target is None else as_target(target).place(args)
    proved = prove_graph(trace(fn, args, contract, seconds), passes, "error", None, seconds)
    assert proved.proof is not None
    plan = timed(seconds, "plan", plan_graph, proved.graph)
    return PlannedStep(
        proved.graph.bound,
        len(of_one_device(proved.graph.program).jaxpr.eqns),
        proved.proof.proved,
        proved.proof.assumed,
        (NotCovered.COMPILED_PROGRAM.statement(why="it was not compiled"), *uncovered_by_proof(proved.graph.bound)),
        tuple(scheduled.collective for scheduled in schedule_of(proved.graph.program)),
        plan,
        seconds,
    )


def trace(fn: Callable[..., Any], args: tuple[Any, ...], contract: LaneContract, seconds: Timings) -> Graph:
    with paused():
        traced = timed(seconds, "trace", trace_function, fn, args)
        bound = timed(seconds, "trace", contract.bind_trace, traced)
        return Graph(timed(seconds, "trace", step_form, traced.program, bound), bound)


def plan_graph(graph: Graph) -> Plan:
    """Return the verified arena of a program's scratch on one device."""
    with paused():
        return plan_program(of_one_device(graph.program), graph.bound)
