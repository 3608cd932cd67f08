"""Reports of `hybridlm verify`: a table row for each step of an engine, compiled or only planned."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from rich.text import Text

from hybridlm.engine.engine import Engine
from hybridlm.engine.memory import format_bytes
from hybridlm.programs.shapes import AnyShape
from ir_passes import Certificate
from ir_passes.compile.planned_step import PlannedStep

Cells = tuple[str | Text, ...]


class VerifyReport(Protocol):
    """A report on the steps of an engine.

    Attributes:
        headings: of the columns behind those that name the step.
        title: of the table, or None.
        found: certificates or plans of the steps so far.
        summary: true of the steps if none has a fault.
    """

    headings: tuple[str, ...]
    title: str | None

    @property
    def summary(self) -> str: ...

    @property
    def found(self) -> Sequence[Certificate | PlannedStep]: ...

    @property
    def exchanged(self) -> dict[str, tuple[str, ...]]:
        """Name of each step so far -> what devices exchange in it, in words."""
        ...

    def cells(self, shape: AnyShape) -> Cells:
        """Check a step and return its columns; raise IsolationError or AuditError if it is refused."""
        ...


class Exchanges:
    """Columns on what devices exchange in each step; none without a mesh."""

    def __init__(self, engine: Engine):
        over = engine.placement.mesh is not None
        self.headings = ("exchanges", "sent by each") if over else ()
        self.found: dict[str, tuple[str, ...]] = {}

    def cells(self, shape: AnyShape, step: Certificate | PlannedStep) -> Cells:
        """Return the number of collectives of a step, and the bytes that each device sends in all of them."""
        if not self.headings:
            return ()
        self.found[str(shape)] = step.exchanged
        count = sum(one.times or 0 for one in step.collectives)
        if step.sent is None:
            return f"at least {count}", "as loops decide"
        return str(count), format_bytes(step.sent)


class CompiledReport:
    """Report on steps that are proved, compiled and audited.

    Args:
        engine: of a loaded model.
        out: directory for the certificates as JSON, or None.
    """

    title: str | None = None

    def __init__(self, engine: Engine, out: Path | None):
        self._engine, self._out = engine, out
        self._exchanges = Exchanges(engine)
        columns = ("equations", "proved", "audited", "copies", "scratch", "seconds", "checks")
        self.headings: tuple[str, ...] = (*columns, *self._exchanges.headings)

    @property
    def found(self) -> list[Certificate]:
        return list(self._engine.programs.certificates.values())

    @property
    def summary(self) -> str:
        missing = sum(one.not_audited is not None for one in self.found)
        return f"proved, and {missing} of them NOT AUDITED" if missing else "proved and audited"

    def cells(self, shape: AnyShape) -> Cells:
        certificate = self._engine.program(shape).certificate
        if self._out is not None:
            self._out.mkdir(parents=True, exist_ok=True)
            name = f"{str(shape).replace(' ', '-')}.json"
            (self._out / name).write_text(certificate.to_json(), encoding="utf-8")
        seconds, memory = certificate.seconds, certificate.memory
        return (
            str(certificate.equations),
            Text("reused" if certificate.reused else "yes", "green"),
            Text("yes", "green") if certificate.not_audited is None else Text("not audited", "yellow"),
            f"{len(certificate.copies)} ({memory.copied:,} B)" if certificate.copies else "0",
            f"{memory.temp:,} B",
            f"{seconds.compile:.1f}",
            f"{seconds.checking:.0%}",
            *self._exchanges.cells(shape, certificate),
        )

    @property
    def exchanged(self) -> dict[str, tuple[str, ...]]:
        return self._exchanges.found


class PlannedReport:
    """Report on steps without weights, which are proved and planned but not compiled."""

    summary = "proved and planned; nothing was compiled"

    def __init__(self, engine: Engine):
        self._engine = engine
        self.found: list[PlannedStep] = []
        self._exchanges = Exchanges(engine)
        self.headings: tuple[str, ...] = (
            "equations", "proved", "plan", "state of a row", "seconds", *self._exchanges.headings,
        )  # fmt: skip
        numbers, size = engine.parameters_on_a_device
        each = "" if engine.placement.mesh is None else " on each device"
        self.title: str | None = (
            f"{numbers / 1e9:.2f}e9 parameters, {size:,} B{each}; rows of {engine.context} positions"
        )

    def cells(self, shape: AnyShape) -> Cells:
        step = self._engine.planned(shape)
        self.found.append(step)
        return (
            str(step.equations),
            Text("yes", "green"),
            f"{step.plan.size:,} B",
            f"{self._engine.row_bytes_on_a_device:,} B",
            f"{sum(step.seconds.values()):.1f}",
            *self._exchanges.cells(shape, step),
        )

    @property
    def exchanged(self) -> dict[str, tuple[str, ...]]:
        return self._exchanges.found
