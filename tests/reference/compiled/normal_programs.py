"""Programs in normal form, without calls: traced, listed and hashed."""

from collections.abc import Callable, Iterator
from typing import Any

from ir_passes.contract.normal_form import flatten
from ir_passes.jaxpr import ir
from ir_passes.jaxpr.fingerprint import fingerprint


def normal_program(fn: Callable[..., Any], *args: Any) -> ir.ClosedJaxpr:
    """Trace a function and inline its calls."""
    return flatten(ir.trace(fn, *args))


def normal_equations(program: ir.ClosedJaxpr) -> Iterator[ir.JaxprEqn]:
    """Yield the equations of a program without its calls, nested ones included."""
    return ir.all_eqns(flatten(program).jaxpr)


def normal_hash(program: ir.ClosedJaxpr) -> str:
    """Return a hash of a program that ignores calls and names."""
    return fingerprint(flatten(program))
