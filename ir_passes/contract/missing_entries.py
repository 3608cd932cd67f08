"""Missing entries of a contract, and a guess of the complete contract as code."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from functools import partial
from typing import Any

import jax
import numpy as np

from ir_passes.contract.entries import Lane, Pool, SlotMap
from ir_passes.contract.fault_texts import shown
from ir_passes.contract.faults import ContractError, ContractFault
from ir_passes.contract.prefix import MISSING, is_entry
from ir_passes.jaxpr.dtypes import dtype_of
from ir_passes.jaxpr.tracing import FunctionSignature

Argument = tuple[str, Any, Any]


def check_complete(arguments: Sequence[Argument], outputs: Any, results: Any, parameters: FunctionSignature) -> None:
    """Raise ContractError with all arguments, results and parts without an entry."""
    names = {f"args[{number}]": f"{name}, " for number, name in enumerate(parameters.positional)}
    faults = [
        ContractFault.ARGUMENTS.fault(path, f"{names.get(path, '')}{_described(value)}, has no entry")
        for path, entries, value in arguments
        if entries is MISSING
    ]
    for path, entries, value in (*arguments, ("result", outputs, results)):
        for container, children in _incomplete(entries, value, path):
            listed = ", ".join(f"{child} ({_described(part)})" for child, part in children)
            faults.append(ContractFault.PREFIX.fault(container, f"no entry for {listed}"))
    if not faults:
        return
    placed = [array for _, entries, value in arguments for array in _placed(entries, value)]
    sides = placed, [*_placed(outputs, results)]
    bound = [array for side in sides for array in side]
    lanes = next((shape[axis] for entry, shape, _ in bound if (axis := _lane_axis(entry)) in range(len(shape))), None)
    pools = {(shape, dtype): entry_code(entry) for entry, shape, dtype in bound if isinstance(entry, Pool)}
    counts = [Counter((shape, dtype) for entry, shape, dtype in side if isinstance(entry, Pool)) for side in sides]
    # a pool has one successor
    lacking = counts[1] - counts[0], counts[0] - counts[1]

    def guess(lacking: Counter[Any], leaf: Any) -> str:
        shape, dtype = np.shape(leaf), dtype_of(leaf)
        if lacking[shape, dtype] > 0:
            lacking[shape, dtype] -= 1
            return pools[shape, dtype]
        return "Lane()" if lanes and shape[:1] == (lanes,) else "Shared()"

    typed = {path: _typed(entries, value, partial(guess, lacking[0])) for path, entries, value in arguments}
    line = [_tuple([code for path, code in typed.items() if path.startswith("args")])]
    line.append(_typed(outputs, results, partial(guess, lacking[1])))
    if keywords := [
        f"{path[len('kwargs[') : -1]}: {code}" for path, code in typed.items() if path.startswith("kwargs")
    ]:
        line.append(f"keywords={{{', '.join(keywords)}}}")
    advice = f"with new entries guessed from the types of arrays, the contract is LaneContract({', '.join(line)})"
    meaning = "Shared() is for what is the same for every lane, Lane() for what has an index for each lane"
    raise ContractError(*faults, advice=f"{advice}; {meaning}")


def _children(node: Any) -> dict[Any, Any] | None:
    """Return children by index or key, or None."""
    if type(node) is dict:
        return dict(node)
    return dict(enumerate(node)) if type(node) in (tuple, list) else None


def _pairs(entries: Any, value: Any) -> dict[Any, tuple[Any, Any]] | None:
    """Return entry and value of each child; None for one entry or other structures."""
    entry_children, value_children = _children(entries), _children(value)
    if entry_children is None or value_children is None or type(entries) is not type(value):
        return None
    if not entry_children.keys() <= value_children.keys():
        return None
    return {key: (entry_children.get(key, MISSING), part) for key, part in value_children.items()}


def _incomplete(entries: Any, value: Any, path: str) -> Iterator[tuple[str, list[tuple[str, Any]]]]:
    """Yield each incomplete container with its children without entries."""
    pairs = _pairs(entries, value) or {}
    if missing := [(f"{path}[{key!r}]", part) for key, (entry, part) in pairs.items() if entry is MISSING]:
        yield path, missing
    for key, (entry, part) in pairs.items():
        yield from _incomplete(entry, part, f"{path}[{key!r}]")


def _placed(entries: Any, value: Any) -> Iterator[tuple[Any, tuple[int, ...], Any]]:
    pairs = _pairs(entries, value)
    for entry, part in (pairs or {}).values():
        yield from _placed(entry, part)
    if pairs is None and is_entry(entries):
        yield from ((entries, np.shape(leaf), dtype_of(leaf)) for leaf in jax.tree.leaves(value))


def _lane_axis(entry: Any) -> int:
    return entry.axis if isinstance(entry, Lane) else 0 if isinstance(entry, SlotMap) else -1


def _typed(entries: Any, value: Any, guess: Callable[[Any], str]) -> str:
    """Return entries as code, with guesses for missing entries."""
    if entries is MISSING:
        guesses = {guess(leaf) for leaf in jax.tree.leaves(value)}
        if len(guesses) == 1:
            return guesses.pop()
        children = _children(value)
        pairs = None if children is None else {key: (MISSING, part) for key, part in children.items()}
    else:
        pairs = _pairs(entries, value)
    if pairs is None:
        return "None" if entries is MISSING else entry_code(entries)
    parts = {key: _typed(entry, part, guess) for key, (entry, part) in pairs.items()}
    if type(value) is dict:
        return f"{{{', '.join(f'{key!r}: {part}' for key, part in parts.items())}}}"
    return _tuple(list(parts.values())) if type(value) is tuple else f"[{', '.join(parts.values())}]"


def entry_code(entry: Any) -> str:
    return shown(entry, *(field.name for field in fields(entry))) if is_entry(entry) else repr(entry)


def _tuple(parts: list[str]) -> str:
    return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"


def _described(value: Any) -> str:
    leaves = jax.tree.leaves(value)
    if len(leaves) != 1:
        return f"{len(leaves)} arrays"
    return f"{dtype_of(leaves[0]).name}[{', '.join(map(str, np.shape(leaves[0])))}]"
