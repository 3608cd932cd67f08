"""Limits by literals exclude infinities."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from ir_passes import Lane, LaneContract, Packed
from ir_passes.jaxpr import ir
from ir_passes.proof.lane_proof import walk
from ir_passes.proof.prover import Prover
from ir_passes.proof.values import Finite, Value

NUMBERS = np.array([[np.inf], [-np.inf], [np.nan], [3e38], [-3e38], [0.0]], np.float32)
LIMITS = {
    "greater of both": (lambda x: lax.max(x, jnp.full_like(x, 1.0)), {"-inf"}),
    "less of both": (lambda x: lax.min(jnp.full_like(x, 1.0), x), {"inf"}),
    "limited": (lambda x: lax.clamp(0.0, x, 2.0), {"inf", "-inf"}),
    "least": (lambda x: lax.clamp(x, jnp.full_like(x, 1.0), 2.0), {"inf", "-inf"}),
    "greatest": (lambda x: lax.clamp(0.0, jnp.full_like(x, 1.0), x), {"inf"}),
    "infinite limit": (lambda x: lax.clamp(-jnp.inf, x, 2.0), None),
}


@pytest.mark.parametrize("name", LIMITS)
def test_excluded_numbers(name: str) -> None:
    step, excluded = LIMITS[name]
    contract = LaneContract((Packed(), Packed(role="cu_seqlens")), Packed())
    args = NUMBERS, np.array([0, len(NUMBERS)], np.int32)
    claims: list[Value] = []
    prover = Prover(contract.bind(lambda x, cu: step(x), args), observe=lambda _, __, results: claims.extend(results))
    walk(prover, ir.trace(lambda x, cu: step(x), *args))
    fact = claims[-1].fact
    assert (fact.excluded if isinstance(fact, Finite) else None) == excluded
    if isinstance(fact, Finite):
        result = np.asarray(jax.jit(step)(NUMBERS))
        tests = {"nan": np.isnan, "inf": np.isposinf, "-inf": np.isneginf}
        assert not any(tests[number](result).any() for number in fact.excluded)


ENDS = {
    "its start": (lambda end, start, _: jnp.minimum(end, start + 2) - start, 2),
    "another start": (lambda end, start, other: jnp.minimum(end, start + 2) - other, 6),
    "a start before": (lambda end, start, _: jnp.minimum(end, start + 2) - lax.max(start - 1, 0), 6),
    "a maximum": (lambda end, start, _: jnp.maximum(end, start + 2) - start, 8),
    "a start that wraps": (lambda end, start, _: jnp.minimum(end, start * (1 << 30) + 2) - start * (1 << 30), None),
}


@pytest.mark.parametrize("name", ENDS)
def test_the_length_of_a_part_is_bounded_by_its_start(name: str) -> None:
    step, greatest = ENDS[name]

    def part(end: jax.Array, start: jax.Array, other: jax.Array) -> jax.Array:
        return step(jnp.clip(end, 0, 8), jnp.clip(start, 0, 4), jnp.clip(other, 0, 4))

    lanes, contract = (np.int32([7]),) * 3, LaneContract((Lane(),) * 3, Lane())
    claims: list[Value] = []
    prover = Prover(contract.bind(part, lanes), observe=lambda _, __, results: claims.extend(results))
    walk(prover, ir.trace(part, *lanes))
    assert (claims[-1].range or (0, None))[1] == greatest
