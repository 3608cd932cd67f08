"""The branches of conditionals on the one clock of a program: what one of them still needs, another does not.

XLA:TPU writes over a value in one branch that only another branch reads.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class ConditionalBranch:
    """One branch.

    Attributes:
        start, stop: its first and its last tick.
        read: the values that it reads, its own too -> tick of the last reader in it.
    """

    start: int
    stop: int
    read: Mapping[int, int]


@dataclass
class Branches:
    """The branches of one conditional, of which one runs.

    Attributes:
        enter: the tick before the first.
        ran: each, one after the other on the clock.
    """

    enter: int
    ran: list[ConditionalBranch] = field(default_factory=list[ConditionalBranch])


def gaps_of(
    conditionals: Sequence[Branches], find: Callable[[int], int], start: Sequence[int], stop: Sequence[int]
) -> dict[int, list[tuple[int, int]]]:
    """Return the ticks at which a value is dead though it is read later: in a branch in whose place its reader runs.

    Args:
        conditionals: of the program.
        find: a function from a value to the one that stands for it.
        start, stop: ticks of each value's definition and last reader.
    """
    gaps: dict[int, list[tuple[int, int]]] = {}
    for one in conditionals:
        end = one.ran[-1].stop
        last: list[dict[int, int]] = []
        for branch in one.ran:
            last.append({})
            for value, tick in branch.read.items():
                last[-1][find(value)] = max(last[-1].get(find(value), 0), tick)
        for value in {value for read in last for value in read}:
            if start[value] > one.enter or stop[value] > end:
                continue
            for branch, read in zip(one.ran, last, strict=True):
                dead = read.get(value, branch.start - 1) + 1
                if dead <= branch.stop < stop[value]:
                    gaps.setdefault(value, []).append((dead, branch.stop))
    return gaps
