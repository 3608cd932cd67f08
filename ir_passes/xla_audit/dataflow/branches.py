"""The branches of conditionals on a program's clock: only one branch runs.

In one branch, XLA:TPU overwrites a value that only another branch reads.
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
    """The branches of one conditional; exactly one of them runs.

    Attributes:
        enter: the tick before the first branch.
        ran: the branches, one after the other on the clock.
    """

    enter: int
    ran: list[ConditionalBranch] = field(default_factory=list[ConditionalBranch])


def gaps_of(
    conditionals: Sequence[Branches], find: Callable[[int], int], start: Sequence[int], stop: Sequence[int]
) -> dict[int, list[tuple[int, int]]]:
    """Return the ticks in branches after the last reader of a value in the branch.

    Args:
        conditionals: conditionals of the program.
        find: a function from a value to its representative.
        start, stop: ticks of each value's definition and last reader.
    """
    gaps: dict[int, list[tuple[int, int]]] = {}
    for branches in conditionals:
        end = branches.ran[-1].stop
        last: list[dict[int, int]] = []
        for branch in branches.ran:
            last.append({})
            for value, tick in branch.read.items():
                last[-1][find(value)] = max(last[-1].get(find(value), 0), tick)
        for value in {value for read in last for value in read}:
            if start[value] > branches.enter or stop[value] > end:
                continue
            for branch, read in zip(branches.ran, last, strict=True):
                dead = read.get(value, branch.start - 1) + 1
                if dead <= branch.stop < stop[value]:
                    gaps.setdefault(value, []).append((dead, branch.stop))
    return gaps
