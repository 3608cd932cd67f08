"""Schedules of collectives: of a traced function, of one operation, of a certificate."""

from collections.abc import Callable
from typing import Any

from ir_passes import Certificate
from ir_passes.jaxpr import ir
from ir_passes.jaxpr.collectives import Collective, Scheduled, schedule_hash, schedule_of


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
