"""Reports of `hybridlm verify`: a table row for each compiled or planned step."""

from abc import ABC, abstractmethod
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


class VerifyReport(ABC):
    """A report on the steps of an engine.

    Args:
        engine: engine of the steps.
        columns: headings behind those that name the step; over a mesh two on what devices exchange follow.

    Attributes:
        headings: headings of all columns.
        title: title of the table, or None.
        found: certificates or plans of the steps so far.
        exchanged: name of each step so far -> its exchanges between devices, in words; empty without a mesh.
    """

    title: str | None = None

    def __init__(self, engine: Engine, *columns: str):
        self._engine, self._over_mesh = engine, engine.placement.mesh is not None
        self.headings = (*columns, "exchanges", "sent by each") if self._over_mesh else columns
        self.found: list[Any] = []
        self.exchanged: dict[str, tuple[str, ...]] = {}

    @property
    @abstractmethod
    def summary(self) -> str:
        """The line that is printed if no step has a fault."""

    @abstractmethod
    def cells(self, shape: AnyShape) -> Cells:
        """Check a step and return its columns; raise IsolationError or AuditError if it is refused."""

    def exchanges(self, shape: AnyShape, step: Certificate | PlannedStep) -> Cells:
        """Return the number of collectives of a step and their bytes per device."""
        if not self._over_mesh:
            return ()
        self.exchanged[str(shape)] = step.exchanged
        count = sum(collective.times or 0 for collective in step.collectives)
        if step.sent is None:
            return f"at least {count}", "as loops decide"
        return str(count), format_bytes(step.sent)


class CompiledReport(VerifyReport):
    """Report on steps that are proved, compiled and audited.

    Args:
        engine: engine of a loaded model.
        out: directory for the certificates as JSON, or None.
    """

    def __init__(self, engine: Engine, out: Path | None):
        super().__init__(engine, "equations", "proved", "audited", "copies", "scratch", "seconds", "checks")
        self._out = out

    @property
    def summary(self) -> str:
        """Return the verdict on all steps so far, for the report's last line."""
        missing = sum(report.not_audited is not None for report in self.found)
        return f"proved, and {missing} of them NOT AUDITED" if missing else "proved and audited"

    def cells(self, shape: AnyShape) -> Cells:
        """Compile a step, keep its certificate, and return its row of the table."""
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
            *self.exchanges(shape, certificate),
        )


def write_certificate(out: Path, step: str, certificate: Certificate) -> None:
    """Write a certificate as JSON, named for its step; create the directory."""
    out.mkdir(parents=True, exist_ok=True)
    with replacing(out / f"{step.replace(' ', '-')}.json") as file:
        file.buffer.write(certificate.to_json().encode())


class PlannedReport(VerifyReport):
    """Report on steps without weights: proved and planned, but not compiled."""

    def __init__(self, engine: Engine):
        super().__init__(engine, "equations", "proved", "scratch", "state of a row", "seconds")
        numbers, size = engine.parameters_on_a_device
        each = " on each device" if self._over_mesh else ""
        self.title = f"{numbers / 1e9:.2f}e9 parameters, {size:,} B{each}; rows of {engine.context} positions"

    @property
    def summary(self) -> str:
        """Return the verdict on all steps so far, for the report's last line."""
        return "proved; nothing was compiled, and XLA needs less scratch where it fuses"

    def cells(self, shape: AnyShape) -> Cells:
        """Prove and plan a step without compiling it, and return its row of the table."""
        step = self._engine.planned(shape)
        self.found.append(step)
        return (
            str(step.equations),
            Text("yes", "green"),
            f"{step.plan.lower_bound:,} B",
            f"{self._engine.row_bytes_on_a_device:,} B",
            f"{sum(step.seconds.values()):.1f}",
            *self.exchanges(shape, step),
        )
