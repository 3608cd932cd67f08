"""Interventions: a user's changes inside the model, as Python or JSON objects."""

import hashlib
import inspect
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, Self, get_args

import numpy as np

from hybridlm.keywords import suggests_in_methods
from hybridlm.requests.captured import Captured, parse_path
from models.state.shapes import HeadKind

Kind = Literal["add", "replace_hidden_state", "ablate_head", "ablate_expert", "scale_state", "replace_state"]
Positions = int | range | Sequence[int] | None


@suggests_in_methods
@dataclass(frozen=True, eq=False)
class Intervention:
    """A change inside the model in one sequence; the methods make one.

    Positions count all read tokens from 0: a number, a range, a list, or None for all.

    Attributes:
        kind: method that made it.
        layer: from 0; for vectors the index of the hidden states.
        runs: positions, in order; None for all.
        unit: head or expert; None for all heads of a state.
        mixer: of the ablated head; None for the layer's only one.
        array: field or role of the changed state array.
    """

    kind: Kind
    layer: int
    runs: tuple[range, ...] | None
    unit: int | None = None
    mixer: HeadKind | None = None
    array: str = "recurrent"
    factor: float = 1.0
    value: np.ndarray | None = None

    def __repr__(self) -> str:
        """Return fields without defaults; arrays by dtype and shape."""
        parts = [f"{self.kind}, layer={self.layer}"]
        if self.runs is not None:
            first, last = self.runs[0].start, self.runs[-1].stop - 1
            count = sum(map(len, self.runs))
            parts.append(f"position={first}" if count == 1 else f"{count} positions in {first}..{last}")
        for field in fields(self)[3:]:
            value = getattr(self, field.name)
            if isinstance(value, np.ndarray):
                parts.append(f"{field.name}={value.dtype}{list(value.shape)}")
            elif value != field.default:
                parts.append(f"{field.name}={value!r}")
        return f"Intervention({', '.join(parts)})"

    @classmethod
    def add(cls, vector: Any, *, hidden_state: int, positions: Positions = None) -> Self:
        """Add a vector to the residual stream.

        Args:
            vector: float [hidden], used as float32.
            hidden_state: index as in `LM.forward`: 0 after the embedding, i after layer i - 1.
        """
        index = _whole(hidden_state, "hidden_state")
        return cls("add", index, _runs(positions), value=_numbers(vector, "vector"))

    @classmethod
    def replace_hidden_state(cls, vector: Any, *, hidden_state: int, positions: Positions = None) -> Self:
        """Replace the residual stream by a vector (activation patching).

        Arguments as for `add`.
        """
        index = _whole(hidden_state, "hidden_state")
        return cls("replace_hidden_state", index, _runs(positions), value=_numbers(vector, "vector"))

    @classmethod
    def ablate_head(cls, layer: int, head: int, *, mixer: HeadKind | None = None, positions: Positions = None) -> Self:
        """Replace the output of a head by zero, before the output projection.

        Args:
            head: query head of attention, or value head of a recurrence.
            mixer: "attention" or "recurrent", needed in layers that have both.
        """
        if mixer not in (None, "attention", "recurrent"):
            raise ValueError(f"mixer: expected attention or recurrent, got {mixer!r}")
        return cls("ablate_head", _whole(layer, "layer"), _runs(positions), _whole(head, "head"), mixer)

    @classmethod
    def ablate_expert(cls, layer: int, expert: int, *, positions: Positions = None) -> Self:
        """Replace the output of a routed expert by zero; tokens are not rerouted."""
        return cls("ablate_expert", _whole(layer, "layer"), _runs(positions), _whole(expert, "expert"))

    @classmethod
    def scale_state(
        cls,
        layer: int,
        factor: float,
        *,
        head: int | None = None,
        array: str = "recurrent",
        positions: Positions = None,
    ) -> Self:
        """Multiply the state after a token by a factor; 0 makes it zero.

        Args:
            head: value head; None for all.
            array: "recurrent", "conv" for the last inputs of the convolution, or a field name.
        """
        number = _numbers(factor, "factor")
        if number.shape != ():
            raise TypeError(f"factor: expected a number, got {factor!r}")
        return cls("scale_state", _whole(layer, "layer"), _runs(positions), *_array(array, head), float(number))

    @classmethod
    def replace_state(
        cls, layer: int, value: Any, *, head: int | None = None, array: str = "recurrent", positions: Positions = None
    ) -> Self:
        """Replace the state after a token; `head` and `array` as for `scale_state`.

        Args:
            value: float [value_head, value, key], with `head` [value, key], of "conv" [tap, channel], as in
                `Captured.states`.
        """
        array_value = _numbers(value, "value")
        return cls("replace_state", _whole(layer, "layer"), _runs(positions), *_array(array, head), value=array_value)

    @staticmethod
    def patch(
        captured: Captured, position: int, *, at: int | None = None, layers: Sequence[int] | None = None
    ) -> "list[Intervention]":
        """Return replacements of recurrent and convolution states by captured states.

        Args:
            captured: result of a run with `states=True`.
            position: one of its positions.
            at: position after which the state is replaced; None for `position`.
            layers: None for all with a state.

        Raises:
            ValueError: no state was captured at the position or in a layer.
        """
        row = captured.row(position)
        named = {name: parse_path(name) for name in captured.states}
        states = [(name, *parsed) for name, parsed in named.items() if parsed is not None]
        wanted = {layer for _, layer, _ in states} if layers is None else set(layers)
        if missing := sorted(wanted - {layer for _, layer, _ in states}) or ([] if states else ["any"]):
            raise ValueError(f"layers: no state was captured of layer {', '.join(map(str, missing))}")
        where = position if at is None else at
        return [
            Intervention.replace_state(layer, captured.states[name][row], array=array, positions=where)
            for name, layer, array in states
            if layer in wanted
        ]


