"""Sites of a model, and checks of reads and interventions against them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hybridlm.requests.interventions import Intervention
from hybridlm.requests.probes import ABLATIONS, MAX_SLOTS, VECTORS, Probe
from hybridlm.requests.validation import is_whole
from hybridlm.steps.edit import StateSite


@dataclass(frozen=True)
class ProbeSites:
    """Sites of a model.

    Attributes:
        units: numbers of heads by mixer and of experts, per layer.
        states: by (layer, array), with shapes of the whole model.
    """

    family: str
    hidden: int
    context: int
    units: tuple[Mapping[str, int], ...]
    states: Mapping[tuple[int, str], StateSite]

    def capture(self, hidden_states: Any, states: Any) -> Probe:
        """Return a probe that reads, without positions yet; raises TypeError or ValueError."""
        if not isinstance(states, bool):
            raise TypeError(f"states: expected True or False, got {states!r}")
        if states and not self.states:
            raise ValueError(
                f"states: {self.family} as configured has no state of a recurrence or convolution, which are those read"
            )
        if isinstance(hidden_states, str) or not isinstance(hidden_states, Sequence | np.ndarray):
            raise TypeError(f"hidden_states: expected a list of indices, got {hidden_states!r}")
        layers = len(self.units)
        wrong = [index for index in hidden_states if not is_whole(index)]
        wrong = wrong or [index for index in hidden_states if not 0 <= index <= layers]
        if wrong:
            raise ValueError(f"hidden_states: expected indices 0..{layers}, got {wrong[0]!r}")
        return Probe(tuple(sorted({int(index) for index in hidden_states})), states)

    def probe(
        self, capture: Probe, runs: tuple[range, ...], interventions: Sequence[Intervention], length: int, where: str
    ) -> Probe | None:
        """Return the probe of one sequence, or None.

        Args:
            length: with positions to be generated.

        Raises:
            TypeError, ValueError: a wrong intervention, or too many.
        """
        runs = runs if capture.captures else ()
        changes = tuple(self.resolve(change, f"{where}[{i}]", length) for i, change in enumerate(interventions))
        probe = replace(capture, runs=runs, interventions=changes)
        for slots, count in (("vectors", len(probe.vectors)), ("ablations", len(probe.ablations))):
            if count > MAX_SLOTS:
                raise ValueError(
                    f"{where}: expected at most {MAX_SLOTS} {slots} of a sequence, one for a run of positions, "
                    f"got {count}"
                )
        return probe if runs or changes else None

    def resolve(self, change: Intervention, where: str, length: int) -> Intervention:
        """Return an intervention with runs, mixer and values for this model.

        Raises:
            TypeError, ValueError: another object, a position after the sequence, or an absent site.
        """
        if not isinstance(change, Intervention):
            raise TypeError(f"{where}: expected a hybridlm.Intervention, got {type(change)}")
        runs = (range(self.context),) if change.runs is None else change.runs
        if change.runs is not None and runs[-1].stop > length:
            raise ValueError(f"{where}: expected positions below {length}, got {runs[-1].stop - 1}")
        if change.kind in VECTORS:
            if change.layer > len(self.units):
                raise ValueError(f"{where}: hidden_state: expected 0..{len(self.units)}, got {change.layer}")
            assert change.value is not None
            if change.value.shape != (self.hidden,):
                raise ValueError(f"{where}: vector: expected [{self.hidden}], got {list(change.value.shape)}")
            return replace(change, runs=runs, value=change.value.astype(np.float32))
        if change.layer >= len(self.units):
            raise ValueError(f"{where}: layer: expected 0..{len(self.units) - 1}, got {change.layer}")
        if change.kind in ABLATIONS:
            return replace(change, runs=runs, mixer=self._ablated(change, where))
        site = self._site(change, where)
        return replace(change, runs=runs, array=site.array, value=_replacement(site, change, where))

    def _ablated(self, change: Intervention, where: str) -> Any:
        units = self.units[change.layer]
        if change.kind == "ablate_expert":
            kinds, unit = [kind for kind in units if kind == "expert"], "expert"
        else:
            kinds, unit = [kind for kind in units if kind != "expert" and change.mixer in (None, kind)], "head"
        if not kinds:
            layers = [
                i
                for i, kinds in enumerate(self.units)
                if any((kind == "expert") == (unit == "expert") for kind in kinds)
            ]
            of = f" of {change.mixer} mixers" if change.mixer else ""
            raise ValueError(
                f"{where}: layer {change.layer} of {self.family} has no {unit}s{of}; "
                f"layers with {unit}s: {', '.join(map(str, layers)) or 'none'}"
            )
        if len(kinds) > 1:
            raise ValueError(f"{where}: layer {change.layer} has heads of {' and '.join(kinds)}; say which with mixer")
        if change.unit is None or change.unit >= units[kinds[0]]:
            raise ValueError(f"{where}: {unit}: expected 0..{units[kinds[0]] - 1}, got {change.unit}")
        return kinds[0]

    def _site(self, change: Intervention, where: str) -> StateSite:
        sites = {array: site for (layer, array), site in self.states.items() if layer == change.layer}
        names = [name for name in sites if name == change.array]
        names = names or [name for name, site in sites.items() if site.state.role == change.array]
        if len(names) == 1:
            return sites[names[0]]
        if names:
            raise ValueError(f"{where}: array: layer {change.layer} has {', '.join(names)}; name one of them")
        layers = {layer for (layer, name), site in self.states.items() if change.array in (name, site.state.role)}
        raise ValueError(
            f"{where}: layer {change.layer} of {self.family} has no {change.array} state; layers with one: "
            f"{', '.join(map(str, sorted(layers))) or 'none'}"
        )


def _replacement(site: StateSite, change: Intervention, where: str) -> np.ndarray | None:
    if change.unit is not None and site.state.role == "conv":
        raise ValueError(f"{where}: head: expected None for {site.array}, whose channels are not those of heads")
    if change.unit is not None and change.unit >= site.shape[0]:
        raise ValueError(f"{where}: head: expected 0..{site.shape[0] - 1}, got {change.unit}")
    if change.value is None:
        # A product with zero would leave NaN and -0.0.
        return np.zeros(site.shape, site.dtype) if change.factor == 0 else None
    expected = site.shape if change.unit is None else site.shape[1:]
    if change.value.shape != expected:
        raise ValueError(f"{where}: value: expected {list(expected)}, got {list(change.value.shape)}")
    return np.broadcast_to(change.value.astype(site.dtype), site.shape)
