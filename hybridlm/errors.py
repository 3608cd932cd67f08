"""What goes wrong while a model runs, or before, where a package is missing.

What is wrong with a checkpoint, all of it at once.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path


class NumericalError(RuntimeError):
    """A step computed something that is not a number.

    Args:
        item: the request or text.
        position: the token whose logits are at fault.
    """

    def __init__(self, item: str, position: int):
        self._given = (item, position)
        super().__init__(
            f"{item}: the logits for token {position} are not numbers; check the checkpoint's weights, or load it with "
            f"dtype='float32'"
        )

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        # Between processes: the message alone does not make such an error.
        return type(self), self._given


class MissingExtra(ImportError):
    """Something needs a package that only an extra of hybridlm installs.

    Args:
        what: what was asked for.
        package: what it needs.
        extra: which extra installs it.
    """

    def __init__(self, what: str, package: str, extra: str):
        self._given = (what, package, extra)
        super().__init__(f'{what}: needs {package}, which is not installed: pip install "hybridlm[{extra}]"')

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        # As above.
        return type(self), self._given


def require_extra(what: str, package: str, extra: str) -> None:
    """Raises MissingExtra, with these arguments, where the package is not installed."""
    if find_spec(package) is None:
        raise MissingExtra(what, package, extra)


MAX_SHOWN = 40


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
            lines += [f"  {fault}" for fault in self.faults[:MAX_SHOWN]]
            if len(self.faults) > MAX_SHOWN:
                lines.append(f"  ... and {len(self.faults) - MAX_SHOWN} more (all of them in .faults)")
        if advice:
            lines.append(advice)
        super().__init__("\n".join(lines))

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        # Between processes: the message alone does not make such an error.
        return type(self), (self.where, self.faults, self.advice)
