"""The neighbours in memory of custom calls' results: the bytes that a call which writes too far reaches first.

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
        before, behind: the nearest value on either side in its allocation that is live during the call, with the bytes
            that lie between; None where there is nothing.
    """

    target: str
    result: str
    before: tuple[str, int] | None
    behind: tuple[str, int] | None

    def __str__(self) -> str:
        sides = (("before", self.before), ("behind", self.behind))
        said = (f"{side} it {_apart(*found)}" if found else f"nothing {side} it" for side, found in sides)
        return f"{self.target} writes {self.result}: {', '.join(said)}"


def neighbours(executable: Executable, live: LiveValues) -> tuple[Neighbours, ...]:
    """Return the neighbours of every array that a custom call of the program gives, in the order in which they run."""
    found = []
    for one in live.executed:
        if one.opcode != "custom-call":
            continue
        for _, position in live.made_by(one):
            value = live.values[position]
            if value.slice is not None and value.array.dtype != "tuple":
                beside = [other for other in live.values if other.start <= value.start <= other.stop]
                found.append(_of(value, value.slice, beside, one.target))
    return tuple(found)


def _of(value: LiveValue, mine: Slice, live: Iterable[LiveValue], target: str) -> Neighbours:
    before: list[tuple[int, str]] = []
    behind: list[tuple[int, str]] = []
    for other in live:
        theirs = other.slice
        if theirs is None or theirs.allocation != mine.allocation or not theirs.size or theirs.overlaps(mine):
            continue
        if theirs.offset < mine.offset:
            before.append((mine.offset - theirs.offset - theirs.size, str(other)))
        else:
            behind.append((theirs.offset - mine.offset - mine.size, str(other)))
    return Neighbours(target, f"{value} in {mine}", _nearest(before), _nearest(behind))


def _nearest(side: list[tuple[int, str]]) -> tuple[str, int] | None:
    if not side:
        return None
    gap, name = min(side)
    return name, gap


def _apart(name: str, gap: int) -> str:
    return f"{name}, {gap} bytes away" if gap else name
