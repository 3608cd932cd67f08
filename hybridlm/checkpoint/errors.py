"""What is wrong with a checkpoint, all of it at once."""

from collections.abc import Sequence
from pathlib import Path

SHOWN = 40


class CheckpointError(ValueError):
    """A checkpoint that cannot be loaded.

    The message lists the first 40 faults and counts the rest.

    Attributes:
        where: the file, directory or name concerned.
        faults: every fault, each with what was expected and what was found.
        advice: what to do, or nothing.
    """

    def __init__(self, where: str | Path, faults: str | Sequence[str], advice: str = "") -> None:
        self.where = str(where)
        self.faults: tuple[str, ...] = (faults,) if isinstance(faults, str) else tuple(faults)
        self.advice = advice
        if len(self.faults) == 1:
            lines = [f"{self.where}: {self.faults[0]}"]
        else:
            lines = [f"{self.where}: {len(self.faults)} faults"]
            lines += [f"  {fault}" for fault in self.faults[:SHOWN]]
            if len(self.faults) > SHOWN:
                lines.append(f"  ... and {len(self.faults) - SHOWN} more (all of them in .faults)")
        if advice:
            lines.append(advice)
        super().__init__("\n".join(lines))

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        # Between processes: the message alone does not make such an error.
        return type(self), (self.where, self.faults, self.advice)
