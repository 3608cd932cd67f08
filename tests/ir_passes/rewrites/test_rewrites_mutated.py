"""Loops over sequences with operands swapped at random: a pass leaves them alone or keeps what they compute.

Most mutants leak, so they are run without idle lanes: nothing is claimed of the null row, and they may read it.
"""

from collections.abc import Iterator

import jax
import numpy as np
import pytest
from audited_steps import LANES, ONE, SLOTS, pool, slots, x
from jax import lax
from jax import numpy as jnp
from rewritten_steps import graph_of, inputs

from ir_passes.jaxpr import ir
from ir_passes.rewrites import DropDead, Rebatch
from ir_passes.rewrites.graph import Graph, Pass

PASSES: tuple[Pass, ...] = (Rebatch(), DropDead())
MUTANTS = 40


def brackets(pool, slots, x):
    out = jnp.zeros((LANES, 16))
    for i, slot in enumerate(slots):
        row = jnp.tanh(pool[slot]) * 0.5 + x[i]
        pool = pool.at[slot].set(row)
        out = out.at[i].set(row[0])
    return pool, out


def parts(pool, slots, x):
    for i in range(LANES):
        pool = pool.at[slots[i]].add(x[i])
        row = pool[slots[i]]
        at = (slots[i], slots[i] // 3, 0)
        part = lax.dynamic_slice(pool, at, (1, 2, 16)) + row[None, :2]
        pool = lax.dynamic_update_slice(pool, part, at)
    return pool, x


def mutants(graph: Graph, seed: int) -> Iterator[Graph]:
    """The graph with one or two operands of its equations exchanged for earlier values of the same type."""
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
            earlier = [*jaxpr.invars, *(var for one in eqns[:place] for var in one.outvars)]
            same = [var for var in earlier if ir.types([var]) == ir.types([eqn.invars[i]])]
            invars = list(eqn.invars)
            invars[i] = same[draw.integers(len(same))]
            eqns[place] = eqn.replace(invars=invars)
        yield graph.with_program(ir.with_eqns(graph.program, eqns, jaxpr.outvars, {}))


def run(graph: Graph, operands: list[np.ndarray]) -> list[np.ndarray]:
    pools, result = jax.jit(ir.as_function(graph.program))(*operands)
    return [np.asarray(pools)[1:], np.asarray(result)]


@pytest.mark.long
@pytest.mark.parametrize("step", [brackets, parts])
def test_mutants_compute_the_same_after_every_pass(step) -> None:
    graph = graph_of(step, (pool(), slots(), x()), ONE)
    changed = dict.fromkeys((one.name for one in PASSES), 0)
    for _, mutant in zip(range(MUTANTS), mutants(graph, seed=7), strict=False):
        ir.check(mutant.program)
        operands = [inputs(mutant.bound, 0, seed) for seed in range(2)]
        assert all((one[1] > 0).all() and one[1].max() < SLOTS for one in operands)
        expected = [run(mutant, one) for one in operands]
        for one in PASSES:
            after = one.run(mutant)
            if after is mutant:
                continue
            changed[one.name] += 1
            assert one.run(after) is after
            for before, values in zip(expected, operands, strict=True):
                for a, b in zip(before, run(after, values), strict=True):
                    np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-4, err_msg=one.name)
    assert changed["rebatch"] > 5, changed
