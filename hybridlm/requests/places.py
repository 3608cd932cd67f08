"""Places of a model that can be read and changed, and the check of interventions against them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hybridlm.requests.interventions import Intervention, PositionRange
from hybridlm.steps.edit import StateType


class ResidualVector(NamedTuple):
    """A vector, float32 [hidden], that is added to hidden states of a run of positions, or replaces them."""

    index: int
    run: PositionRange
    vector: np.ndarray
    replaces: bool


class Ablation(NamedTuple):
    """A head or an expert that is ablated in a run of positions."""

    layer: int
    kind: str
    unit: int
    run: PositionRange


class Edit(NamedTuple):
    """A change of an array of a state after each position of some runs.

    Attributes:
        array, layer: which.
        units: bool, the heads (or taps) that are changed.
        factor: on the state.
        value: the whole array; None where it is multiplied.
        runs: positions.
    """

    array: str
    layer: int
    units: np.ndarray
    factor: float
    value: np.ndarray | None
    runs: tuple[PositionRange, ...]


@dataclass(frozen=True)
class Places:
    """Places of a model that can be read and changed.

    Attributes:
        family: of the model, for messages.
        hidden: width of the residual stream.
        context: maximum number of positions.
        sites: for each layer, the number of heads by kind of mixer, and of experts.
        states: (layer, array) -> its type.
    """

    family: str
    hidden: int
    context: int
    sites: tuple[Mapping[str, int], ...]
    states: Mapping[tuple[int, str], StateType]

    def resolve(self, one: Intervention, where: str, length: int) -> list[ResidualVector | Ablation | Edit]:
        """Check an intervention and return what it does.

        Args:
            one: the intervention.
            where: its name in messages.
            length: positions of the sequence, those to be generated included.

        Raises:
            TypeError, ValueError: it is none, does not fit the sequence, or is about something that the model lacks.
        """
        if not isinstance(one, Intervention):
            raise TypeError(f"{where}: expected a hybridlm.Intervention, got {type(one)}")
        runs = (PositionRange(0, self.context),) if one.runs is None else one.runs
        if one.runs is not None and runs[-1].end > length:
            raise ValueError(f"{where}: expected positions below {length}, got {runs[-1].end - 1}")
        if one.kind in ("add", "replace_hidden_state"):
            if one.layer > len(self.sites):
                raise ValueError(f"{where}: hidden_state: expected 0..{len(self.sites)}, got {one.layer}")
            assert one.value is not None
            if one.value.shape != (self.hidden,):
                raise ValueError(f"{where}: vector: expected [{self.hidden}], got {list(one.value.shape)}")
            vector, replaces = one.value.astype(np.float32), one.kind == "replace_hidden_state"
            return [ResidualVector(one.layer, run, vector, replaces) for run in runs]
        if one.layer >= len(self.sites):
            raise ValueError(f"{where}: layer: expected 0..{len(self.sites) - 1}, got {one.layer}")
        if one.kind in ("ablate_head", "ablate_expert"):
            kind, unit = self._ablated(one, where), one.unit
            assert unit is not None
            return [Ablation(one.layer, kind, unit, run) for run in runs]
        return [self._edit(one, where, runs)]

    def _ablated(self, one: Intervention, where: str) -> str:
        """Return the kind of what an intervention ablates; raises ValueError if the layer has none."""
        own = self.sites[one.layer]
        if one.kind == "ablate_expert":
            kinds, what = [kind for kind in own if kind == "expert"], "expert"
        else:
            kinds, what = [kind for kind in own if kind != "expert" and one.mixer in (None, kind)], "head"
        if not kinds:
            having = [
                i for i, each in enumerate(self.sites) if any((kind == "expert") == (what == "expert") for kind in each)
            ]
            of = f" of {one.mixer} mixers" if one.mixer else ""
            raise ValueError(
                f"{where}: layer {one.layer} of {self.family} has no {what}s{of}; "
                f"layers with {what}s: {', '.join(map(str, having)) or 'none'}"
            )
        if len(kinds) > 1:
            raise ValueError(f"{where}: layer {one.layer} has heads of {' and '.join(kinds)}; say which with mixer")
        if one.unit is None or one.unit >= own[kinds[0]]:
            raise ValueError(f"{where}: {what}: expected 0..{own[kinds[0]] - 1}, got {one.unit}")
        return kinds[0]

    def _edit(self, one: Intervention, where: str, runs: tuple[PositionRange, ...]) -> Edit:
        array = self._array(one, where)
        shape, dtype, role = self.states[one.layer, array]
        if one.unit is not None and role == "conv":
            raise ValueError(f"{where}: head: expected None for {array}, whose channels are not those of heads")
        if one.unit is not None and one.unit >= shape[0]:
            raise ValueError(f"{where}: head: expected 0..{shape[0] - 1}, got {one.unit}")
        units = np.full(shape[0], one.unit is None)
        if one.unit is not None:
            units[one.unit] = True
        if one.value is None:
            # A product with zero would leave NaN and -0.0.
            value = np.zeros(shape, dtype) if one.factor == 0 else None
            return Edit(array, one.layer, units, one.factor, value, runs)
        expected = shape if one.unit is None else shape[1:]
        if one.value.shape != expected:
            raise ValueError(f"{where}: value: expected {list(expected)}, got {list(one.value.shape)}")
        return Edit(array, one.layer, units, 1.0, np.broadcast_to(one.value.astype(dtype), shape), runs)

    def _array(self, one: Intervention, where: str) -> str:
        """Return the name of an intervention's state array, by field or role."""
        fields = {name: kind.role for (layer, name), kind in self.states.items() if layer == one.layer}
        names = [one.array] if one.array in fields else [name for name in fields if fields[name] == one.array]
        if len(names) == 1:
            return names[0]
        if names:
            raise ValueError(f"{where}: array: layer {one.layer} has {', '.join(names)}; name one of them")
        layers = {layer for (layer, name), kind in self.states.items() if one.array in (name, kind.role)}
        raise ValueError(
            f"{where}: layer {one.layer} of {self.family} has no {one.array} state; layers with one: "
            f"{', '.join(map(str, sorted(layers))) or 'none'}"
        )
