"""Declarations that stand in for a proof: row-wise operations and deliberate crossings between lanes."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from ir_passes.jaxpr.retrace import retraced

CROSSING = "declassify:"
"""Prefix of the name that a declassified value carries in the program, followed by the reason."""


@dataclass(frozen=True)
class RowWise:
    """A row-wise jitted function: each row of its results depends only on the same row of its `Lane` arguments.

    Attributes:
        name: of the function.
        inputs, outputs: `Lane(axis)` for arrays of rows, `Shared()` for everything else.
    """

    name: str
    inputs: tuple[Lane | Shared, ...]
    outputs: tuple[Lane | Shared, ...]


_DECLARED: dict[str, RowWise] = {}
_FUNCTIONS: dict[str, list[Callable[..., Any]]] = {}
"""The functions that were declared by one name, file and line, which need not be one function."""


def rowwise(
    op: Callable[..., Any],
    inputs: tuple[Lane | Shared, ...],
    outputs: tuple[Lane | Shared, ...] = (Lane(),),
    static: Sequence[Mapping[str, Any]] = ({},),
) -> None:
    """Declare that a jitted function works on each row by itself; a proof then does not look inside.

    A jaxpr names a called function by name, file and line, which several functions may share. A proof therefore
    compares the body of the call with the trace of this function.

    Args:
        op: a result of `jax.jit`; its arguments are arrays, which are counted in order, and static ones.
        inputs: for each argument, `Lane(axis)` where it is an array of rows, else `Shared()`.
        outputs: the same for the results.
        static: values of the static arguments, by name, in every combination that is declared.

    Raises:
        ValueError: it is declared already, differently.
        TypeError: `op` is not jitted, so that it would not be seen in a program.
    """
    if not hasattr(op, "lower"):
        raise TypeError(f"rowwise needs a function made by jax.jit, got {op!r}: decorate it with @jax.jit")
    key = ir.definition_of(op)
    declaration = RowWise(getattr(op, "__name__", key), tuple(inputs), tuple(outputs))
    if _DECLARED.setdefault(key, declaration) != declaration:
        raise ValueError(f"{key} is declared row-wise already, as {_DECLARED[key]}; got {declaration}")
    _FUNCTIONS.setdefault(key, []).extend(partial(op, **values) for values in static)


def declaration_of(eqn: Any) -> RowWise | None:
    """The declaration of the function that an equation calls."""
    return _DECLARED.get(ir.called_definition(eqn)) if _DECLARED else None


def other_body(eqn: Any, check_vma: bool) -> str | None:
    """Return the difference between a called function and all declared by its name; None if it is one of them.

    Args:
        eqn: a call of a function that is declared by name, file and line.
        check_vma: whether JAX checks along which axes of a mesh values differ, where the equation stands.
    """
    body = ir.body_of(eqn)
    assert body is not None
    if body in _SEEN:
        return None
    why: list[str] = []
    functions, declaration = _FUNCTIONS.get(ir.called_definition(eqn), ()), _DECLARED[ir.called_definition(eqn)]
    # Each as it is first: most calls are under no `jax.vmap`.
    for form in itertools.chain.from_iterable(zip(*(_forms(one, declaration) for one in functions), strict=True)):
        try:
            own = retraced(body, form, check_vma)
        except Exception as error:  # whatever a function does with arguments that it is not made for
            why.append(f"and the one declared cannot be traced with these arguments: {error}")
            continue
        if own is not None and _same(own, body):
            _SEEN.add(body)
            return None
        why.append("with another body than the function declared")
    return why[0]


def _forms(function: Callable[..., Any], declaration: RowWise) -> Iterator[Callable[..., Any]]:
    """Yield a function as it is and under `jax.vmap`: where rows are entries along axis 0, so are those of a batch."""
    yield function
    if any(isinstance(entry, Lane) and entry.axis for entry in (*declaration.inputs, *declaration.outputs)):
        return
    axes = tuple(0 if isinstance(entry, Lane) else None for entry in declaration.inputs)
    for _ in range(_VMAPPED):
        function = jax.vmap(function, in_axes=axes)
        yield function


_VMAPPED = 2
"""Levels of `jax.vmap` that a declared function may be under: over the lanes, and over the tokens of one."""
_SEEN: WeakSet[ir.ClosedJaxpr] = WeakSet()
"""Bodies that were found to be of a declared function."""


def _same(one: ir.ClosedJaxpr, other: ir.ClosedJaxpr) -> bool:
    one, other = ir.without_dead(one), ir.without_dead(other)
    if fingerprint(one) != fingerprint(other):
        return False
    # a fingerprint knows what is called back by name only
    called = [
        [eqn for eqn in ir.all_eqns(each.jaxpr, opaque=True) if "callback" in eqn.params] for each in (one, other)
    ]
    return all(same_body(a, b) for a, b in zip(*called, strict=True))


def declarations() -> tuple[RowWise, ...]:
    """Return all declarations of this process, in the order of names."""
    return tuple(_DECLARED[key] for key in sorted(_DECLARED))


def opaque_of(eqn: ir.JaxprEqn, opaque: Mapping[str, Opaque]) -> tuple[str, Opaque] | None:
    """Name and declaration of the custom call, kernel or callback that an equation is; None if there is none."""
    if eqn.primitive.name not in primitives.OPAQUE:
        return None
    name = declared_name(eqn, opaque)
    return None if name is None else (name, opaque[name])


def declassify(x: Array, reason: str) -> Array:
    """Mark a value that depends on several lanes and is meant to reach all of them.

    Args:
        x: the value, returned as it is.
        reason: one sentence; it stands in the certificate.
    """
    if not reason.strip():
        raise ValueError("declassify needs a reason: one sentence that says why lanes may see each other here")
    return checkpoint_name(x, CROSSING + reason)
