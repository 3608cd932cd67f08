"""The arrays that are computed of `cu_seqlens`: which of them say the lane of each token, or a token of each lane.

The ways to compute them that are listed here are interpreted like the program, before it. Equal value numbers mean
equal elements, so that a value of the program with the number of one of these results is that array. Tests compare
each way with its definition, for all layouts of a few tokens.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache

import jax
import jax.numpy as jnp
from jax import Array

from ir_passes.contract.normal_form import flatten
from ir_passes.jaxpr import ir
from ir_passes.proof.prover import Prover
from ir_passes.proof.site import interpret
from ir_passes.proof.values import Fact, Range, Real, SegmentIds, TokenOf, Value

Ways = Callable[[Array, int], Iterator[Array]]
"""(cu_seqlens, tokens of the packed axis) -> the array, once for each way to compute it."""


def _lengths(cu: Array) -> tuple[Array, Array]:
    return jnp.diff(cu), cu[1:] - cu[:-1]


def _counted(cu: Array, tokens: int) -> Iterator[Array]:
    for index in (jnp.arange(tokens), jnp.arange(tokens, dtype=jnp.int32)):
        for method in ("scan", "compare_all", "sort"):
            yield jnp.searchsorted(cu[1:], index, side="right", method=method)
            yield jnp.searchsorted(cu, index, side="right", method=method) - 1
        yield jnp.sum(index[:, None] >= cu[None, 1:], axis=1)
        yield jnp.sum(index[:, None] >= cu[1:][None, :], axis=1)
        yield jnp.sum(index[:, None] >= cu[None, 1:], axis=1, dtype=jnp.int32)
        yield jnp.sum(cu[1:, None] <= index[None, :], axis=0)
        yield jnp.sum(cu[1:][:, None] <= index[None, :], axis=0)


def past(cu: Array, tokens: int) -> Iterator[Array]:
    """Yield the lane of each token, the number of lanes for padding."""
    yield from _counted(cu, tokens)
    for zeros in (jnp.zeros(tokens, jnp.int32), jnp.zeros(tokens, cu.dtype)):
        yield jnp.cumsum(zeros.at[cu[1:]].add(1))
        yield jnp.cumsum(zeros.at[cu[1:]].add(1, mode="drop"))
    lanes = len(cu) - 1
    for lengths in _lengths(cu):
        for behind in (tokens - cu[-1], tokens - cu[lanes]):
            counts = jnp.append(lengths, behind)
            yield jnp.repeat(jnp.arange(lanes + 1), counts, total_repeat_length=tokens)
            yield jnp.repeat(jnp.arange(lanes + 1, dtype=jnp.int32), counts, total_repeat_length=tokens)


def last(cu: Array, tokens: int) -> Iterator[Array]:
    """Yield the lane of each token, the last one for padding."""
    lanes = len(cu) - 1
    for lengths in _lengths(cu):
        yield jnp.repeat(jnp.arange(lanes), lengths, total_repeat_length=tokens)
        yield jnp.repeat(jnp.arange(lanes, dtype=jnp.int32), lengths, total_repeat_length=tokens)


def real(cu: Array, tokens: int) -> Iterator[Array]:
    """Yield whether each token is no padding."""
    for index in (jnp.arange(tokens), jnp.arange(tokens, dtype=jnp.int32)):
        yield index < cu[-1]
        yield index < cu[len(cu) - 1]


def token_of(cu: Array, tokens: int) -> Iterator[Array]:
    """Yield a token of each lane that has any; as they are, and as JAX counts negative indices from the end."""
    for index in (cu[1:] - 1, cu[:-1]):
        yield index
        yield jnp.where(index < 0, index + tokens, index)
        yield jnp.maximum(index, 0)


@lru_cache(maxsize=64)
def _traced(ways: Ways, lanes: int, tokens: int) -> tuple[tuple[ir.ClosedJaxpr, frozenset[str]], ...]:
    """Every way as a program of its own, with the names of its operations."""

    def results(cu: Array) -> tuple[Array, ...]:
        return tuple(ways(cu, tokens))

    every = flatten(ir.trace(results, jax.ShapeDtypeStruct((lanes + 1,), jnp.int32)))
    found = []
    for var in every.jaxpr.outvars:
        one = ir.without_dead(ir.ClosedJaxpr(every.jaxpr.replace(outvars=[var]), every.consts))
        found.append((one, operations(one)))
    return tuple(found)


def operations(program: ir.ClosedJaxpr) -> frozenset[str]:
    """Return the names of all operations of a program."""
    return frozenset(eqn.primitive.name for eqn in ir.all_eqns(program.jaxpr))


def register(prover: Prover, cu: Value, layout: str, present: frozenset[str]) -> None:
    """Note the value numbers of all arrays that are computed of `cu_seqlens` in one of the ways above.

    Args:
        prover: before its walk.
        cu: the abstract value of `cu_seqlens`, int32 [lanes + 1].
        layout: name of its layout.
        present: names of the program's operations; it computes nothing in a way that has another one.
    """
    lanes, tokens = prover.bound.lanes, prover.bound.layouts[layout]
    if tokens is None:
        return
    kinds: list[tuple[Ways, Fact, Range | None]] = [
        (past, SegmentIds(0, layout), (0, lanes)),
        (last, SegmentIds(0, layout, "last"), (0, lanes - 1)),
        (real, Real(layout, 0), None),
        (token_of, TokenOf(layout), None),
    ]
    observe, prover.observe = prover.observe, None
    for ways, fact, bounds in kinds:
        for program, needed in _traced(ways, lanes, tokens):
            if needed <= present:
                with prover.trial():
                    consts = [prover.constant(const) for const in program.consts]
                    (value,) = interpret(prover, program.jaxpr, consts, [cu])
                prover.layout.setdefault(value.number, (fact, bounds))
    prover.observe = observe
