"""Programs in normal form, without calls: traced, listed and hashed."""

from collections.abc import Callable, Iterator
from typing import Any

import jax

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


def hashes_of_traces(function: Callable[..., Any], *args: Any) -> list[set[str]]:
    """Return fingerprints of two traces, as traced and after JAX's dead-code passes."""
    traced, live = set(), set()
    for _ in range(2):
        program = jax.make_jaxpr(lambda *args: function(*args))(*args)
        traced.add(fingerprint(program))
        for _ in range(3):
            program = ir.without_dead(program)
            live.add(fingerprint(program))
    return [traced, live]
