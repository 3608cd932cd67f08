"""Adapter to JAX's private conversion of mutable arrays. A proof trusts it."""

import importlib
from typing import Any

import jax

from ir_passes.jaxpr.refused import MUTABLE


def without_refs(program: Any) -> Any:
    """Replace mutable arrays (`jax.new_ref`) by values, as JAX does before compilation.

    Raises:
        TypeError: a mutable argument or captured array.
    """
    avals = [*program.in_avals, *(jax.typeof(const) for const in program.consts)]
    if any(type(aval).__name__ == "AbstractRef" for aval in avals):
        raise TypeError(MUTABLE)
    if all(type(effect).__name__ != "InternalMutableArrayEffect" for effect in program.effects):
        return program
    return importlib.import_module("jax._src.state.discharge").discharge_state(program)
