"""The memory neighbours of custom calls' results: an out-of-bounds write hits them first.

The writes of a custom call, kernel or callback are unknown; the buffer assignment shows where they would do harm.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from ir_passes.xla_audit.dataflow import LiveValue, LiveValues
from ir_passes.xla_audit.program import Executable, Slice


@dataclass(frozen=True)
class Neighbours:
    """One result of a custom call.

    Attributes:
        target: the called function.
        result: the array that it writes, and its bytes.
        before, behind: the nearest value on either side in its allocation that is live during the call, with the number
            of bytes between them; None if there is no such value.
    """

    target: str
    result: str
    before: tuple[str, int] | None
    behind: tuple[str, int] | None

    def __str__(self) -> str:
        sides = (("before", self.before), ("behind", self.behind))
        descriptions = (
            f"{side} it {_apart(*neighbour)}" if neighbour else f"nothing {side} it" for side, neighbour in sides
        )
        return f"{self.target} writes {self.result}: {', '.join(descriptions)}"


def neighbours(executable: Executable, live: LiveValues) -> tuple[Neighbours, ...]:
    """Return the neighbours of every array that a custom call returns, in schedule order."""
    results = []
    for instruction in live.executed:
        if instruction.opcode != "custom-call":
            continue
        for _, position in live.made_by(instruction):
            value = live.values[position]
            if value.slice is not None and value.array.dtype != "tuple":
                concurrent = [other for other in live.values if other.start <= value.start <= other.stop]
                results.append(_of(value, value.slice, concurrent, instruction.target))
    return tuple(results)


def _of(value: LiveValue, place: Slice, live: Iterable[LiveValue], target: str) -> Neighbours:
    lower: list[tuple[int, str]] = []
    higher: list[tuple[int, str]] = []
    for other in live:
        other_place = other.slice
        if (
            other_place is None
            or other_place.allocation != place.allocation
            or not other_place.size
            or other_place.overlaps(place)
        ):
            continue
        if other_place.offset < place.offset:
            lower.append((place.offset - other_place.offset - other_place.size, str(other)))
        else:
            higher.append((other_place.offset - place.offset - place.size, str(other)))
    return Neighbours(target, f"{value} in {place}", _nearest(lower), _nearest(higher))


def _nearest(side: list[tuple[int, str]]) -> tuple[str, int] | None:
    if not side:
        return None
    gap, name = min(side)
    return name, gap


def _apart(name: str, gap: int) -> str:
    return f"{name}, {gap} bytes away" if gap else name
