"""Interventions as JSON objects, as rows of files have them: `kind` and the arguments of the method of that name."""

import hashlib
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from hybridlm.requests.interventions import Intervention

METHODS: dict[str, Callable[..., Intervention]] = {
    "add": Intervention.add,
    "replace_hidden_state": Intervention.replace_hidden_state,
    "ablate_head": Intervention.ablate_head,
    "ablate_expert": Intervention.ablate_expert,
    "scale_state": Intervention.scale_state,
    "replace_state": Intervention.replace_state,
}


def read_interventions(given: Any, where: str) -> list[Intervention]:
    """Return the interventions of a list of objects; none for None.

    Args:
        given: such as `[{"kind": "ablate_head", "layer": 3, "head": 1, "positions": [4, 5]}]`.
        where: its name in messages.

    Raises:
        TypeError, ValueError: it is no such list; the message names the entry and its field.
    """
    if given is None:
        return []
    if not isinstance(given, list):
        raise TypeError(f"{where}: expected a list of objects, got {type(given).__name__}")
    return [_read(one, f"{where}[{i}]") for i, one in enumerate(given)]


def _read(given: Any, where: str) -> Intervention:
    kind = given.get("kind") if isinstance(given, dict) else None
    if not isinstance(kind, str) or kind not in METHODS:
        raise ValueError(f"{where}: expected an object whose kind is one of {', '.join(METHODS)}, got {given!r}"[:300])
    fields = {name: value for name, value in given.items() if name != "kind"}
    known = inspect.signature(METHODS[kind]).parameters
    missing = [name for name, one in known.items() if one.default is one.empty and name not in fields]
    if wrong := sorted(fields.keys() - known.keys()):
        raise ValueError(f"{where}: expected fields of {kind} ({', '.join(known)}), got {', '.join(wrong)}")
    if missing:
        raise ValueError(f"{where}: {kind} expects {', '.join(missing)} as well")
    try:
        return METHODS[kind](**fields)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: {error}") from error


def digest(interventions: Sequence[Intervention]) -> str:
    """Return the SHA-256 of interventions, every number of them."""
    found = hashlib.sha256()
    for one in interventions:
        value = None if one.value is None else (one.value.dtype.str, one.value.shape, one.value.tobytes())
        found.update(repr((one.kind, one.layer, one.runs, one.unit, one.mixer, one.array, one.factor, value)).encode())
    return found.hexdigest()
