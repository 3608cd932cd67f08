"""The pipeline runs passes in order, checks their results, and reports each."""

from functools import partial

import jax.numpy as jnp
import pytest
from rewritten_steps import assert_same, graph_of

from ir_passes import Lane, LaneContract, Pool
from ir_passes.jaxpr import rewriting
from ir_passes.rewrites import drop_dead
from ir_passes.rewrites.graph import Graph, Say, quiet
from ir_passes.rewrites.pipeline import DEFAULT_PASSES, pass_name, run_passes

CONTRACT = LaneContract((Pool("p"), Lane()), (Pool("p"), Lane()))


def step(pool, x):
    jnp.sin(x)
    return pool + 1.0, x * 2.0


@pytest.fixture
def graph() -> Graph:
    return graph_of(step, (jnp.zeros((4, 6)), jnp.ones((4, 6))), CONTRACT)


def wrong(how: str, graph: Graph, say: Say = quiet) -> Graph:
    """A pass with the fault named by `how`."""
    jaxpr = graph.program.jaxpr
    eqns, outvars = list(jaxpr.eqns), list(jaxpr.outvars)
    if how == "fails":
        raise ZeroDivisionError
    if how == "loses an equation":
        eqns = eqns[:-1]
    elif how == "other outputs":
        outvars = outvars[:1]
    elif how == "swaps outputs":
        outvars = outvars[::-1]
    elif how == "other contract":
        return Graph(graph.program, LaneContract((Lane(), Lane()), (Lane(), Lane())).bind(step, (1.0 * ones(),) * 2))
    return graph.with_program(rewriting.with_eqns(graph.program, eqns, outvars, {}))


def other(graph: Graph, say: Say = quiet) -> Graph:
    """The right copy by another name."""
    return wrong("nothing", graph)


def ones():
    return jnp.ones((4, 6))


def test_reports(graph: Graph) -> None:
    final, (report,) = run_passes(graph, (drop_dead,))
    assert report.changed
    assert str(report) == "drop-dead: dropped 1 dead equations and 96 bytes of scratch"
    assert_same(graph, final)
    _, (repeat,) = run_passes(final, (drop_dead,))
    assert (repeat.changed, repeat.summary) == (False, "nothing to do")


def test_check_runs_on_the_first_graph_and_after_every_change(graph: Graph) -> None:
    calls: list[Graph] = []
    final, _ = run_passes(graph, (partial(wrong, "nothing"), other), calls.append)
    assert len(calls) == 3
    assert calls[0] is graph
    assert calls[-1] is final


def test_what_is_only_dropped_is_not_checked(graph: Graph) -> None:
    """The rest is, once, also where it goes into another pass."""
    calls: list[Graph] = []
    final, _ = run_passes(graph, (drop_dead,), calls.append)
    assert calls == [final]
    calls.clear()
    run_passes(final, (drop_dead,), calls.append)
    assert calls == [final]
    calls.clear()
    run_passes(graph, (drop_dead, other), calls.append)
    assert len(calls) == 2 and calls[0].program.jaxpr.eqns == final.program.jaxpr.eqns


def test_a_pass_that_fails_on_a_wrong_graph_is_not_blamed(graph: Graph) -> None:
    def dislikes(graph: Graph) -> None:
        raise ValueError("leaks")

    with pytest.raises(ValueError, match="leaks") as raised:
        run_passes(graph, (partial(wrong, "fails"),), dislikes)
    assert not hasattr(raised.value, "__notes__")
    with pytest.raises(ZeroDivisionError):
        run_passes(graph, (partial(wrong, "fails"),), lambda graph: None)


def test_a_failed_check_says_of_which_graph(graph: Graph) -> None:
    def dislikes_short(graph: Graph) -> None:
        if len(graph.program.jaxpr.eqns) < 3:
            raise ValueError("too short")

    with pytest.raises(ValueError, match="too short") as raised:
        run_passes(graph, (drop_dead,), dislikes_short)
    assert raised.value.__notes__ == ["the graph is the result of drop-dead"]


@pytest.mark.parametrize(("how", "message"), [
    ("loses an equation", "invalid graph"),
    ("other outputs", "changed the outputs: expected .*float32.*got"),
    ("other contract", "changed the contract"),
])  # fmt: skip
def test_an_invalid_result_names_the_pass(graph: Graph, how: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"wrong .*{message}"):
        run_passes(graph, (partial(wrong, how),))


def test_what_types_cannot_tell_the_comparison_does(graph: Graph) -> None:
    final, _ = run_passes(graph, (partial(wrong, "swaps outputs"),))
    with pytest.raises(AssertionError):
        assert_same(graph, final)


def test_passes_have_different_names(graph: Graph) -> None:
    names = [*map(pass_name, DEFAULT_PASSES)]
    assert names == ["rebatch", "drop-dead"] and pass_name(partial(wrong, "fails")) == "wrong"
    with pytest.raises(ValueError, match="drop-dead more than once"):
        run_passes(graph, (drop_dead, drop_dead))
