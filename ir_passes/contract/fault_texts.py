"""Messages and remedies of contract faults; no check depends on them."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import fields
from typing import Any

import jax
import numpy as np

from ir_passes.jaxpr.dtypes import is_integer


def shown(entry: Any, *hidden: str) -> str:
    """Return an entry as a call, without hidden fields that have their defaults."""
    values = [(field, getattr(entry, field.name)) for field in fields(entry)]
    texts = (f"{field.name}={x!r}" for field, x in values if field.name not in hidden or x != field.default)
    return f"{type(entry).__name__}({', '.join(texts)})"


def hiding(*hidden: str) -> Any:
    """Return the `__repr__` of entries with these hidden fields."""
    return lambda entry: shown(entry, *hidden)


NO_LANES = "the number of lanes is unknown: declare at least one Lane, SlotMap, PageTable or cu_seqlens"
_OF_TOKENS = (
    "rows of state, or their next version, are a Pool; an axis of the tokens of all lanes is Packed(), together with "
    "Packed(role='cu_seqlens') or Packed(role='segment_ids')"
)
_OF_RANKS = (
    "cu_seqlens has one entry more than there are lanes, and is one layout: of several data-parallel ranks each has a "
    "step of its own, with its tokens, lanes and rows"
)
IDLE_OUTPUT = "what says which lanes are idle is an input; what a step counts itself is Lane(role='accepted')"
ONE_ROLE = "{paths} have the role {role!r}, expected one array that tells which lanes are idle"
TWO_KINDS = "group {name!r} has a SlotMap and a PageTable; give the pools that have pages a group of their own"
NO_MAP = (
    "group {pool.group!r} has no SlotMap, so it needs one row per lane along axis {pool.axis}: expected {lanes}, got "
    "shape {shape}; add a SlotMap or use a pool of {lanes} rows"
)
OTHER_SUCCESSOR = (
    "it is the next version of {old.path}: expected its type, {old.dtype}{old.shape} {old.entry}, got "
    "{new.dtype}{new.shape} {new.entry}"
)
_NAMED = "name each layout, as Packed(layout='keys') and Packed(role='cu_seqlens', layout='keys')"
ONE_DESCRIPTION = f"layout {{layout!r}} has one array of {{role}}, got {{paths}}; {_NAMED}"
NO_DESCRIPTION = "{bound.entry} is an input, an int32 array of bound dimension, got {bound.dtype}{bound.shape}"
ONE_MAP = "{entry} needs one slot map that says which rows are written, got maps with the roles {roles}"
NO_FUNCTION = "scratch_bytes is a function of the number of lanes, got {!r}"
OPAQUE_ENTRY = "expected one of Shared, Lane, Packed, Pool, SlotMap, PageTable, got {!r}"
LENGTH_ONLY = "the one role that a lane can have here is 'length' of an operand, got {}"
TWO_ENTRIES = "it has two entries, {} by position and {} by name: leave one out"
NO_TUPLE = "expected one entry or a tuple with one for each argument, got {!r}"


def no_entry(kinds: Iterable[type], entry: Any) -> str:
    call = f"; write {entry.__name__}(...)" if isinstance(entry, type) and issubclass(entry, tuple(kinds)) else ""
    return f"expected one of {', '.join(kind.__name__ for kind in kinds)}, got {entry!r}{call}"


def few_pools(outputs: Collection[int], inputs: Collection[int]) -> str:
    return f"{len(outputs)} output pools but only {len(inputs)} input pools"


def two_writers(name: str, writers: Iterable[str]) -> str:
    message = f"rows of group {name!r} may be written by {' and by '.join(writers)}, which may name one row"
    return f"{message}; declare role='read' and role='write', or disjoint=True for all but one"


def other_lengths(sizes: Mapping[str, int], is_packed: bool) -> str:
    listing = ", ".join(f"{path}: {size}" for path, size in sizes.items())
    return f"lane axes have different lengths: {listing}; {_OF_RANKS if is_packed else _OF_TOKENS}"


def other_array(bound: Any, lanes: int, dtype: Any, shape: tuple[int, ...] | None = None) -> str:
    """Return the message for a wrong dtype or shape; page tables have no `shape`."""
    has_pages = type(bound.entry).__name__ == "SlotMap" and len(bound.shape) > 1 and bound.shape[0] == lanes
    hint = "; several pages for each lane are a PageTable" if has_pages else ""
    if not hint and bound.dtype != dtype and is_integer(bound.dtype):
        hint = f"; convert it on the host: np.asarray(x, np.{'bool_' if dtype == np.bool_ else dtype.name})"
    expected = f"int32[{lanes}, pages]" if shape is None else f"{dtype}{list(shape)}"
    return f"{bound.entry} needs {expected}, got {bound.dtype}{bound.shape}{hint}"


def no_group(name: str, groups: Iterable[str]) -> str:
    return f"no pool belongs to group {name!r}; groups: {', '.join(sorted(groups)) or 'none'}"


def other_tokens(layout: str | None, lengths: Mapping[str, int | None]) -> str:
    listing = ", ".join(f"{path}: {length}" for path, length in lengths.items())
    return f"packed axes of layout {layout!r} have different lengths: {listing}; {_NAMED}"


def no_description(layout: str | None, paths: Iterable[str], described: Iterable[Any]) -> str:
    alternatives = ", ".join(sorted(map(repr, described))) or "none"
    message = f"layout {layout!r} of {', '.join(paths)} needs an input Packed(role='cu_seqlens') or"
    return f"{message} Packed(role='segment_ids') with the same layout; layouts that have one: {alternatives}"


def no_successor(entry: Any, operand: tuple[int, Any] | None) -> str:
    actual = "there is none" if operand is None else f"operand {operand[0]} is {operand[1]}"
    return f"{entry} needs a pool to succeed among the operands, {actual}"


def no_role(entry: Any, roles: Iterable[str | None]) -> str:
    name = type(entry).__name__
    return f"{name} has no role {entry.role!r}; expected one of {', '.join(map(repr, roles))}"


def no_prefix(value: Any, entries: Any, children_of: Callable[[Any], Any]) -> str:
    """Return the message for entries in other containers than the value's."""

    def described(node: Any) -> str:
        children = children_of(node)
        if children is None:
            return "an array" if hasattr(node, "shape") else repr(node)
        if isinstance(node, tuple | list) and not hasattr(node, "_fields"):
            return f"a {type(node).__name__} of {len(children)}"
        keys = ", ".join(jax.tree_util.keystr((key,)) for key, _ in children)
        return f"{type(node).__name__} with {keys}" if keys else f"{type(node).__name__} of nothing"

    expected = f"expected one entry or {described(value)}, got {described(entries)}"
    return f"the entries are no prefix of the value: {expected}"


def other_count(entries: int, arguments: int, named: Collection[str]) -> str:
    by_name = f" and {', '.join(sorted(named))} by name" if named else ""
    return f"the contract has {entries} entries, the step was given {arguments} arguments by position{by_name}"


def primitive_name(names: Iterable[str]) -> str:
    listing = ", ".join(map(repr, dict.fromkeys(names))) or "none"
    message = "expected the name of a function, target or format, got a primitive's, which is that of all its calls"
    return f"{message}; names in this step: {listing}"
