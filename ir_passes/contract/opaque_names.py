"""The name of a custom call, kernel or callback, and whether two calls run the same thing.

A name alone may mean several things: kernels have the name of their function, callbacks often none but "<lambda>", and
one target of custom calls does what its attributes say. The exact name tells them apart: "name at file:line" of its
definition for a function, the target with its attributes for a custom call, "format at file:line" of the call for a
print.
"""

import inspect
from collections.abc import Callable, Hashable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from ir_passes.contract.entries import ContractFault, Opaque
from ir_passes.jaxpr import ir, primitives
from ir_passes.jaxpr.bodies import computing_params
from ir_passes.jaxpr.fingerprint import fingerprint

OF_KERNEL = ("jaxpr", "jaxprs", "grid_mapping", "input_output_aliases", "mesh", "meshes", "external_meshes")
"""The parameters of a kernel that say what it computes."""
AT = " at "


def exact_name(eqn: ir.JaxprEqn) -> str:
    """The name that tells an operation from others of the same name; "" where nothing names it."""
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
    """The name of an operation's function or target, or the format of a print; "" where nothing names it."""
    match eqn.primitive.name:
        case "pallas_call" | "mpmd_map":
            return str(eqn.params.get("name") or ", ".join(traced.partition(AT)[0] for traced in _traced(eqn)))
        case "ffi_call":
            return str(eqn.params["target_name"])
        case "debug_print":
            return str(eqn.params["fmt"])
        case _:
            return _function_name(_bare(called_back(eqn)))


def declared_name(eqn: ir.JaxprEqn, opaque: Mapping[str, Opaque]) -> str | None:
    """The name by which an operation is declared, the exact one first; None if it is not.

    In "name at file:line" the file may be given by the last parts of its path alone.
    """
    if not opaque:
        return None
    name, exact = short_name(eqn), exact_name(eqn)
    if exact in opaque:
        return exact
    for key in opaque:
        declared, at, place = key.rpartition(AT)
        if at and declared == name and exact.endswith(f"/{place}"):
            return key
    return name if name in opaque else None


def called_back(eqn: ir.JaxprEqn) -> Callable[..., Any]:
    """The user's function that a callback calls, without what JAX wraps it in."""
    callback = eqn.params["callback"]
    inner = getattr(callback, "callback_func", None)
    if inner is None and eqn.primitive.name == "debug_callback" and inspect.isfunction(callback):
        inner = inspect.getclosurevars(callback).nonlocals.get("callback")
    return callback if inner is None else inner


def same_body(one: ir.JaxprEqn, other: ir.JaxprEqn) -> bool:
    """Whether two operations run the same thing.

    Two calls of a kernel are of one function with a place, and were traced to the same: on operands of equal types to
    the same program, on others to the same but for lengths of arrays. Functions made at one place, as closures are, may
    differ in what they hold, which then stands in the program.
    """
    name = one.primitive.name
    if name != other.primitive.name:
        return False
    if name in primitives.KERNELS:
        if exact_name(one) != exact_name(other):
            return False
        types = [ir.types([*eqn.invars, *eqn.outvars]) for eqn in (one, other)]
        if types[0] == types[1]:
            return _kernel(one) == _kernel(other)
        return AT in exact_name(one) and _without_lengths(one) == _without_lengths(other)
    if name == "ffi_call":
        wanted = ("target_name", "attributes", "legacy_backend_config", "input_output_aliases")
        return all(fingerprint(one.params.get(key)) == fingerprint(other.params.get(key)) for key in wanted)
    if name == "debug_print":
        return all(str(one.params[key]) == str(other.params[key]) for key in ("fmt", "in_tree", "static_args"))
    return _callback(one) == _callback(other)


def operations(jaxpr: ir.Jaxpr) -> Iterator[ir.JaxprEqn]:
    """Every custom call, kernel and callback of a program and of those inside it."""
    return (eqn for eqn in ir.all_eqns(jaxpr) if eqn.primitive.name in primitives.OPAQUE)


def bodies(jaxpr: ir.Jaxpr, opaque: Mapping[str, Opaque]) -> tuple[tuple[str | None, int], ...]:
    """Return for each operation its declared name and the first one that runs the same; no fingerprint holds these."""
    first: list[ir.JaxprEqn] = []
    found = []
    for eqn in operations(jaxpr):
        index = next((k for k, one in enumerate(first) if same_body(one, eqn)), len(first))
        if index == len(first):
            first.append(eqn)
        found.append((declared_name(eqn, opaque), index))
    return tuple(found)


def check_names(opaque: Mapping[str, Opaque], program: ir.ClosedJaxpr) -> None:
    """Raise ContractError if a declaration is for all operations of a primitive, which need not be one.

    Args:
        program: of the step, which is looked at for the names to use instead.
    """
    for name in opaque:
        if name in primitives.OPAQUE:
            found = [exact_name(eqn) for eqn in operations(program.jaxpr) if eqn.primitive.name == name]
            known = ", ".join(repr(one) for one in dict.fromkeys(found)) or "none"
            raise ContractFault.OPAQUE_NAME.error(
                f"opaque {name!r}",
                f"expected the name of a function, target or format, got a primitive's, which is that "
                f"of all its calls; names in this step: {known}",
            )


