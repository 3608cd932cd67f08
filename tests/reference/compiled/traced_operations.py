"""Operations that JAX traces, also those inside of loops, branches and calls."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from ir_passes.jaxpr import ir


class Operation(NamedTuple):
    """An equation.

    Attributes:
        inputs, outputs: dtypes, "None" of a token.
        source: file and line.
    """

    name: str
    params: dict[str, Any]
    inputs: list[str]
    outputs: list[str]
    source: str


def traced_operations(function: Callable[..., Any], *args: Any) -> list[Operation]:
    """Return every operation of `function(*args)`."""
    return [
        Operation(
            eqn.primitive.name,
            eqn.params,
            [str(ir.dtype_of(atom)) for atom in eqn.invars],
            [str(ir.dtype_of(atom)) for atom in eqn.outvars],
            str(ir.source_of(eqn)),
        )
        for eqn in ir.all_eqns(jax.make_jaxpr(function)(*args).jaxpr)
    ]
