"""Index expressions of a kernel as terms: equality, difference and bounds.

A term is a constant, an unknown number, or an elementwise operation on terms. Operations are pure, so equal terms are
equal numbers. Terms are evaluated for all cases if each unknown number has few values (`domains`), or is used by its
remainders alone, as in `number % 2` and `number & 1`.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ir_passes.jaxpr import ir
from ir_passes.jaxpr.primitives import ELEMENTWISE

MAX_CASES = 1024
"""Limit on evaluated cases of the unknown numbers."""
Domains = Mapping["Term", Sequence[int]]
"""Unknown number -> all of its values, as a range if they are many."""


@dataclass(frozen=True)
class Term:
    """An index expression: a scalar, int or bool.

    Attributes:
        name: of the operation, or "".
        key: the constant, the key of the unknown number, or the parameters of the operation.
    """

    name: str
    key: Hashable
    operands: "tuple[Term, ...]" = ()
    eqn: Any = field(default=None, compare=False, repr=False)

    @property
    def constant(self) -> int | None:
        return self.key if isinstance(self.key, int) else None

    def substituted(self, terms: "Mapping[Term, Term]") -> "Term":
        if self in terms:
            return terms[self]
        operands = [operand.substituted(terms) for operand in self.operands]
        if self.eqn is not None:
            return operation(self.eqn, operands)
        return Term(self.name, self.key, tuple(operands))


def constant(number: Any) -> Term:
    return Term("", int(number))


def unknown(key: Hashable, operands: Sequence[Term] = ()) -> Term:
    return Term("", ("unknown", key), tuple(operands))


def operation(eqn: Any, operands: Sequence[Term]) -> Term:
    name = eqn.primitive.name
    if name == "convert_element_type" and ir.dtype_of(eqn.invars[0]) in (np.bool_, ir.dtype_of(eqn.outvars[0])):
        return operands[0]
    # equal terms of two dtypes, as of a bool and an int, may give different results
    key = str((sorted(eqn.params.items()), list(map(ir.dtype_of, eqn.invars))))
    term = Term(name, key, tuple(operands), eqn)
    return constant(_numbers(term, {})) if all(value.constant is not None for value in operands) else term


def is_operation(eqn: Any) -> bool:
    variables = (*eqn.invars, *eqn.outvars)
    return eqn.primitive.name in ELEMENTWISE and all(
        ir.shape_of(atom) == () and np.dtype(ir.dtype_of(atom)).kind in "iub" for atom in variables
    )


def _numbers(term: Term, cases: Mapping[Term, np.ndarray]) -> Any:
    """Return the numbers of a term in all cases, int64 [cases]."""
    if term in cases:
        return cases[term]
    shape = next(iter(cases.values())).shape if cases else ()
    if term.constant is not None:
        return np.full(shape, term.constant)
    operands = [
        np.asarray(_numbers(operand, cases)).astype(ir.dtype_of(atom))
        for operand, atom in zip(term.operands, term.eqn.invars, strict=True)
    ]
    return ir.evaluated(term.eqn, operands)[0]


def numbers_of(terms: Sequence[Term], domains: Domains) -> list[np.ndarray] | None:
    """Return the values of terms for every input, or None if these cannot be listed.

    Let terms depend on a number n by remainders of n + c by k alone, and let K be the least common multiple of all k.
    Then n and n + K give the same numbers if no n + c changes its sign or wraps in between. So every number gives the
    result of some number within K + max |c| of 0 or of an end of its domain.
    """
    remainders: dict[Term, list[tuple[int, int, Any]]] = {}
    listed: dict[Term, Sequence[int]] = {}
    if not all(_can_be_listed(term, domains, listed, remainders) for term in terms):
        return None
    for number, uses in remainders.items():
        if number in listed or len({dtype for _, _, dtype in uses}) != 1:
            return None
        limits = np.iinfo(uses[0][2])
        interval = domains.get(number, range(limits.min, int(limits.max) + 1))
        reach = math.lcm(*(k for _, k, _ in uses)) + max(abs(by) for by, _, _ in uses)
        if reach > MAX_CASES:
            return None
        near = (range(end - reach, end + reach + 1) for end in (interval[0], 0, interval[-1]))
        listed[number] = sorted({n for part in near for n in part if n in interval})
    if math.prod(map(len, listed.values())) > MAX_CASES:
        return None
    grids = np.meshgrid(*(np.asarray(numbers, np.int64) for numbers in listed.values()), indexing="ij")
    cases = {number: grid.reshape(-1) for number, grid in zip(listed, grids, strict=True)}
    return [np.asarray(_numbers(term, cases)) for term in terms]


def _can_be_listed(
    term: Term, domains: Domains, listed: dict[Term, Sequence[int]], remainders: dict[Term, list[tuple[int, int, Any]]]
) -> bool:
    """Collect domains or remainders of unknown numbers; False if some have neither."""
    if term.constant is not None:
        return True
    if term in domains and len(domains[term]) <= MAX_CASES:
        listed[term] = domains[term]
        return True
    modulus = (term.operands[1].constant or 0) + (term.name == "and") if term.name in ("rem", "and") else 0
    if modulus > 0 and (term.name == "rem" or modulus & (modulus - 1) == 0):
        number, by = without_constant(term.operands[0])
        if not number.name and number.constant is None and isinstance(domains.get(number, range(0)), range):
            dtype = np.dtype(ir.dtype_of(term.eqn.invars[0]))
            remainders.setdefault(number, []).append((by, modulus, dtype))
            return dtype.kind == "i"
    return bool(term.name) and all(_can_be_listed(operand, domains, listed, remainders) for operand in term.operands)


def without_constant(term: Term) -> tuple[Term, int]:
    if term.name in ("add", "sub"):
        sign = 1 if term.name == "add" else -1
        for k, other in ((1, 0), (0, 1))[: 2 if sign == 1 else 1]:
            by = term.operands[k].constant
            if by is not None:
                number, offset = without_constant(term.operands[other])
                return number, offset + sign * by
    return term, 0


def equal(first: Term, second: Term, domains: Domains) -> bool:
    if first == second:
        return True
    if first.operands and (first.name, first.key, len(first.operands)) == (
        second.name, second.key, len(second.operands),
    ) and all(equal(*pair, domains) for pair in zip(first.operands, second.operands, strict=True)):  # fmt: skip
        return True
    cases = numbers_of((first, second), domains)
    return cases is not None and bool(np.all(cases[0] == cases[1]))


def with_compared(term: Term, compared: Mapping[tuple[Term, Term], bool], domains: Domains) -> Term:
    """Return a term with known comparisons as constants."""
    if term.name in ("eq", "ne"):
        first, second = term.operands
        pairs = {(first, second): True} if equal(first, second, domains) else compared
        for pair, is_equal in pairs.items():
            for sides in (zip(term.operands, pair, strict=True), zip(term.operands, pair[::-1], strict=True)):
                if all(equal(side, operand, domains) for side, operand in sides):
                    return constant(is_equal == (term.name == "eq"))
    operands = [with_compared(operand, compared, domains) for operand in term.operands]
    return term if term.eqn is None else operation(term.eqn, operands)


def in_bounds(term: Term, size: int, domains: Domains) -> bool:
    cases = numbers_of((term,), domains)
    return cases is not None and bool(np.all((cases[0] >= 0) & (cases[0] < size)))


def domain(number: Term, first: Term, following: Term) -> Sequence[int] | None:
    """Return all values of a carried number, if few: `first`, then `following` each iteration."""
    reached: list[int] = []
    value = first
    while value.constant is not None and value.constant not in reached:
        reached.append(value.constant)
        if len(reached) > MAX_CASES:
            return None
        value = following.substituted({number: value})
    return None if value.constant is None else reached


def comparison(term: Term) -> tuple[Term, Term] | None:
    """Return x and y of a condition x < y."""
    if term.name not in ("lt", "gt"):
        return None
    x, y = term.operands if term.name == "lt" else term.operands[::-1]
    return x, y