def _array(array: str, head: int | None) -> tuple[int | None, None, str]:
    if head is not None and array == "conv":
        raise ValueError(f"head: expected None for {array}, whose channels are not those of heads, got {head!r}")
    return None if head is None else _whole(head, "head"), None, array


def _whole(value: Any, name: str) -> int:
    try:
        number = -1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = -1
    if number < 0:
        raise ValueError(f"{name}: expected a whole number of at least 0, got {value!r}")
    return number


def _numbers(value: Any, name: str) -> np.ndarray:
    try:
        array = np.array(value)  # a copy: the caller may change its array before the step
    except ValueError as error:
        raise TypeError(f"{name}: expected numbers, got lists of different lengths") from error
    if array.dtype.kind not in "fiuV":
        raise TypeError(f"{name}: expected numbers, got {array.dtype}{list(array.shape)}")
    return array


def _runs(positions: Any) -> tuple[range, ...] | None:
    if positions is None:
        return None
    try:
        numbers = [_whole(number, "positions") for number in ([positions] if np.ndim(positions) == 0 else positions)]
    except TypeError as error:
        raise TypeError(
            f"positions: expected a number, a range, a list of numbers or None, got {positions!r}"
        ) from error
    if not numbers:
        raise ValueError("positions: is empty; expected at least one, or None for all")
    return consecutive(numbers)


def consecutive(numbers: Iterable[int]) -> tuple[range, ...]:
    """Return the runs of consecutive numbers, in order."""
    runs = list[range]()
    for number in sorted(set(numbers)):
        if runs and runs[-1].stop == number:
            runs[-1] = range(runs[-1].start, number + 1)
        else:
            runs.append(range(number, number + 1))
    return tuple(runs)


def read_interventions(value: Any, where: str) -> list[Intervention]:
    """Return the interventions of a list of JSON objects; empty for None.

    Args:
        value: `[{"kind": "ablate_head", "layer": 3, "head": 1, "positions": [4, 5]}]`.

    Raises:
        TypeError, ValueError: names the wrong entry and field.
    """
    if value is None:
        return []
    if not isinstance(value, list):
        raise TypeError(f"{where}: expected a list of objects, got {type(value).__name__}")
    return [_read(entry, f"{where}[{i}]") for i, entry in enumerate(value)]


def _read(entry: Any, where: str) -> Intervention:
    kinds = get_args(Kind)
    kind = entry.get("kind") if isinstance(entry, dict) else None
    if not isinstance(kind, str) or kind not in kinds:
        raise ValueError(f"{where}: expected an object whose kind is one of {', '.join(kinds)}, got {entry!r}"[:300])
    fields = {name: value for name, value in entry.items() if name != "kind"}
    method = getattr(Intervention, kind)
    parameters = inspect.signature(method).parameters
    required = [name for name, parameter in parameters.items() if parameter.default is parameter.empty]
    if wrong := sorted(fields.keys() - parameters.keys()):
        raise ValueError(f"{where}: expected fields of {kind} ({', '.join(parameters)}), got {', '.join(wrong)}")
    if missing := [name for name in required if name not in fields]:
        raise ValueError(f"{where}: {kind} expects {', '.join(missing)} as well")
    try:
        return method(**fields)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: {error}") from error


def digest(interventions: Sequence[Intervention]) -> str:
    """Return the SHA-256 of interventions and their numbers."""
    digest = hashlib.sha256()
    for change in interventions:
        value = None if change.value is None else (change.value.dtype.str, change.value.shape, change.value.tobytes())
        fields = change.kind, change.layer, change.runs, change.unit, change.mixer, change.array, change.factor, value
        digest.update(repr(fields).encode())
    return digest.hexdigest()
