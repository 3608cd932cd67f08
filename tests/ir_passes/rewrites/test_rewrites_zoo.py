"""The passes keep every zoo program proved and equal."""

import jax
import numpy as np
import pytest
from rewritten_steps import check_proved, claims, graph_of
from zoo.catalogue import PROGRAMS
from zoo.program import Program
from zoo.real_models import MODELS, steps

from ir_passes import IsolationError
from ir_passes.jaxpr import ir
from ir_passes.rewrites import batching
from ir_passes.rewrites.graph import Graph
from ir_passes.rewrites.pipeline import PassReport, run_passes

REBATCHED = (
    "loop over lanes, unrolled",
    "loop over lanes, unrolled, by brackets",
    "loop over lanes, all reads first",
    "loop over row pools",
    "loop over row pools, in place",
)


def rewritten(program: Program) -> tuple[Graph, Graph, tuple[PassReport, ...]]:
    graph = graph_of(program.step, program.args(), program.contract)
    return graph, *run_passes(graph, check=check_proved)


def compare(program: Program, initial: Graph, final: Graph) -> None:
    old, new = (jax.jit(ir.as_function(graph.program)) for graph in (initial, final))
    for seed in range(3):
        operands = [np.asarray(leaf) for leaf in jax.tree.leaves(program.args(seed))]
        expected = dict(claims(initial.bound, operands, old(*operands)))
        got = dict(claims(final.bound, operands, new(*operands)))
        for path, value in expected.items():
            np.testing.assert_allclose(got[path], value, rtol=1e-4, atol=1e-4, err_msg=path)


@pytest.mark.parametrize("name", PROGRAMS)
def test_rewritten_programs_are_proved_and_rewritten_once(name: str) -> None:
    _, final, _ = rewritten(PROGRAMS[name])
    repeated, reports = run_passes(final)
    assert repeated is final, reports


@pytest.mark.parametrize("name", REBATCHED)
def test_loops_over_lanes_are_batched_and_compute_the_same(name: str) -> None:
    initial, final, reports = rewritten(PROGRAMS[name])
    assert "rebatch" in [report.name for report in reports if report.changed]
    compare(PROGRAMS[name], initial, final)


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name, program in PROGRAMS.items() if not program.opaque])
def test_every_program_computes_the_same(name: str) -> None:
    initial, final, _ = rewritten(PROGRAMS[name])
    compare(PROGRAMS[name], initial, final)


def rewrite_steps(model: str, all_lanes: bool) -> list[tuple[Program, Graph, Graph]]:
    """Rewrite each step of a model with a proof after each pass; yield changed steps."""
    results = []
    for item in steps(model, all_lanes):
        initial, final, reports = rewritten(item)
        repeated, repeated_reports = run_passes(final)
        assert repeated is final, f"{item.name}: {repeated_reports}"
        if {report.name for report in reports if report.changed} - {"drop-dead"}:
            results.append((item, initial, final))
    return results


@pytest.mark.slow
def test_steps_of_a_model_are_proved_once_rewritten() -> None:
    rewrite_steps("lfm2_base", all_lanes=False)


@pytest.mark.long
@pytest.mark.parametrize("model", MODELS)
def test_every_step_of_every_model_is_proved_once_rewritten(model: str) -> None:
    for item, initial, final in rewrite_steps(model, all_lanes=True):
        compare(item, initial, final)


def test_the_proof_stops_a_pass_that_mixes_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    right = batching._rows
    monkeypatch.setattr(batching, "_rows", lambda lanes, slots: right(lanes, slots)[::-1])
    with pytest.raises(IsolationError) as raised:
        rewritten(PROGRAMS["loop over lanes, unrolled"])
    assert raised.value.__notes__ == ["the graph is the result of rebatch"]
