"""Reports of `hybridlm verify`: a table row for each step.

With `--target`, steps are compiled for an absent machine.
"""

from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.text import Text

from hybridlm.checkpoint.quantise import Recipe
from hybridlm.cli.options import Loading, console_for_table, table_of
from hybridlm.engine.engine import Engine
from hybridlm.engine.memory import format_bytes
from hybridlm.files.atomic import replacing
from hybridlm.programs.shapes import AnyShape
from hybridlm.progress import counting_progress
from hybridlm.target_report import StepReport, TargetReport, report_on, shapes_of, target_engine
from ir_passes import Certificate
from ir_passes.compile.planned_step import PlannedStep
from ir_passes.jaxpr.collectives import bytes_sent, exchanged
from ir_passes.targets import read_target

Cells = tuple[str | Text, ...]
COMPILED = ("equations", "proved", "audited", "copies", "scratch", "seconds", "checks")
PLANNED = ("equations", "proved", "scratch", "state of a row", "seconds")
EXCHANGES = ("exchanges", "sent by each")
"""Headings of compiled and planned steps, and on a mesh."""


class VerifyReport:
    """Report on steps: proved, compiled and audited, or without weights proved and planned.

    Args:
        out: directory for certificates as JSON, or None.

    Attributes:
        found: certificates or plans of the steps so far.
        exchanged: step -> exchanges between devices, in words.
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
        """Verdict on all steps so far, if no step has a fault."""
        if self.planned:
            return "proved; nothing was compiled, and XLA needs less scratch where it fuses"
        missing = sum(certificate.not_audited is not None for certificate in self.found)
        return f"proved, and {missing} of them NOT AUDITED" if missing else "proved and audited"

    def cells(self, shape: AnyShape) -> Cells:
        """Check a step and return its columns; raises IsolationError or AuditError."""
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
        if not self._over_mesh:
            return ()
        self.exchanged[str(shape)] = exchanged(step.collectives)
        count = sum(collective.times or 0 for collective in step.collectives)
        sent = bytes_sent(step.collectives)
        if sent is None:
            return f"at least {count}", "as loops decide"
        return str(count), format_bytes(sent)


def write_certificate(out: Path, step: str, certificate: Certificate) -> None:
    out.mkdir(parents=True, exist_ok=True)
    with replacing(out / f"{step.replace(' ', '-')}.json") as file:
        file.buffer.write(certificate.to_json().encode())


HEADINGS = (
    "proved", "audited", "copies", "scratch", "kernels", "moves", "x floor", "GFLOP", "at least", "tokens/s",
)  # fmt: skip
"""Column headings; "at least" and "tokens/s", at most, belong to the floor."""


def verify_target(
    target: str,
    loading: Loading,
    *,
    model: str | None,
    config: Path | None,
    recipe: Recipe | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Print the report on a model on a target; exit with status 1 on faults.

    Raises:
        ValueError: contradictory options.
        TargetError: there is no such target, or its compiler is not installed.
    """
    if (model is None) == (config is None):
        raise ValueError(f"--target: expected --model or --config, got {'neither' if model is None else 'both'}")
    if recipe is not None and model is not None:
        raise ValueError("--scheme: --model has its own weights; expected --config")
    machine = read_target(target)
    engine = target_engine(
        machine, loading.config(), model=model, config=config, mesh=loading.mesh_sizes, recipe=recipe
    )
    shapes = shapes_of(engine)
    with counting_progress(None, f"compiling for {machine.name}", len(shapes)) as advance:
        report = report_on(engine, shapes, advance)
    for step in report.steps:
        if out is not None and step.certificate is not None:
            write_certificate(out, step.name, step.certificate)
    if as_json:
        typer.echo(report.to_json(), nl=False)
    else:
        _print(report, console_for_table(130))
    if not report.good:
        raise typer.Exit(1)


def _print(report: TargetReport, console: Console) -> None:
    over = f", mesh {','.join(report.mesh)}" if report.mesh else ""
    title = (
        f"{report.family}, {report.dtype}, on {report.devices} x {report.device}{over}; per device, compiled, not run"
    )
    table = table_of("step", *HEADINGS, title=title, no_wrap=True)
    for step in report.steps:
        table.add_row(step.name, *_cells(step))
    console.print(table)
    for line in () if report.fit is None else report.fit.lines:
        console.print(line)
    for why in dict.fromkeys(step.certificate.not_audited for step in report.steps if step.certificate is not None):
        if why is not None:
            console.print(f"not audited: {why}")
    for step in report.steps:
        if step.uncounted:
            console.print(f"{step.name}: reads of {', '.join(step.uncounted)} are as declared, not counted")
        for kernel in step.spilling:
            numbers = f"{kernel.spilled} bytes of {kernel.registers} registers of each of {kernel.threads} threads"
            console.print(f"{step.name}: {kernel.name} stores {numbers} to memory")
    took = sum(step.certificate.seconds.compile for step in report.steps if step.certificate is not None)
    console.print(f"XLA compiled for {took:.0f} s")
    stored = sum(step.reused for step in report.steps)
    if stored:
        console.print(f"{stored} of {len(report.steps)} steps were compiled by an earlier process")
    for step in report.steps:
        for fault in step.faults:
            typer.echo(f"\n{step.name}: {fault}", err=True)


def _cells(step: StepReport) -> tuple[str | Text, ...]:
    no, yes = Text("NO", "bold red"), Text("yes", "green")
    certificate = step.certificate
    if certificate is None:
        return (Text("NOT COMPILED", "bold red"),)
    audited = yes if not step.faults else no
    if certificate.not_audited is not None:
        audited = Text("none", "yellow")
    floor, seconds, rate = step.floor_moved, step.floor_seconds, step.tokens_per_second
    return (
        yes if certificate.proved else no,
        audited,
        str(len(certificate.copies)),
        format_bytes(step.scratch),
        f"{step.kernels} + {step.repeated}" if step.repeated else str(step.kernels),
        format_bytes(step.moved),
        "" if floor is None else f"{step.moved / floor:.2f}",
        "" if floor is None else f"{step.flops / 1e9:,.3g}",
        "" if seconds is None else f"{seconds * 1000:.3g} ms",
        "" if rate is None else f"{rate:,.0f}",
    )
