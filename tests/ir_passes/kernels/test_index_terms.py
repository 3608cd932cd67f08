"""Claims about index terms hold for every number; int8 is tried exhaustively."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from traced_programs import normal_program

from ir_passes.jaxpr import ir
from ir_passes.kernels import index_terms
from ir_passes.kernels.index_terms import Term, domain, equal, in_bounds, numbers_of, unknown

NUMBER = unknown("n")
ALL = np.arange(-128, 128, dtype=np.int8)
NATURAL = range(127)


def term_of(function: Callable[[Any], Any]) -> Term:
    """The result of a function of one int8 number as a term."""
    program = normal_program(function, jnp.int8(0))
    terms: dict[Any, Term] = {program.jaxpr.invars[0]: NUMBER}
    read = lambda atom: index_terms.constant(atom.val) if isinstance(atom, ir.Literal) else terms[atom]
    for eqn in program.jaxpr.eqns:
        assert index_terms.is_operation(eqn)
        terms[eqn.outvars[0]] = index_terms.operation(eqn, [read(atom) for atom in eqn.invars])
    return read(program.jaxpr.outvars[0])


def differ(first: Term, second: Term, domains: Any) -> bool:
    cases = numbers_of((first, second), domains)
    return cases is not None and bool(np.all(cases[0] != cases[1]))


def random_function(rng: np.random.Generator) -> Callable[[Any], Any]:
    """A random function of the remainders of a number."""
    c, d = (np.int8(number) for number in rng.integers(-5, 6, 2))
    k, mask = np.int8(rng.integers(1, 5)), np.int8(2 ** rng.integers(1, 3) - 1)
    parts = [
        lambda n: lax.rem(n + c, k),
        lambda n: (n - c) & mask,
        lambda n: (n + d) % k,
        lambda n: lax.rem(n, k),
    ]
    first, second = (parts[number] for number in rng.integers(0, len(parts), 2))
    ways = [
        lambda n: first(n),
        lambda n: np.int8(1) - first(n),
        lambda n: jnp.where(first(n) == 0, second(n), first(n) + np.int8(1)),
        lambda n: first(n) * second(n) ^ np.int8(1),
        lambda n: jnp.maximum(first(n), second(n)),
    ]
    return ways[rng.integers(len(ways))]


@pytest.mark.slow
@pytest.mark.parametrize("natural", [True, False])
def test_claims_hold_for_every_number(natural: bool) -> None:
    rng, claims = np.random.default_rng(0), set()
    numbers, domains = (np.asarray(NATURAL, np.int8), {NUMBER: NATURAL}) if natural else (ALL, dict[Term, range]())
    for _ in range(40):
        functions = [random_function(rng), random_function(rng)]
        item, other = map(term_of, functions)
        with jax.numpy_dtype_promotion("standard"):
            first, second = (np.asarray(jax.vmap(function)(numbers)) for function in functions)
        assert equal(item, other, domains) == bool(np.all(first == second))
        assert differ(item, other, domains) == bool(np.all(first != second))
        assert in_bounds(item, 2, domains) == bool(np.all((first >= 0) & (first < 2)))
        claims |= {("equal", equal(item, other, domains)), ("differ", differ(item, other, domains))}
    assert len(claims) == 4


@pytest.mark.parametrize(
    "function",
    [lambda n: n, lambda n: n + np.int8(1), lambda n: lax.rem(n * n, np.int8(2)), lambda n: lax.rem(np.int8(5), n)],
)
def test_nothing_is_claimed_of_other_functions(function: Callable[[Any], Any]) -> None:
    term = term_of(function)
    assert not in_bounds(term, 128, {}) and not differ(term, term_of(lambda n: n + np.int8(2)), {})


def test_the_domain_of_a_carried_number() -> None:
    other = term_of(lambda n: np.int8(1) - n)
    assert domain(NUMBER, index_terms.constant(0), other) == [0, 1]
    assert domain(NUMBER, index_terms.constant(3), other) == [3, -2]
    assert domain(NUMBER, unknown("m"), other) is None
    assert domain(NUMBER, index_terms.constant(0), unknown("m")) is None
    assert len(domain(NUMBER, index_terms.constant(0), term_of(lambda n: n + np.int8(1))) or ()) == 256


def test_an_operation_on_a_bool_and_on_its_number_are_different_terms() -> None:
    inverted = lambda dtype: lambda n: ~(n > 0).astype(dtype)
    first, second = (term_of(inverted(dtype)) for dtype in (jnp.bool_, jnp.int8))
    assert not equal(first, second, {NUMBER: range(2)})
