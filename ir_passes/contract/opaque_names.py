"""Names of custom calls, kernels and callbacks, and comparison of two calls.

Short names may be ambiguous; an `exact_name` is unique: "name at file:line" of a function's definition, a custom call's
target with attributes, "format at file:line" of a print.
"""

import inspect
from collections.abc import Callable, Hashable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from ir_passes.jaxpr import ir, primitives
from ir_passes.jaxpr.fingerprint import fingerprint

OF_KERNEL = ("jaxpr", "jaxprs", "grid_mapping", "input_output_aliases", "mesh", "meshes", "external_meshes")
"""Kernel parameters that affect results."""
AT = " at "


def exact_name(eqn: ir.JaxprEqn) -> str:
    match eqn.primitive.name:
        case "pallas_call" | "mpmd_map":
            name, places = short_name(eqn), ", ".join(traced.partition(AT)[2] for traced in _traced(eqn))
            return f"{name}{AT}{places}" if name and places else name
        case "ffi_call":
            attributes = ", ".join(f"{name}={value}" for name, value in eqn.params["attributes"])
            return f"{short_name(eqn)}({attributes})" if attributes else short_name(eqn)
        case "debug_print":
            return f"{short_name(eqn)}{AT}{ir.source_of(eqn)}"
        case _:
            return _definition(_bare(called_back(eqn)))


def short_name(eqn: ir.JaxprEqn) -> str:
    match eqn.primitive.name:
        case "pallas_call" | "mpmd_map":
            return str(eqn.params.get("name") or ", ".join(traced.partition(AT)[0] for traced in _traced(eqn)))
        case "ffi_call":
            return str(eqn.params["target_name"])
        case "debug_print":
            return str(eqn.params["fmt"])
        case _:
            return _function_name(_bare(called_back(eqn)))


def declared_name(eqn: ir.JaxprEqn, opaque: Mapping[str, Any]) -> str | None:
    """Return the declared name of an operation, exact first, or None.

    File paths may lack their first folders.
    """
    if not opaque:
        return None
    name, exact = short_name(eqn), exact_name(eqn)
    if exact in opaque:
        return exact
    for key in opaque:
        declared, separator, place = key.rpartition(AT)
        if separator and declared == name and exact.endswith(f"/{place}"):
            return key
    return name if name in opaque else None


def called_back(eqn: ir.JaxprEqn) -> Callable[..., Any]:
    """Return the user's function of a callback, without JAX's wrappers."""
    callback = eqn.params["callback"]
    inner = getattr(callback, "callback_func", None)
    if inner is None and eqn.primitive.name == "debug_callback" and inspect.isfunction(callback):
        inner = inspect.getclosurevars(callback).nonlocals.get("callback")
    return callback if inner is None else inner


def same_body(first: ir.JaxprEqn, second: ir.JaxprEqn) -> bool:
    """True if two operations run the same program.

    Kernels with equal types have equal programs; others may differ in array lengths only. Closures may differ in
    captured arrays, which are in the program.
    """
    name = first.primitive.name
    if name != second.primitive.name:
        return False
    if name in primitives.KERNELS:
        if exact_name(first) != exact_name(second):
            return False
        types = [ir.types([*eqn.invars, *eqn.outvars]) for eqn in (first, second)]
        if types[0] == types[1]:
            return _kernel(first) == _kernel(second)
        return AT in exact_name(first) and _without_lengths(first) == _without_lengths(second)
    if name == "ffi_call":
        keys = ("target_name", "attributes", "legacy_backend_config", "input_output_aliases")
        return all(fingerprint(first.params.get(key)) == fingerprint(second.params.get(key)) for key in keys)
    if name == "debug_print":
        return all(str(first.params[key]) == str(second.params[key]) for key in ("fmt", "in_tree", "static_args"))
    return _callback(first) == _callback(second)


def operations(jaxpr: ir.Jaxpr) -> Iterator[ir.JaxprEqn]:
    return (eqn for eqn in ir.all_eqns(jaxpr) if eqn.primitive.name in primitives.OPAQUE)


