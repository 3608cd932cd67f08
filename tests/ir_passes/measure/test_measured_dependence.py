"""Measured dependence shows a step's leaking lanes in the page's matrix."""

import jax
import jax.numpy as jnp
import numpy as np
from zoo import gated_delta, rows
from zoo.catalogue import PROGRAMS
from zoo.program import LANES, normal

from ir_passes.measure.dependence import measured_dependence

OWN = tuple(tuple(i == j for j in range(LANES)) for i in range(LANES))
PLAIN = PROGRAMS["rows behind a slot map"]


def arguments():
    """No lane on the null row."""
    rng = np.random.default_rng(0)
    pool, _, x, w = rows.draw(rng)
    return pool, np.array([3, 8, 1, 5], np.int32), x, w


def test_each_lane_changes_its_own_alone() -> None:
    assert measured_dependence(jax.jit(PLAIN.step), arguments(), PLAIN.bound()).changed == OWN
    program = PROGRAMS["gated delta, idle lanes"]
    rng = np.random.default_rng(1)
    args = gated_delta.weights(rng), gated_delta.pools(rng, LANES), normal(rng, LANES, 7), np.ones(LANES, np.int32)
    assert measured_dependence(jax.jit(program.step), args, program.bound()).changed == OWN


def leaking(pool, slots, x, w):
    """Lane 2 sees lane 0's result, lane 1 sees lane 3's row."""
    y, new = rows.plain_step(pool, slots, x, w)
    return y.at[2].add(y[0]).at[1].add(pool[slots[3], 0]), new


def test_crossings_are_seen() -> None:
    assert measured_dependence(jax.jit(leaking), arguments(), PLAIN.bound()).crossings == ((1, 3), (2, 0))


def test_writes_to_rows_of_other_lanes_are_measured() -> None:
    def step(pool, slots, x, w):
        y, new = rows.plain_step(pool, slots, x, w)
        return y, new.at[slots[1]].add(jnp.sum(x[0]))

    assert measured_dependence(jax.jit(step), arguments(), PLAIN.bound()).crossings == ((1, 0),)
