"""Limits by literals exclude infinities; bounds of pairs of numbers."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array, lax

from ir_passes import Lane, LaneContract, Packed, Shared
from ir_passes.jaxpr import ir
from ir_passes.proof.lane_proof import walk
from ir_passes.proof.prover import Prover
from ir_passes.proof.values import Counts, Finite, OneHot, Value

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

    def part(end: Array, start: Array, other: Array) -> Array:
        return step(jnp.clip(end, 0, 8), jnp.clip(start, 0, 4), jnp.clip(other, 0, 4))

    lanes, contract = (np.array([7], np.int32),) * 3, LaneContract((Lane(),) * 3, Lane())
    claims: list[Value] = []
    prover = Prover(contract.bind(part, lanes), observe=lambda _, __, results: claims.extend(results))
    walk(prover, ir.trace(part, *lanes))
    assert (claims[-1].range or (0, None))[1] == greatest


def row_and_column(numbers: Array) -> tuple[Array, Array]:
    return numbers[None], numbers[:, None]


def less_in_a_column(numbers: Array) -> Array:
    row, column = row_and_column(jnp.clip(numbers, 0, 8))
    return lax.sub(lax.min(jnp.int32([[5], [7], [2]]), lax.add(column, np.int32(2))), row)


def zero_and_not_zero(numbers: Array) -> Array:
    row, column = row_and_column(jnp.clip(numbers, 0, 8))
    return (lax.sign(column) != 1) & (lax.rem(row, np.int32(4)) != 0)


def zero_and_not_zero_for_each_pair(numbers: Array) -> Array:
    row, column = row_and_column(jnp.clip(numbers, 0, 8))
    is_zero = lax.ne(lax.sign(column), jnp.ones((1, 3), jnp.int32))
    return is_zero & lax.ne(lax.rem(row, np.int32(4)), jnp.zeros((3, 1), jnp.int32))


@pytest.mark.parametrize("step", [less_in_a_column, zero_and_not_zero, zero_and_not_zero_for_each_pair])
def test_pairs_of_different_numbers_are_not_one_number(step: Callable[[Array], Array]) -> None:
    """A row and a column of equal numbers meet at the diagonal alone."""
    numbers = np.array([7, 0, 3], np.int32)
    least, greatest = claims_of(step, numbers)[-1].range or (-100, 100)
    result = np.asarray(step(jnp.asarray(numbers))).astype(int)
    assert least <= result.min()
    assert result.max() <= greatest


def test_one_class_for_all_numbers_counts_none() -> None:
    """Three zeros compared with one class, 0, give three ones in each column."""

    def step(numbers: Array) -> Array:
        keys = jnp.broadcast_to(jnp.clip(numbers, 0, 0)[:, None], (3, 3))
        return jnp.sum(lax.eq(keys, lax.broadcasted_iota(jnp.int32, (1, 1), 1)).astype(jnp.int32), 0)

    assert not any(isinstance(claim.fact, OneHot | Counts) for claim in claims_of(step, np.array([7, 0, 3], np.int32)))


def claims_of(step: Callable[[Array], Array], numbers: np.ndarray) -> list[Value]:
    """Return the values of a step of shared numbers."""
    fn, args = lambda numbers, x: (step(numbers), x), (numbers, np.zeros(2, np.float32))
    claims: list[Value] = []
    contract = LaneContract((Shared(), Lane()), (Shared(), Lane()))
    prover = Prover(contract.bind(fn, args), observe=lambda _, __, results: claims.extend(results))
    walk(prover, ir.trace(fn, *args))
    return claims
