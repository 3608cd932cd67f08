"""Fields of a JSON object; one error reports all faults."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from hybridlm.requests.validation import is_whole


class Kind(NamedTuple):
    """The values that a field may have: `holds` tests one, `read` converts it."""

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
"""float64 holds every smaller integer."""


def _is_integral(value: Any) -> bool:
    """Whether a value is an integer; JSON writers with float64 numbers write 4.0."""
    return is_whole(value) or (isinstance(value, float) and value.is_integer() and abs(value) <= MAX_EXACT_FLOAT)


TOKEN_IDS = Kind(
    "a list of token ids",
    lambda value: isinstance(value, list) and all(map(_is_integral, value)),
    lambda value: list(map(int, value)),
)


def whole(minimum: int, maximum: int) -> Kind:
    return Kind(
        f"a whole number in {minimum}..{maximum}",
        lambda value: _is_integral(value) and minimum <= value <= maximum,
        int,
    )


def among(*values: str) -> Kind:
    return Kind(f"one of {', '.join(values)}", lambda value: isinstance(value, str) and value in values)


class Fields:
    """Remaining fields of an object; null counts as absent, as for OpenAI."""

    def __init__(self, value: Mapping[str, Any]):
        self._left = {name: item for name, item in value.items() if item is not None}
        self._faults: list[str] = []

    def take(self, name: str, kind: Kind, default: Any = None) -> Any:
        """Return the value of a field, or the default; record a fault for another kind."""
        if name not in self._left:
            return default
        value = self._left.pop(name)
        if kind.holds(value):
            return kind.read(value)
        self.fault(f"{name}: expected {kind.name}, got {shown(value)}")
        return default

    def need(self, name: str, kind: Kind) -> Any:
        """Return a required field; record a fault and return None if absent or wrong."""
        if name not in self._left:
            self.fault(f"{name}: is missing")
        return self.take(name, kind)

    def fault(self, message: str) -> None:
        self._faults.append(message)

    def finish(self, neutral: Mapping[str, Sequence[Any]]) -> None:
        """Raise ValueError with all faults and untaken fields, except `neutral` values."""
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
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
