"""Uses of `searchsorted` and `repeat` on `cu_seqlens`, recognised as a whole.

Other computations of the lane of each token follow from rules (`rules.addressing.token_layout`). These two are loops or
sums of parts without a fact, so they are interpreted before the program: a value with the number of a result here is
the same array. Tests compare each with its definition, for all layouts of a few tokens.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache

import jax
import jax.numpy as jnp
from jax import Array

from ir_passes.contract.normal_form import flatten
from ir_passes.jaxpr import ir
from ir_passes.proof.prover import Prover
from ir_passes.proof.rules.addressing.index_sums import single
from ir_passes.proof.rules.addressing.token_layout import lane_of_token
from ir_passes.proof.site import interpret
from ir_passes.proof.values import Fact, OffsetEntry, Range, Value

Ways = Callable[[Array, int], Iterator[Array]]
"""(cu_seqlens, number of tokens) -> the array, once for each program."""


def searched(entries: Callable[[Array], Array]) -> Ways:
    """Return programs that count the entries <= t of a part of cu_seqlens."""

    def ways(cu: Array, tokens: int) -> Iterator[Array]:
        for index in (jnp.arange(tokens), jnp.arange(tokens, dtype=jnp.int32)):
            for method in ("scan", "compare_all", "sort"):
                yield jnp.searchsorted(entries(cu), index, side="right", method=method)
                yield jnp.searchsorted(entries(cu), index + 1, side="left", method=method)
        yield jnp.searchsorted(entries(cu), jnp.arange(1, tokens + 1), side="left")
        yield jnp.digitize(jnp.arange(tokens), entries(cu))

    return ways


def starts(cu: Array, tokens: int) -> Iterator[Array]:
    """Yield the first token of each lane, and of padding, as `jnp.repeat` computes it."""
    for lengths in (jnp.diff(cu), cu[1:] - cu[:-1]):
        padded = (jnp.append(lengths, tokens - end) for end in (cu[-1], cu[len(cu) - 1]))
        for parts in (lengths, *padded):
            yield jnp.cumsum(jnp.roll(parts, shift=1).at[0].set(0))


PARTS: dict[tuple[int, int], Callable[[Array], Array]] = {
    (0, 0): lambda cu: cu,
    (1, 0): lambda cu: cu[1:],
    (0, 1): lambda cu: cu[:-1],
    (1, 1): lambda cu: cu[1:-1],
}
"""(entries omitted at the start, at the end) -> the other entries of cu_seqlens."""
SEARCHED = {left_out: searched(entries) for left_out, entries in PARTS.items()}


@lru_cache(maxsize=64)
def _traced(ways: Ways, lanes: int, tokens: int) -> tuple[tuple[ir.ClosedJaxpr, frozenset[str]], ...]:

    def results(cu: Array) -> tuple[Array, ...]:
        return tuple(ways(cu, tokens))

    union = flatten(ir.trace(results, jax.ShapeDtypeStruct((lanes + 1,), jnp.int32)))
    outputs = union.jaxpr.outvars
    programs = [ir.without_dead(ir.ClosedJaxpr(union.jaxpr.replace(outvars=[var]), union.consts)) for var in outputs]
    return tuple((program, operations(program)) for program in programs)


def operations(program: ir.ClosedJaxpr) -> frozenset[str]:
    return frozenset(eqn.primitive.name for eqn in ir.all_eqns(program.jaxpr))


def register(prover: Prover, cu: Value, layout: str, present: frozenset[str]) -> None:
    """Record in `prover.layout` the value numbers of the arrays above.

    Programs above with other operations than those `present` in the step are skipped.
    """
    lanes, tokens = prover.bound.lanes, prover.bound.layouts[layout]
    if tokens is None:
        return
    kinds: list[tuple[Ways, Fact, Range | None]] = [(starts, single(OffsetEntry(layout, 0, 0)), (0, tokens))]
    for (first, missing), ways in SEARCHED.items():
        counted = lane_of_token(layout, first, lanes + 1 - first - missing, 0, lanes)
        if counted is not None and lanes + 1 > first + missing:
            kinds.append((ways, *counted))
    for ways, fact, bounds in kinds:
        for program, needed in _traced(ways, lanes, tokens):
            if needed - {"iota"} <= present:
                with prover.trial():
                    (value,) = interpret(prover, program, [cu])
                if value.number not in prover.layout and not isinstance(value.fact, type(fact)):
                    prover.layout[value.number] = fact, bounds
