"""What is declared instead of proved: row-wise operations and deliberate crossings between lanes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jax import Array
from jax.ad_checkpoint import checkpoint_name

from ir_passes import ir
from ir_passes.contract import Lane, Shared

CROSSING = "declassify:"
"""Prefix of the name that a declassified value carries in the program, followed by the reason."""


@dataclass(frozen=True)
class RowWise:
    """A jitted function each row of whose results depends on the same row of its `Lane` arguments only.

    Attributes:
        name: of the function.
        inputs, outputs: `Lane(axis)` for arrays of rows, `Shared()` for everything else.
    """

    name: str
    inputs: tuple[Lane | Shared, ...]
    outputs: tuple[Lane | Shared, ...]


_DECLARED: dict[str, RowWise] = {}


def rowwise(
    op: Callable[..., Any], inputs: tuple[Lane | Shared, ...], outputs: tuple[Lane | Shared, ...] = (Lane(),)
) -> None:
    """Declare that a jitted function works on each row by itself; a proof then does not look inside.

    Args:
        op: what `jax.jit` returned; its flat array arguments and results are counted in order.
        inputs: for each argument, `Lane(axis)` where it is an array of rows, else `Shared()`.
        outputs: the same for the results.

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


def declaration_of(eqn: Any) -> RowWise | None:
    """The declaration of the function that an equation calls."""
    return _DECLARED.get(ir.called_definition(eqn)) if _DECLARED else None


def flatten(program: ir.ClosedJaxpr) -> ir.ClosedJaxpr:
    """A traced program with every call replaced by its body, but for the functions declared row-wise.

    What is proved, rewritten and compiled is this form.
    """
    if all(ir.body_of(eqn) is None or declaration_of(eqn) is not None for eqn in program.jaxpr.eqns):
        return program
    return ir.inline(program, keep=lambda eqn: declaration_of(eqn) is not None)


def declarations() -> tuple[RowWise, ...]:
    """Everything that is declared in this process, in the order of names."""
    return tuple(_DECLARED[key] for key in sorted(_DECLARED))


def declassify(x: Array, reason: str) -> Array:
    """Mark a value that depends on several lanes and is meant to reach all of them.

    Args:
        x: the value, returned as it is.
        reason: one sentence; it stands in the certificate.
    """
    if not reason.strip():
        raise ValueError("declassify needs a reason: one sentence that says why lanes may see each other here")
    return checkpoint_name(x, CROSSING + reason)
