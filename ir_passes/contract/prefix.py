"""Entries of a contract as a pytree prefix, like `in_specs` of `jax.shard_map`."""

from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any

import jax

from ir_passes.contract import fault_texts
from ir_passes.contract.entries import ENTRIES, Unspecified
from ir_passes.contract.faults import ContractFault
from ir_passes.jaxpr.tracing import FunctionSignature

MISSING: Any = object()


def is_entry(node: Any) -> bool:
    return isinstance(node, ENTRIES)


def spread(entries: Any, value: Any, where: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield path, entry and array for each array of a value.

    Args:
        entries: pytree prefix with entries as leaves; None is `Unspecified`. Anything else is a ContractError.
        where: path of the value, as "args[0]".
    """
    if entries is None:
        entries = Unspecified()
    if is_entry(entries):
        for path, leaf in jax.tree_util.tree_leaves_with_path(value):
            yield where + jax.tree_util.keystr(path), entries, leaf
        return
    entry_children, value_children = _children(entries), _children(value)
    if entry_children is None:
        raise ContractFault.ENTRY.error(where, fault_texts.no_entry(ENTRIES, entries))
    if value_children is None or _structure(entries) != _structure(value):
        raise ContractFault.PREFIX.error(where, fault_texts.no_prefix(value, entries, _children))
    for (_, below), (key, part) in zip(entry_children, value_children, strict=True):
        yield from spread(below, part, where + jax.tree_util.keystr((key,)))


def _children(node: Any) -> list[tuple[Any, Any]] | None:
    if jax.tree_util.all_leaves([node]):
        return None
    leaves = jax.tree_util.tree_leaves_with_path(node, is_leaf=lambda x: x is not node)
    return [(path[0], child) for path, child in leaves]


def _structure(node: Any) -> Any:
    return jax.tree.structure(node, is_leaf=lambda x: x is not node)


def by_argument(
    inputs: Any,
    keywords: Mapping[str, Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    parameters: FunctionSignature,
) -> Iterator[tuple[str, Any, Any]]:
    """Yield path, entries (or `MISSING`) and value of each argument, in flattening order.

    Args:
        inputs: one entry for all, or a tuple for positional arguments.
        keywords: entries of keyword-only arguments.
        args, kwargs: without static arguments.
        parameters: named arguments have the entries of their positions; entries of omitted arguments are ignored,
            other unused entries raise ContractError.
    """
    is_tuple = isinstance(inputs, tuple)
    if inputs is None or is_entry(inputs):
        inputs = (inputs,) * max(len(args), len(parameters.positional))
    if not isinstance(inputs, tuple):
        raise ContractFault.ARGUMENTS.error("inputs", fault_texts.NO_TUPLE.format(inputs))
    for number, (entries, value) in enumerate(zip_longest(inputs[: len(args)], args, fillvalue=MISSING)):
        yield f"args[{number}]", entries, value
    unclaimed = dict(enumerate(inputs[len(args) :], len(args)))
    places = {name: number for number, name in enumerate(parameters.positional)}
    for name in sorted(kwargs):
        where = f"kwargs[{name!r}]"
        entries = unclaimed.pop(places.get(name, -1), MISSING)
        if name in keywords and entries not in (MISSING, keywords[name]) and is_tuple:
            raise ContractFault.ARGUMENTS.error(where, fault_texts.TWO_ENTRIES.format(entries, keywords[name]))
        yield where, keywords.get(name, entries), kwargs[name]
    positional, optional = parameters.positional, parameters.optional
    unused = [k for k in unclaimed if k >= len(positional) or positional[k] not in optional]
    if unused:
        raise ContractFault.ARGUMENTS.error("args", fault_texts.other_count(len(inputs), len(args), kwargs))
