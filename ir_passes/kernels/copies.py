"""Asynchronous copies (DMA) between memories of one TPU core, from their start to a wait.

A copy can be read if the stretch of the program that starts it also waits for it, and in between no operation touches
its target or writes to its source. Copies to other devices are not read.
"""

from dataclasses import dataclass
from typing import Any

from ir_passes.kernels.memory import UnreadableKernel


@dataclass(frozen=True, eq=False)
class Semaphores:
    """An array of semaphores of copies."""

    shape: tuple[int, ...]


Semaphore = tuple[Semaphores, tuple[int, ...]]
"""One semaphore of an array: the array and the index."""


@dataclass(frozen=True, eq=False)
class Copy:
    """A running copy.

    Attributes:
        source, target: references.
        indexers: of the place in the target.
        semaphore: signals the end.
        value: the copied array.
    """

    source: Any
    target: Any
    indexers: Any
    semaphore: Semaphore
    value: Any


class Copies:
    """The running copies of a program."""

    def __init__(self) -> None:
        self.running: list[Copy] = []

    def start(self, copy: Copy) -> None:
        """Start a copy.

        Raises:
            UnreadableKernel: another running copy has its semaphore, or touches its memory.
        """
        if any(other.semaphore == copy.semaphore for other in self.running):
            raise UnreadableKernel("two copies under way tell their end at one semaphore")
        self.check(copy.source, writes=False)
        self.check(copy.target, writes=True)
        self.running.append(copy)

    def wait(self, semaphore: Semaphore, target: Any) -> Copy:
        """End a copy, and return it.

        Raises:
            UnreadableKernel: no such copy was started in this stretch of the program.
        """
        copies = [copy for copy in self.running if copy.semaphore == semaphore]
        if len(copies) != 1 or copies[0].target is not target:
            raise UnreadableKernel("a wait for a copy that is not started in the same stretch of the program")
        self.running.remove(copies[0])
        return copies[0]

    def check(self, ref: Any, writes: bool) -> None:
        """Raise UnreadableKernel if an access conflicts with a running copy."""
        if any(copy.target is ref or (writes and copy.source is ref) for copy in self.running):
            raise UnreadableKernel("memory is touched while a copy to or from it is under way")

    def check_none(self, where: str) -> None:
        """Raise UnreadableKernel if a copy is running."""
        if self.running:
            raise UnreadableKernel(f"a copy is under way {where}")