def _traced(eqn: ir.JaxprEqn) -> tuple[str, ...]:
    """ "name at file:line" of the functions of a kernel, as far as they are known; several cores may run one each."""
    known = (getattr(body.debug_info, "func_src_info", None) for body in ir.sub_jaxprs(eqn, opaque=True))
    return tuple(dict.fromkeys(str(one) for one in known if one and str(one) != "<unknown>"))


def _kernel(eqn: ir.JaxprEqn) -> str:
    return fingerprint(tuple(eqn.params.get(key) for key in OF_KERNEL))


_LENGTHS = frozenset(("new_sizes", "shape", "slice_sizes", "limit_indices", "out_sharding", "sharding"))
"""Parameters of operations that differ with the lengths of arrays alone. Places where a part begins are not."""


def _without_lengths(eqn: ir.JaxprEqn) -> Hashable:
    """The programs of a kernel, those of its index maps included, without lengths of arrays."""
    mapping = eqn.params.get("grid_mapping")
    maps = [one.index_map_jaxpr.jaxpr for one in getattr(mapping, "block_mappings", ()) or ()]
    return tuple(_form(body) for body in (*ir.sub_jaxprs(eqn, opaque=True), *maps))


def _form(jaxpr: ir.Jaxpr) -> Hashable:
    """Operations, their operands by number, parameters and literals."""
    names: dict[ir.Var, int] = {}

    def named(atom: ir.Atom) -> Hashable:
        if isinstance(atom, ir.Literal):
            return "literal", str(ir.dtype_of(atom)), np.asarray(atom.val).tobytes()
        return names.setdefault(atom, len(names))

    def parameter(value: Any) -> Hashable:
        if isinstance(value, ir.ClosedJaxpr):
            return _form(value.jaxpr), tuple(fingerprint(const) for const in value.consts)
        if isinstance(value, ir.Jaxpr):
            return _form(value)
        if type(value) in (tuple, list) and any(isinstance(one, ir.Jaxpr | ir.ClosedJaxpr) for one in value):
            return tuple(parameter(one) for one in value)
        return fingerprint(value)

    inputs = [(named(var), len(ir.shape_of(var)), str(ir.dtype_of(var))) for var in (*jaxpr.constvars, *jaxpr.invars)]
    eqns = [
        (
            eqn.primitive.name,
            tuple(named(atom) for atom in eqn.invars),
            tuple(named(var) for var in eqn.outvars),
            tuple(
                (key, parameter(value)) for key, value in sorted(computing_params(eqn).items()) if key not in _LENGTHS
            ),
        )
        for eqn in jaxpr.eqns
    ]
    return tuple(inputs), tuple(eqns), tuple(named(atom) for atom in jaxpr.outvars)


def _callback(eqn: ir.JaxprEqn) -> Hashable:
    wrapper = eqn.params.get("callback")
    static = None
    if eqn.primitive.name == "debug_callback" and inspect.isfunction(wrapper):
        static = inspect.getclosurevars(wrapper).nonlocals.get("static_args")
    return _identity(called_back(eqn), ()), _identity(tuple((static or {}).items()), ())


def _identity(value: Any, within: tuple[int, ...]) -> Hashable:
    """Equal for values that cannot differ: functions of one code over the same values, numbers and text.

    Args:
        within: functions that hold this value, for those that hold themselves.
    """
    if id(value) in within:
        return ("itself", len(within) - within.index(id(value)))
    within = (*within, id(value))
    if isinstance(value, partial):
        parts = (value.func, value.args, tuple(sorted(value.keywords.items())))
        return ("partial", *(_identity(one, within) for one in parts))
    if inspect.isfunction(value):
        held = tuple(cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell))
        parts = held, value.__defaults__, tuple(sorted((value.__kwdefaults__ or {}).items()))
        place = value.__code__, value.__code__.co_filename, id(value.__globals__)
        return ("function", place, *(_identity(one, within) for one in parts))
    if inspect.ismethod(value):
        return ("method", _identity(value.__func__, within), id(value.__self__))
    if type(value) is tuple:
        return ("tuple", *(_identity(one, within) for one in value))
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
    """A function without the arguments that it was given beforehand."""
    while isinstance(function, partial):
        function = function.func
    return function


def _function_name(function: Any) -> str:
    return str(getattr(function, "__name__", None) or type(function).__name__)


def _definition(function: Any) -> str:
    """ "name at file:line", or with its module what is not written in Python."""
    name = _function_name(function)
    wrapped = getattr(function, "__wrapped__", None)
    written = (function, wrapped, type(function).__call__)
    code = next(filter(None, (getattr(one, "__code__", None) for one in written)), None)
    if code is not None:
        return f"{name}{AT}{code.co_filename}:{code.co_firstlineno}"
    module = getattr(function, "__module__", None)
    return f"{module}.{name}" if module else name
