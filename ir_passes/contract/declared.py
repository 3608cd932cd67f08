"""Declarations that replace a proof: row-wise functions and declassified values."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakSet

import jax
from jax import Array
from jax.ad_checkpoint import checkpoint_name

from ir_passes.contract.contract import Lane, Opaque, Shared
from ir_passes.contract.opaque_names import declared_name, same_body
from ir_passes.jaxpr import ir, primitives
from ir_passes.jaxpr.fingerprint import fingerprint

CROSSING = "declassify:"
"""Prefix of a declassified value's `checkpoint_name`, before the reason."""


@dataclass(frozen=True)
class RowWise:
    """A jitted function with each result row depending on one row of the `Lane` arguments.

    Attributes:
        inputs, outputs: `Lane(axis)` for arrays of rows, `Shared()` for everything else.
    """

    name: str
    inputs: tuple[Lane | Shared, ...]
    outputs: tuple[Lane | Shared, ...]


_DECLARED: dict[str, RowWise] = {}
_FUNCTIONS: dict[str, list[Callable[..., Any]]] = {}
"""Declared functions by "name at file:line", which several functions may share."""


def rowwise(
    op: Callable[..., Any],
    inputs: tuple[Lane | Shared, ...],
    outputs: tuple[Lane | Shared, ...] = (Lane(),),
    static: Sequence[Mapping[str, Any]] = ({},),
) -> None:
    """Declare that a jitted function is row-wise; a proof then skips its body.

    A jaxpr names a called function by name, file and line, which several functions may share. So a proof compares the
    body of the call with the trace of this function.

    Args:
        op: a result of `jax.jit`.
        inputs: for each array argument, `Lane(axis)` for an array of rows, else `Shared()`.
        outputs: the same for the results. A shared result of a call with lanes counts as a value of several lanes.
        static: values of the static arguments by name, for each declared combination.

    Raises:
        ValueError: it has another declaration.
        TypeError: `op` is not jitted, so a program has no call of it.
    """
    if not hasattr(op, "lower"):
        raise TypeError(f"rowwise needs a function made by jax.jit, got {op!r}: decorate it with @jax.jit")
    key = ir.definition_of(op)
    declaration = RowWise(getattr(op, "__name__", key), tuple(inputs), tuple(outputs))
    if _DECLARED.setdefault(key, declaration) != declaration:
        raise ValueError(f"{key} is declared row-wise already, as {_DECLARED[key]}; got {declaration}")
    _FUNCTIONS.setdefault(key, []).extend(partial(op, **values) for values in static)


def declaration_of(eqn: Any) -> RowWise | None:
    return _DECLARED.get(ir.called_definition(eqn)) if _DECLARED else None


def has_declared_body(eqn: Any, check_vma: bool) -> bool:
    """True if a called function is the declared function."""
    body = ir.body_of(eqn)
    assert body is not None
    if body in _SEEN:
        return True
    functions, declaration = _FUNCTIONS.get(ir.called_definition(eqn), ()), _DECLARED[ir.called_definition(eqn)]
    # most calls are without `jax.vmap`
    forms = zip(*(_forms(function, declaration) for function in functions), strict=True)
    for form in itertools.chain.from_iterable(forms):
        with suppress(Exception):  # the function may raise anything for foreign arguments
            declared = retraced(body, form, check_vma)
            if declared is not None and _same(declared, body):
                _SEEN.add(body)
                return True
    return False


def _forms(function: Callable[..., Any], declaration: RowWise) -> Iterator[Callable[..., Any]]:
    """Yield a function, then its vmapped forms if its rows are along axis 0."""
    yield function
    if any(isinstance(entry, Lane) and entry.axis for entry in (*declaration.inputs, *declaration.outputs)):
        return
    axes = tuple(0 if isinstance(entry, Lane) else None for entry in declaration.inputs)
    for _ in range(_VMAPPED):
        function = jax.vmap(function, in_axes=axes)
        yield function


_VMAPPED = 2
"""Levels of `jax.vmap` around a declared function: over lanes, then tokens."""
_SEEN: WeakSet[ir.ClosedJaxpr] = WeakSet()
"""Bodies that equal a declared function's."""


def _same(first: ir.ClosedJaxpr, second: ir.ClosedJaxpr) -> bool:
    first, second = ir.without_dead(first), ir.without_dead(second)
    if fingerprint(first) != fingerprint(second):
        return False
    # a fingerprint has only the names of callbacks
    calls = [
        [eqn for eqn in ir.all_eqns(program.jaxpr, opaque=True) if "callback" in eqn.params]
        for program in (first, second)
    ]
    return all(same_body(a, b) for a, b in zip(*calls, strict=True))


def declarations() -> tuple[RowWise, ...]:
    return tuple(_DECLARED[key] for key in sorted(_DECLARED))


def opaque_of(eqn: ir.JaxprEqn, opaque: Mapping[str, Opaque]) -> tuple[str, Opaque] | None:
    """Return name and declaration of a custom call, kernel or callback, or None."""
    if eqn.primitive.name not in primitives.OPAQUE:
        return None
    name = declared_name(eqn, opaque)
    return None if name is None else (name, opaque[name])


def declassify(x: Array, reason: str) -> Array:
    """Return a value of several lanes unchanged, marked as intended for all lanes.

    Args:
        reason: one sentence, for the certificate.
    """
    if not reason.strip():
        raise ValueError("declassify needs a reason: one sentence that says why lanes may see each other here")
    return checkpoint_name(x, CROSSING + reason)


def retraced(body: ir.ClosedJaxpr, function: Callable[..., Any], check_vma: bool) -> ir.ClosedJaxpr | None:
    """Trace a jitted function with a call's types and mesh; None if no single call."""
    avals = [var.aval for var in body.jaxpr.invars]
    programs: list[ir.ClosedJaxpr] = []

    def trace() -> tuple[()]:
        programs.append(jax.make_jaxpr(function)(*avals))
        return ()

    meshes = [aval.sharding.mesh for aval in avals if not aval.sharding.mesh.empty]
    manual = set(meshes[0].manual_axes) if meshes else set()
    if manual:
        # a mesh without manual axes, so that a shard_map can make them manual
        mesh = meshes[0].update_axis_types(dict.fromkeys(manual, jax.sharding.AxisType.Auto))
        context = jax.shard_map(trace, mesh=mesh, in_specs=(), out_specs=(), axis_names=manual, check_vma=check_vma)
        jax.eval_shape(context)
    else:
        trace()
    (program,) = programs
    return ir.body_of(program.eqns[0]) if len(program.eqns) == 1 else None
