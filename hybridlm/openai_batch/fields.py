"""Fields of a JSON object; one error reports all wrong, missing and unsupported fields."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from hybridlm.requests.validation import is_whole


class Kind(NamedTuple):
    """The values that a field may have.

    Attributes:
        holds: whether a value is of this kind.
        read: value of this kind -> what `Fields.take` returns.
    """

    name: str
    holds: Callable[[Any], bool]
    read: Callable[[Any], Any] = lambda value: value


ANYTHING = Kind("anything", lambda value: True)
STRING = Kind("a string", lambda value: isinstance(value, str))
BOOLEAN = Kind("true or false", lambda value: isinstance(value, bool))
NUMBER = Kind("a number", lambda value: isinstance(value, int | float) and not isinstance(value, bool))
OBJECT = Kind("an object", lambda value: isinstance(value, dict))
LIST = Kind("a list", lambda value: isinstance(value, list))
STRINGS = Kind(
    "a string or a list of strings",
    lambda value: isinstance(value, str) or (isinstance(value, list) and all(isinstance(item, str) for item in value)),
)
MAX_EXACT_FLOAT = 2**53
"""Largest magnitude such that float64 holds every smaller whole number."""


def _is_integral(value: Any) -> bool:
    """Return True for a whole number; JSON writers with float64 numbers write 4.0."""
    return is_whole(value) or (isinstance(value, float) and value.is_integer() and abs(value) <= MAX_EXACT_FLOAT)


TOKEN_IDS = Kind(
    "a list of token ids",
    lambda value: isinstance(value, list) and all(map(_is_integral, value)),
    lambda value: list(map(int, value)),
)


def whole(minimum: int, maximum: int) -> Kind:
    """Return the kind of whole numbers from `minimum` to `maximum`, read as int."""
    return Kind(
        f"a whole number in {minimum}..{maximum}",
        lambda value: _is_integral(value) and minimum <= value <= maximum,
        int,
    )


def among(*values: str) -> Kind:
    """Return the kind of these texts."""
    return Kind(f"one of {', '.join(values)}", lambda value: isinstance(value, str) and value in values)


class Fields:
    """Remaining fields of an object; null counts as absent, as for OpenAI."""

    def __init__(self, value: Mapping[str, Any]):
        self._left = {name: item for name, item in value.items() if item is not None}
        self._faults: list[str] = []

    def take(self, name: str, kind: Kind, default: Any = None) -> Any:
        """Return the value of a field, or the default; add a fault for another kind."""
        if name not in self._left:
            return default
        value = self._left.pop(name)
        if kind.holds(value):
            return kind.read(value)
        self.fault(f"{name}: expected {kind.name}, got {shown(value)}")
        return default

    def need(self, name: str, kind: Kind) -> Any:
        """Return a required field; None and a fault if it is absent or wrong."""
        if name not in self._left:
            self.fault(f"{name}: is missing")
        return self.take(name, kind)

    def fault(self, message: str) -> None:
        """Add a fault."""
        self._faults.append(message)

    def finish(self, neutral: Mapping[str, Sequence[Any]]) -> None:
        """Report all faults, when no more fields will be taken.

        Args:
            neutral: unsupported fields -> the values that have no effect.

        Raises:
            ValueError: every fault, and every field that was not taken.
        """
        for name, value in self._left.items():
            if name not in neutral:
                self.fault(f"{name}: is not supported")
            elif not any(
                value == allowed and isinstance(value, bool) == isinstance(allowed, bool) for allowed in neutral[name]
            ):
                values = " or ".join(map(shown, neutral[name]))
                self.fault(f"{name}: is supported only with the value {values}, got {shown(value)}")
        self._left = {}
        if self._faults:
            raise ValueError("; ".join(self._faults))


def shown(value: Any) -> str:
    """Return a value as JSON, shortened."""
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
