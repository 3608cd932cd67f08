"""Lanes in the conditions of a mask; `in_lane` confirms or refutes each guess."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from ir_passes.proof.values import Condition, OffsetEntry


def starts_of_lanes(conditions: Iterable[Condition]) -> Iterator[OffsetEntry]:
    """Yield entries with the first token of a lane."""
    entries = {term for condition in conditions for term, _ in condition.sum.terms if isinstance(term, OffsetEntry)}
    firsts = {
        replace(entry, first=entry.first - distance if entry.axis is None and entry.symbol is None else 0)
        for entry in entries
        for distance in (0, 1)
    }
    yield from sorted(firsts, key=str)
