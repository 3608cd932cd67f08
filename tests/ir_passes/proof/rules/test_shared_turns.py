"""Loops until all lanes stop, with a shared counter in the condition."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from isolation_oracle import leaks
from jax import lax

from ir_passes import IsolationError, Lane, LaneContract, prove_isolation

LANES, WIDTH, TURNS = 3, 4, 6
CONTRACT = LaneContract((Lane(), Lane()), Lane())


def draw(rng: np.random.Generator) -> tuple[Any, ...]:
    return rng.normal(size=(LANES, WIDTH)).astype(np.float32), rng.integers(0, TURNS, LANES).astype(np.int32)


def counting(
    go_on: Callable[..., Any] = lambda x, t, turns: (t < turns).any(),
    mask: Callable[..., Any] = lambda t, turns: t < turns,
    result: Callable[..., Any] = lambda x, t: x,
    start: int = 0,
    by: int = 1,
) -> Any:
    """Return a loop with a shared counter; a mask selects new or old values."""

    def step(x, turns):
        turns = jnp.clip(turns, 0, TURNS)

        def body(state):
            x, t = state
            return jnp.where(mask(t, turns)[:, None], jnp.tanh(x), x), t + by

        return result(*lax.while_loop(lambda state: go_on(*state, turns), body, (x, jnp.int32(start))))

    return step


def finishing(
    go_on: Callable[..., Any] = lambda flags, t: ~flags.all() & (t < TURNS),
    keep: Callable[..., Any] = lambda flags, new, old: jnp.where(flags[:, None], old, new),
    finished: Callable[..., Any] = lambda flags, t, turns: flags | (turns <= t),
    result: Callable[..., Any] = lambda x, t: x,
) -> Any:
    """Return a loop with a flag of each lane and a limit for all."""

    def step(x, turns):
        turns = jnp.clip(turns, 0, TURNS)

        def body(state):
            x, flags, t = state
            return keep(flags, 0.5 * x + 1, x), finished(flags, t, turns), t + 1

        x, _, t = lax.while_loop(lambda s: go_on(s[1], s[2]), body, (x, jnp.zeros(LANES, bool), jnp.int32(0)))
        return result(x, t)

    return step


CLEAN = {
    "counter": counting(),
    "counter and a limit": counting(lambda x, t, turns: (t < turns).any() & (t < 4)),
    "a limit and a counter": counting(lambda x, t, turns: (t < 4) & (t < turns).any()),
    "flags and a limit": finishing(),
    "flags": finishing(lambda flags, t: ~flags.all()),
    "flags of unfinished lanes": finishing(lambda flags, t: (~flags).any() & (t < TURNS)),
}
LEAKS = {
    "the counter returned": counting(result=lambda x, t: x + t.astype(jnp.float32)),
    "a wider mask": counting(mask=lambda t, turns: t <= turns),
    "no mask": counting(mask=lambda t, turns: turns >= 0),
    "a counter that falls": counting(lambda x, t, turns: (t < turns).any() & (t > -4), start=3, by=-1),
    "a test of other lanes' values": counting(lambda x, t, turns: (t < turns).any() & (x.sum() < 1)),
    "until one lane has stopped": counting(lambda x, t, turns: (t < turns).all()),
    "either part": counting(
        lambda x, t, turns: (t < turns).any() | (x[0, 0] < 0.1) & (t < 9), lambda t, turns: turns >= 0
    ),
    "the limit's counter returned": finishing(result=lambda x, t: x + t.astype(jnp.float32)),
    "finished lanes go on": finishing(keep=lambda flags, new, old: new),
    "until one lane has finished": finishing(lambda flags, t: ~flags.any() & (t < TURNS)),
    "flags of other lanes": finishing(finished=lambda flags, t, turns: flags[::-1] | (turns <= t)),
}


def test_lanes_that_begin_again_at_a_shared_turn_are_refused() -> None:
    step = finishing(finished=lambda flags, t, turns: (flags | (turns <= t)) & (t != 2))
    x = jnp.ones((LANES, WIDTH))
    early, late = (step(x, jnp.array([0, 0, last]))[0, 0] for last in (0, 5))
    assert early != late
    with pytest.raises(IsolationError):
        prove_isolation(step, draw(np.random.default_rng(0)), CONTRACT)


@pytest.mark.parametrize("name", CLEAN)
def test_a_loop_that_stops_each_lane_is_proved(name: str) -> None:
    assert prove_isolation(CLEAN[name], draw(np.random.default_rng(0)), CONTRACT).lanes == LANES
    assert not leaks(CLEAN[name], CONTRACT, draw, seeds=range(3))


@pytest.mark.parametrize("name", LEAKS)
def test_a_loop_with_results_of_other_lanes_is_refused(name: str) -> None:
    with pytest.raises(IsolationError):
        prove_isolation(LEAKS[name], draw(np.random.default_rng(0)), CONTRACT)
    assert leaks(LEAKS[name], CONTRACT, draw, seeds=range(8), first=True)
