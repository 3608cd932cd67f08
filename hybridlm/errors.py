"""Errors of all parts of hybridlm."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self


class ItemError(RuntimeError):
    """An error of one request or text among others."""

    _arguments: tuple[Any, ...]

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        # pickle would call the class with the message.
        return type(self), self._arguments

    def of(self, item: str) -> Self:
        return type(self)(item, *self._arguments[1:])


class NumericalError(ItemError):
    """A step computed NaN or an infinity.

    Args:
        position: index of the token among all that the model reads.
    """

    def __init__(self, item: str, position: int):
        self._arguments = (item, position)
        super().__init__(
            f"{item}: token {position}: expected finite numbers, got NaN or infinity; look for them in the weights "
            f"(hybridlm inspect --weights) and in interventions, or load with dtype='float32'"
        )


class GrammarError(ItemError):
    """No token can be sampled: a grammar, bans or a logits processor rule out all."""

    def __init__(self, item: str, position: int, reason: str):
        self._arguments = (item, position, reason)
        super().__init__(f"{item}: no token is possible in place {position}: {reason}")


class MissingExtra(ImportError):
    """A missing package of an extra."""

    def __init__(self, feature: str, package: str, extra: str):
        self._arguments = (feature, package, extra)
        super().__init__(f'{feature}: needs {package}, which is not installed: pip install "hybridlm[{extra}]"')

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), self._arguments


def require_extra(feature: str, package: str, extra: str) -> None:
    """Raise MissingExtra if a package is not installed."""
    if find_spec(package) is None:
        raise MissingExtra(feature, package, extra)


MAX_SHOWN = 40


class CheckpointError(ValueError):
    """A checkpoint that cannot be loaded; the message has `MAX_SHOWN` faults.

    Attributes:
        where: file, directory or name.
        faults: all, with expected and actual values.
        advice: remedy, or "".
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
        return type(self), (self.where, self.faults, self.advice)
