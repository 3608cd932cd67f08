"""The rows of `hybridlm verify`: what is found out about each step of an engine, compiled or only planned."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from rich.text import Text

from hybridlm._engine import Engine
from hybridlm._programs import AnyShape
from ir_passes import Certificate, PlannedStep

Cells = tuple[str | Text, ...]


class Verified(Protocol):
    """One way to look at the steps of an engine.

    Attributes:
        headings: of the columns behind those that name the step.
        title: of the table; None for none.
        found: what is known of the steps looked at so far.
        summary: what holds if no step has a fault.
    """

    headings: tuple[str, ...]
    title: str | None
    summary: str

    @property
    def found(self) -> Sequence[Certificate | PlannedStep]: ...

    def cells(self, shape: AnyShape) -> Cells:
        """The columns of one step; raises IsolationError or AuditError if it is refused."""
        ...


class Compiled:
    """Steps as they are run: proved, compiled and audited.

    Args:
        engine: of a loaded model.
        out: directory for the certificates as JSON, None for nowhere.
    """

    headings: tuple[str, ...] = ("equations", "proved", "audited", "copies", "scratch", "seconds", "checks")
    title: str | None = None
    summary = "proved and audited"

    def __init__(self, engine: Engine, out: Path | None):
        self._engine, self._out = engine, out

    @property
    def found(self) -> list[Certificate]:
        return list(self._engine.programs.certificates.values())

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
            Text("yes", "green"),
            f"{len(certificate.copies)} ({memory.copied:,} B)" if certificate.copies else "0",
            f"{memory.temp:,} B",
            f"{seconds.compile:.1f}",
            f"{seconds.checking:.0%}",
        )


class Planned:
    """Steps whose weights are shapes: proved and planned, and never compiled."""

    headings: tuple[str, ...] = ("equations", "proved", "plan", "state of a row", "seconds")
    summary = "proved and planned; nothing was compiled"

    def __init__(self, engine: Engine):
        self._engine = engine
        self.found: list[PlannedStep] = []
        numbers = sum(param.size for param in engine.params)
        size = sum(param.size * param.dtype.itemsize for param in engine.params)
        self.title: str | None = f"{numbers / 1e9:.2f}e9 parameters, {size:,} B; rows of {engine.context} positions"

    def cells(self, shape: AnyShape) -> Cells:
        step = self._engine.planned(shape)
        self.found.append(step)
        return (
            str(step.equations),
            Text("yes", "green"),
            f"{step.plan.size:,} B",
            f"{self._engine.kind.row_bytes:,} B",
            f"{sum(step.seconds.values()):.1f}",
        )
