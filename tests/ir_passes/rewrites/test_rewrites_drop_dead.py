"""Dead equations disappear, also in loops; outputs and effects keep theirs."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from rewritten_steps import assert_same, graph_of, primitives, rewrite

from ir_passes import Lane, LaneContract, Pool
from ir_passes.jaxpr import ir, rewriting
from ir_passes.rewrites import drop_dead
from ir_passes.rewrites.graph import Graph

CONTRACT = LaneContract((Pool("p"), Lane()), (Pool("p"), Lane()))
ARGS = (jnp.zeros((4, 6)), jnp.ones((4, 6)))


def wasteful(pool, x):
    _ = jnp.sin(x) @ jnp.ones((6, 6))

    def body(carry, row):
        total, unused = carry
        return (total + row, unused * 2.0), jnp.exp(row)

    (total, _), _ = lax.scan(body, (jnp.zeros(6), jnp.ones(6)), x)
    return pool + 1.0, x * total[None]


def test_dead_equations_dead_carries_and_dead_results_of_loops() -> None:
    graph = graph_of(wasteful, ARGS, CONTRACT)
    final, report = rewrite(drop_dead, graph)
    assert_same(graph, final)
    assert report.startswith("dropped 6 dead equations and ")
    assert "dot_general" not in primitives(final)
    (loop,) = (eqn for eqn in final.program.jaxpr.eqns if eqn.primitive.name == "scan")
    (body,) = ir.sub_jaxprs(loop)
    assert [eqn.primitive.name for eqn in body.eqns] == ["add"]
    assert (len(loop.invars), len(loop.outvars)) == (2, 1)


def test_inputs_stay_and_so_do_sources() -> None:
    graph = graph_of(lambda pool, x: (pool + 1.0, jnp.ones((4, 6))), ARGS, CONTRACT)
    final, report = rewrite(drop_dead, graph)
    assert final is graph
    assert report == ""
    final, _ = rewrite(drop_dead, graph_of(wasteful, ARGS, CONTRACT))
    first = wasteful.__code__.co_firstlineno
    lines = {int(ir.source_of(eqn).rsplit(":", 1)[1]) for eqn in final.program.jaxpr.eqns}
    assert lines <= set(range(first, first + 10))


def test_effects_stay_in_their_order() -> None:
    def step(pool, x):
        jax.debug.print("first {}", jnp.cos(x).sum())
        jnp.exp(x)
        jax.debug.print("second {}", x.sum())
        return pool + 1.0, x

    final, report = rewrite(drop_dead, graph_of(step, ARGS, CONTRACT))
    assert report.startswith("dropped 1 dead equations")
    assert [eqn.params["fmt"] for eqn in final.program.jaxpr.eqns if eqn.effects] == ["first {}", "second {}"]
    assert "cos" in primitives(final)
    assert final.program.effects == graph_of(step, ARGS, CONTRACT).program.effects


def test_a_pass_that_drops_what_is_needed_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(program: ir.ClosedJaxpr) -> ir.ClosedJaxpr:
        eqns = [eqn for eqn in program.jaxpr.eqns if eqn.primitive.name != "scan"]
        return rewriting.with_eqns(program, eqns, program.jaxpr.outvars, {})

    monkeypatch.setattr(ir, "without_dead", careless)
    graph = graph_of(wasteful, ARGS, CONTRACT)
    run: Graph = drop_dead(graph)
    with pytest.raises(Exception, match="not defined"):
        ir.check(run.program)
