"""Report of `hybridlm verify`: a table row for each compiled or planned step."""

from pathlib import Path
from typing import Any

from rich.text import Text

from hybridlm.engine.engine import Engine
from hybridlm.engine.memory import format_bytes
from hybridlm.files.atomic import replacing
from hybridlm.programs.shapes import AnyShape
from ir_passes import Certificate
from ir_passes.compile.planned_step import PlannedStep

Cells = tuple[str | Text, ...]
COMPILED = ("equations", "proved", "audited", "copies", "scratch", "seconds", "checks")
PLANNED = ("equations", "proved", "scratch", "state of a row", "seconds")
EXCHANGES = ("exchanges", "sent by each")
"""Headings of compiled and planned steps, and the last ones over a mesh."""


class VerifyReport:
    """A report on the steps of an engine: proved, compiled and audited, or without weights proved and planned.

    Args:
        engine: engine of the steps.
        planned: the steps are planned, not compiled.
        out: directory for the certificates of compiled steps as JSON, or None.

    Attributes:
        headings: headings of all columns.
        title: title of the table, or None.
        found: certificates or plans of the steps so far.
        exchanged: name of each step so far -> its exchanges between devices, in words; empty without a mesh.
    """

    def __init__(self, engine: Engine, planned: bool = False, out: Path | None = None):
        self._engine, self.planned, self._out = engine, planned, out
        self._over_mesh = engine.placement.mesh is not None
        self.headings = (PLANNED if planned else COMPILED) + EXCHANGES * self._over_mesh
        self.found: list[Any] = []
        self.exchanged: dict[str, tuple[str, ...]] = {}
        self.title: str | None = None
        if planned:
            numbers, size = engine.parameters_on_a_device
            each = " on each device" if self._over_mesh else ""
            self.title = f"{numbers / 1e9:.2f}e9 parameters, {size:,} B{each}; rows of {engine.context} positions"

    @property
    def summary(self) -> str:
        """The verdict on all steps so far, for the last line if no step has a fault."""
        if self.planned:
            return "proved; nothing was compiled, and XLA needs less scratch where it fuses"
        missing = sum(certificate.not_audited is not None for certificate in self.found)
        return f"proved, and {missing} of them NOT AUDITED" if missing else "proved and audited"

    def cells(self, shape: AnyShape) -> Cells:
        """Check a step and return its columns; raise IsolationError or AuditError if it is refused."""
        return self._planned_cells(shape) if self.planned else self._compiled_cells(shape)

    def _compiled_cells(self, shape: AnyShape) -> Cells:
        certificate = self._engine.program(shape).certificate
        self.found.append(certificate)
        if self._out is not None:
            write_certificate(self._out, str(shape), certificate)
        seconds, memory = certificate.seconds, certificate.memory
        return (
            str(certificate.equations),
            Text("reused" if certificate.reused else "yes", "green"),
            Text("yes", "green") if certificate.not_audited is None else Text("not audited", "yellow"),
            f"{len(certificate.copies)} ({memory.copied:,} B)" if certificate.copies else "0",
            f"{memory.temp:,} B",
            f"{seconds.compile:.1f}",
            f"{seconds.checking:.0%}",
            *self._exchanges(shape, certificate),
        )

    def _planned_cells(self, shape: AnyShape) -> Cells:
        step = self._engine.planned(shape)
        self.found.append(step)
        return (
            str(step.equations),
            Text("yes", "green"),
            f"{step.plan.lower_bound:,} B",
            f"{self._engine.row_bytes_on_a_device:,} B",
            f"{sum(step.seconds.values()):.1f}",
            *self._exchanges(shape, step),
        )

    def _exchanges(self, shape: AnyShape, step: Certificate | PlannedStep) -> Cells:
        """Return the number of collectives of a step and their bytes per device."""
        if not self._over_mesh:
            return ()
        self.exchanged[str(shape)] = step.exchanged
        count = sum(collective.times or 0 for collective in step.collectives)
        if step.sent is None:
            return f"at least {count}", "as loops decide"
        return str(count), format_bytes(step.sent)


def write_certificate(out: Path, step: str, certificate: Certificate) -> None:
    """Write a certificate as JSON, named for its step; create the directory."""
    out.mkdir(parents=True, exist_ok=True)
    with replacing(out / f"{step.replace(' ', '-')}.json") as file:
        file.buffer.write(certificate.to_json().encode())
