"""A step's page has measured lanes next to the verdict."""

import jax.numpy as jnp
import numpy as np
import pytest

from hybridlm.compiler import measure
from ir_passes import Lane, LaneContract, Pool, SlotMap, compile_step
from ir_passes.compile.inspect_page import inspect_page

LANES = 4
CONTRACT = LaneContract((Pool("s"), SlotMap("s", 9), Lane()), (Lane(), Pool("s")))


def leaking(pool, slots, x):
    """Lane 2 sees lane 0's result, lane 1 sees lane 3's row."""
    new = jnp.tanh(pool[slots] + x)
    return new.at[2].add(new[0]).at[1].add(pool[slots[3]]), pool.at[slots].set(new)


@pytest.mark.filterwarnings("ignore::ir_passes.CertificationWarning")
def test_the_page_shows_the_dependence_next_to_the_verdict() -> None:
    rng = np.random.default_rng(0)
    pool, x = (rng.normal(size=(rows, 2)).astype(np.float32) for rows in (9, LANES))
    arguments = jnp.asarray(pool), jnp.array([3, 8, 1, 5], jnp.int32), jnp.asarray(x)
    step = compile_step(leaking, arguments, CONTRACT, certify="warn")
    page = inspect_page("leaking", step, measured=measure.measured_dependence(step, arguments, step.bound))
    assert page.count('<td class="open">open<small>changed</small></td>') == 2
    assert page.count('<td class="own">own<small>changed</small></td>') == LANES
