"""Copies between memories of one TPU core that run beside its program (DMA): under way from their start to a wait.

They are read as what they are if each is waited for in the stretch of the program that starts it, and nobody touches
what is written, or writes to what is read, meanwhile. Copies to other devices are not read.
"""

from dataclasses import dataclass
from typing import Any

from ir_passes.kernels.memory import UnreadableKernel


@dataclass(frozen=True, eq=False)
class Semaphores:
    """Semaphores that copies are waited for at."""

    shape: tuple[int, ...]


@dataclass(frozen=True)
class Semaphore:
    """One of some semaphores."""

    holder: Semaphores
    index: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Copy:
    """A copy under way.

    Attributes:
        source, target: references.
        indexers: of the place in the target.
        semaphore: the one that tells its end.
        value: what is copied.
    """

    source: Any
    target: Any
    indexers: Any
    semaphore: Semaphore
    value: Any


class Copies:
    """The copies that a program has started."""

    def __init__(self) -> None:
        self.under_way: list[Copy] = []

    def start(self, one: Copy) -> None:
        """Start a copy.

        Raises:
            UnreadableKernel: another one tells its end at the same semaphore, or touches what this one does.
        """
        if any(other.semaphore == one.semaphore for other in self.under_way):
            raise UnreadableKernel("two copies under way tell their end at one semaphore")
        self.check(one.source, writes=False)
        self.check(one.target, writes=True)
        self.under_way.append(one)

    def wait(self, semaphore: Semaphore, target: Any) -> Copy:
        """Return the copy that ends.

        Raises:
            UnreadableKernel: no such copy is under way in this stretch of the program.
        """
        found = [one for one in self.under_way if one.semaphore == semaphore]
        if len(found) != 1 or found[0].target is not target:
            raise UnreadableKernel("a wait for a copy that is not started in the same stretch of the program")
        self.under_way.remove(found[0])
        return found[0]

    def check(self, ref: Any, writes: bool) -> None:
        """Raise UnreadableKernel if a reference is touched that a copy under way writes to, or written one it reads."""
        if any(one.target is ref or (writes and one.source is ref) for one in self.under_way):
            raise UnreadableKernel("memory is touched while a copy to or from it is under way")

    def check_none(self, where: str) -> None:
        """Raise UnreadableKernel if a copy is under way."""
        if self.under_way:
            raise UnreadableKernel(f"a copy is under way {where}")