def bodies(jaxpr: ir.Jaxpr, opaque: Mapping[str, Any]) -> tuple[tuple[str | None, int], ...]:
    """Return declared name and a number of its body for each operation; fingerprints lack both."""
    distinct: list[ir.JaxprEqn] = []
    names = []
    for eqn in operations(jaxpr):
        index = next((k for k, other in enumerate(distinct) if same_body(other, eqn)), len(distinct))
        if index == len(distinct):
            distinct.append(eqn)
        names.append((declared_name(eqn, opaque), index))
    return tuple(names)


def _traced(eqn: ir.JaxprEqn) -> tuple[str, ...]:
    sources = (getattr(body.debug_info, "func_src_info", None) for body in ir.sub_jaxprs(eqn, opaque=True))
    return tuple(dict.fromkeys(str(source) for source in sources if source and str(source) != "<unknown>"))


def _kernel(eqn: ir.JaxprEqn) -> str:
    return fingerprint(tuple(eqn.params.get(key) for key in OF_KERNEL))


_LENGTHS = frozenset(("new_sizes", "shape", "slice_sizes", "limit_indices", "out_sharding", "sharding"))
"""Parameters that are array lengths, not starts of slices."""


def _without_lengths(eqn: ir.JaxprEqn) -> Hashable:
    """Return the programs of a kernel and its index maps, without array lengths."""
    mapping = eqn.params.get("grid_mapping")
    maps = [blocks.index_map_jaxpr.jaxpr for blocks in getattr(mapping, "block_mappings", ()) or ()]
    bodies = (*ir.sub_jaxprs(eqn, opaque=True), *maps)
    return tuple(fingerprint(body, without=_LENGTHS, lengths=False) for body in bodies)


def _callback(eqn: ir.JaxprEqn) -> Hashable:
    wrapper = eqn.params.get("callback")
    static = None
    if eqn.primitive.name == "debug_callback" and inspect.isfunction(wrapper):
        static = inspect.getclosurevars(wrapper).nonlocals.get("static_args")
    return _identity(called_back(eqn), ()), _identity(tuple((static or {}).items()), ())


def _identity(value: Any, enclosing_ids: tuple[int, ...]) -> Hashable:
    """Return a key that is equal for equal functions, numbers and text."""
    if id(value) in enclosing_ids:
        return ("itself", len(enclosing_ids) - enclosing_ids.index(id(value)))
    enclosing_ids = (*enclosing_ids, id(value))
    if isinstance(value, partial):
        parts = (value.func, value.args, tuple(sorted(value.keywords.items())))
        return ("partial", *(_identity(part, enclosing_ids) for part in parts))
    if inspect.isfunction(value):
        captured = tuple(cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell))
        parts = captured, value.__defaults__, tuple(sorted((value.__kwdefaults__ or {}).items()))
        place = value.__code__, value.__code__.co_filename, id(value.__globals__)
        return ("function", place, *(_identity(part, enclosing_ids) for part in parts))
    if inspect.ismethod(value):
        return ("method", _identity(value.__func__, enclosing_ids), id(value.__self__))
    if type(value) is tuple:
        return ("tuple", *(_identity(part, enclosing_ids) for part in value))
    if value is None or type(value) in (bool, int, float, complex, str, bytes):
        return (type(value).__name__, repr(value))
    if isinstance(value, np.generic):
        return (str(value.dtype), value.tobytes())
    return ("object", id(value))


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def _bare(function: Any) -> Any:
    while isinstance(function, partial):
        function = function.func
    return function


def _function_name(function: Any) -> str:
    return str(getattr(function, "__name__", None) or type(function).__name__)


def _definition(function: Any) -> str:
    """Return "name at file:line", or "module.name" without Python code."""
    name = _function_name(function)
    wrapped = getattr(function, "__wrapped__", None)
    objects = (function, wrapped, type(function).__call__)
    code = next(filter(None, (getattr(item, "__code__", None) for item in objects)), None)
    if code is not None:
        return f"{name}{AT}{code.co_filename}:{code.co_firstlineno}"
    module = getattr(function, "__module__", None)
    return f"{module}.{name}" if module else name
