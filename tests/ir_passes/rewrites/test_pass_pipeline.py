"""The pipeline runs passes in order, checks their results, and reports each."""

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
import pytest
from rewritten_steps import assert_same, graph_of

from ir_passes import Lane, LaneContract, Pool
from ir_passes.jaxpr import ir
from ir_passes.rewrites import DropDead
from ir_passes.rewrites.graph import Graph, Say, quiet
from ir_passes.rewrites.pipeline import DEFAULT_PASSES, PassError, PassPipeline

CONTRACT = LaneContract((Pool("p"), Lane()), (Pool("p"), Lane()))


def step(pool, x):
    jnp.sin(x)
    return pool + 1.0, x * 2.0


@pytest.fixture
def graph() -> Graph:
    return graph_of(step, (jnp.zeros((4, 6)), jnp.ones((4, 6))), CONTRACT)


@dataclass(frozen=True)
class Wrong:
    """A pass with the fault named by `how`."""

    how: str
    name: ClassVar[str] = "wrong"

    def run(self, graph: Graph, say: Say = quiet) -> Graph:
        jaxpr = graph.program.jaxpr
        eqns, outvars = list(jaxpr.eqns), list(jaxpr.outvars)
        if self.how == "fails":
            raise ZeroDivisionError
        if self.how == "loses an equation":
            eqns = eqns[:-1]
        elif self.how == "other outputs":
            outvars = outvars[:1]
        elif self.how == "swaps outputs":
            outvars = outvars[::-1]
        elif self.how == "other contract":
            return Graph(
                graph.program, LaneContract((Lane(), Lane()), (Lane(), Lane())).bind(step, (1.0 * ones(),) * 2)
            )
        return graph.with_program(ir.with_eqns(graph.program, eqns, outvars, {}))


class Other(Wrong):
    """The same by another name."""

    name: ClassVar[str] = "other"


def ones():
    return jnp.ones((4, 6))


def test_reports(graph: Graph) -> None:
    process = PassPipeline((DropDead(),)).run(graph)
    (report,) = process.reports
    assert report.changed
    assert str(report) == "drop-dead: dropped 1 dead equations and 96 bytes of scratch" == process.report()
    assert_same(graph, process.graph)
    (repeat,) = PassPipeline((DropDead(),)).run(process.graph).reports
    assert (repeat.changed, repeat.summary) == (False, "nothing to do")


def test_check_runs_on_the_first_graph_and_after_every_change(graph: Graph) -> None:
    calls: list[Graph] = []
    process = PassPipeline((Wrong("nothing"), Other("nothing")), check=calls.append).run(graph)
    assert len(calls) == 3
    assert calls[0] is graph
    assert calls[-1] is process.graph


def test_what_is_only_dropped_is_not_checked(graph: Graph) -> None:
    """The rest is, once, also where it goes into another pass."""
    calls: list[Graph] = []
    process = PassPipeline((DropDead(),), check=calls.append).run(graph)
    assert calls == [process.graph]
    calls.clear()
    PassPipeline((DropDead(),), check=calls.append).run(process.graph)
    assert calls == [process.graph]
    calls.clear()
    PassPipeline((DropDead(), Wrong("nothing")), check=calls.append).run(graph)
    assert len(calls) == 2 and calls[0].program.jaxpr.eqns == process.graph.program.jaxpr.eqns


def test_a_pass_that_fails_on_a_wrong_graph_is_not_blamed(graph: Graph) -> None:
    def dislikes(graph: Graph) -> None:
        raise ValueError("leaks")

    with pytest.raises(ValueError, match="leaks") as raised:
        PassPipeline((Wrong("fails"),), check=dislikes).run(graph)
    assert raised.value.__notes__ == ["raised of the graph that the first pass is given"]
    with pytest.raises(ZeroDivisionError):
        PassPipeline((Wrong("fails"),), check=lambda graph: None).run(graph)


def test_a_failed_check_says_of_which_graph(graph: Graph) -> None:
    def dislikes_short(graph: Graph) -> None:
        if len(graph.program.jaxpr.eqns) < 3:
            raise ValueError("too short")

    with pytest.raises(ValueError, match="too short") as raised:
        PassPipeline((DropDead(),), check=dislikes_short).run(graph)
    assert raised.value.__notes__ == ["raised of the graph that drop-dead returned"]


@pytest.mark.parametrize(("how", "message"), [
    ("loses an equation", "invalid graph"),
    ("other outputs", "changed the outputs: expected .*float32.*got"),
    ("other contract", "changed the contract"),
])  # fmt: skip
def test_an_invalid_result_names_the_pass(graph: Graph, how: str, message: str) -> None:
    with pytest.raises(PassError, match=f"wrong .*{message}"):
        PassPipeline((Wrong(how),)).run(graph)


def test_what_types_cannot_tell_the_comparison_does(graph: Graph) -> None:
    process = PassPipeline((Wrong("swaps outputs"),)).run(graph)
    with pytest.raises(AssertionError):
        assert_same(graph, process.graph)


def test_passes_have_different_names() -> None:
    names = [rewrite.name for rewrite in PassPipeline().passes]
    assert PassPipeline().passes == DEFAULT_PASSES
    with pytest.raises(PassError, match="drop-dead more than once"):
        PassPipeline((DropDead(), DropDead()))
    assert len(set(names)) == len(names)
    assert all(name == name.lower() and "_" not in name for name in names)
