"""Traced programs without their calls: equations, hashes and collectives."""

from collections.abc import Callable, Iterator
from typing import Any

import jax

from ir_passes import Certificate
from ir_passes.contract.normal_form import flatten
from ir_passes.jaxpr import ir
from ir_passes.jaxpr.collectives import Collective, Scheduled, schedule_hash, schedule_of
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


def schedule(fn: Callable[..., Any], *args: Any) -> tuple[Scheduled, ...]:
    """Trace a function, inline its calls and list its collectives, in order."""
    return schedule_of(ir.inline(ir.trace(fn, *args)))


def scheduled(
    operation: str,
    members: frozenset[tuple[int, ...]],
    count: int = 8,
    dtype: str = "float32",
    source: str = "a:1",
    constant: bool = False,
) -> Scheduled:
    """Return one collective of `count` numbers of 4 bytes over the axis `model`, with these groups of devices."""
    (devices,) = {len(group) for group in members}
    collective = Collective(operation, ("model",), devices, dtype, 4 * count, 1, source)
    return Scheduled(collective, count, members, constant)


def check_schedule_fingerprint(certificate: Certificate) -> None:
    """Assert that a certificate has the hash of the collectives that it lists."""
    assert certificate.fingerprints.schedule == schedule_hash(certificate.collectives)
