"""Loops with randomly swapped operands: passes leave them alone or keep their results.

Most mutants leak, so they are run without idle lanes: nothing is claimed of the null row, and they may read it.
"""

from collections.abc import Iterator

import jax
import numpy as np
import pytest
from audited_steps import LANES, ONE, SLOTS, pool, slots, x
from jax import lax
from rewritten_steps import brackets, graph_of, inputs

from ir_passes.jaxpr import ir, rewriting
from ir_passes.rewrites import drop_dead, rebatch
from ir_passes.rewrites.graph import Graph, Pass
from ir_passes.rewrites.pipeline import pass_name

PASSES: tuple[Pass, ...] = (rebatch, drop_dead)
MUTANTS = 40


def parts(pool, slots, x):
    for i in range(LANES):
        pool = pool.at[slots[i]].add(x[i])
        row = pool[slots[i]]
        index = (slots[i], 1, 0)
        part = lax.dynamic_slice(pool, index, (1, 2, 16)) + row[None, :2]
        pool = lax.dynamic_update_slice(pool, part, index)
    return pool, x


def mutants(graph: Graph, seed: int) -> Iterator[Graph]:
    """Yield graphs with one or two operands replaced by earlier values of equal type."""
    draw, jaxpr = np.random.default_rng(seed), graph.program.jaxpr
    while True:
        eqns = list(jaxpr.eqns)
        for _ in range(draw.integers(1, 3)):
            place = int(draw.integers(len(eqns)))
            eqn = eqns[place]
            operands = [i for i, atom in enumerate(eqn.invars) if not isinstance(atom, ir.Literal)]
            if not operands:
                continue
            i = operands[draw.integers(len(operands))]
            first = [*jaxpr.invars, *(var for eqn in eqns[:place] for var in eqn.outvars)]
            equal = [var for var in first if ir.types([var]) == ir.types([eqn.invars[i]])]
            invars = list(eqn.invars)
            invars[i] = equal[draw.integers(len(equal))]
            eqns[place] = eqn.replace(invars=invars)
        yield graph.with_program(rewriting.with_eqns(graph.program, eqns, jaxpr.outvars, {}))


def run(graph: Graph, operands: list[np.ndarray]) -> list[np.ndarray]:
    pools, result = jax.jit(ir.as_function(graph.program))(*operands)
    return [np.asarray(pools)[1:], np.asarray(result)]


@pytest.mark.long
@pytest.mark.parametrize("step", [brackets, parts])
def test_mutants_compute_the_same_after_every_pass(step) -> None:
    graph = graph_of(step, (pool(), slots(), x()), ONE)
    changed = dict.fromkeys(map(pass_name, PASSES), 0)
    for _, mutant in zip(range(MUTANTS), mutants(graph, seed=7), strict=False):
        ir.check(mutant.program)
        operands = [inputs(mutant.bound, 0, seed) for seed in range(2)]
        assert all((operand[1] > 0).all() and operand[1].max() < SLOTS for operand in operands)
        expected = [run(mutant, operand) for operand in operands]
        for pass_ in PASSES:
            final = pass_(mutant)
            if final is mutant:
                continue
            changed[pass_name(pass_)] += 1
            assert pass_(final) is final
            for initial, values in zip(expected, operands, strict=True):
                for a, b in zip(initial, run(final, values), strict=True):
                    np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-4, err_msg=pass_name(pass_))
    assert changed["rebatch"] > 5, changed
