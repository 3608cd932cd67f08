"""Structure of a step's results as JSON."""

import json
from collections.abc import Sequence
from typing import Any

import jax

from ir_passes.compile.exported import ExportError
from ir_passes.files.strict_json import parse_json

MAX_DEPTH = 50


def write_structure(structure: Any, args: tuple[Any, ...], nodes: Sequence[type]) -> str:
    """Return a structure as JSON; raises ExportError for unknown node types."""
    return json.dumps(_written(jax.tree.unflatten(structure, range(structure.num_leaves)), args, nodes))


def _written(tree: Any, args: tuple[Any, ...], nodes: Sequence[type], depth: int = 0) -> Any:
    """Encode a tree of integers as JSON.

    0 is a leaf, null None, a list a tuple, {class: parts} a class of `nodes`, {"": i} the structure of argument i.
    """
    if depth > MAX_DEPTH:
        raise ExportError(f"results are nested more than {MAX_DEPTH} deep")
    if tree is None:
        return None
    if isinstance(tree, int):
        return 0
    structure = jax.tree.structure(tree)
    for number, arg in enumerate(args):
        if jax.tree.structure(arg) == structure:
            return {"": number}
    parts = [_written(part, args, nodes, depth + 1) for part in tree] if isinstance(tree, tuple) else []
    if type(tree) is tuple:
        return parts
    if type(tree) in nodes:
        return {type(tree).__name__: parts}
    raise ExportError(f"results have a {type(tree).__name__}")


def read_structure(text: str, args: tuple[Any, ...], nodes: Sequence[type]) -> Any:
    """Return the structure of JSON text; raises ExportError."""
    classes = {node.__name__: node for node in nodes}

    def read(value: Any, depth: int) -> Any:
        if value is None or value == 0:
            return value
        if isinstance(value, list) and depth < MAX_DEPTH:
            return tuple(read(part, depth + 1) for part in value)
        if isinstance(value, dict) and len(value) == 1:
            ((name, inner),) = value.items()
            if name == "" and type(inner) is int and 0 <= inner < len(args):
                return jax.tree.map(lambda _: 0, args[inner])
            if name in classes and isinstance(inner, list) and depth < MAX_DEPTH:
                return classes[name](*(read(part, depth + 1) for part in inner))
        raise ExportError(f"the structure of results is none: {str(value)[:80]}")

    try:
        return jax.tree.structure(read(parse_json(text), 0))
    except (TypeError, ValueError, RecursionError) as error:
        raise ExportError(f"the structure of results is none: {error}") from error
