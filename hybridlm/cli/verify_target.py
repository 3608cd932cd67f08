"""`hybridlm verify --target`: steps compiled for an absent machine, and their memory."""

from pathlib import Path

import typer
from rich.console import Console
from rich.text import Text

from hybridlm.checkpoint.quantise import Recipe
from hybridlm.cli.options import Loading, console_for_table, table_of
from hybridlm.cli.verify_report import write_certificate
from hybridlm.engine.memory import format_bytes
from hybridlm.progress import counting_progress
from hybridlm.target_report import StepReport, TargetReport, report_on, shapes_of, target_engine
from ir_passes.targets import read_target

HEADINGS = (
    "proved", "audited", "copies", "scratch", "kernels", "moves", "x floor", "GFLOP", "at least", "tokens/s <=",
)  # fmt: skip
"""Headings of the columns; times and tokens/s belong to the floor."""


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

    Args:
        target: name, with a number of devices behind a colon.
        loading: options of the engine.
        model, config, recipe: as of `hybridlm verify`.
        out: directory for the certificates, or None.
        as_json: print the whole report as JSON.

    Raises:
        ValueError: options that contradict each other.
        TargetError: there is no such target, or its compiler is not installed.
    """
    if (model is None) == (config is None):
        raise ValueError(f"--target: expected --model or --config, got {'neither' if model is None else 'both'}")
    if recipe is not None and model is not None:
        raise ValueError("--scheme: the weights of --model are what they are; expected --config")
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
        console.print(Text(line))
    for why in dict.fromkeys(step.certificate.not_audited for step in report.steps if step.certificate is not None):
        if why is not None:
            console.print(Text(f"not audited: {why}"))
    for step in report.steps:
        if step.uncounted:
            console.print(Text(f"{step.name}: reads of {', '.join(step.uncounted)} are as declared, not counted"))
    took = sum(step.certificate.seconds.compile for step in report.steps if step.certificate is not None)
    console.print(Text(f"XLA compiled for {took:.0f} s"))
    stored = sum(step.reused for step in report.steps)
    if stored:
        console.print(Text(f"{stored} of {len(report.steps)} steps were compiled by an earlier process"))
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
        "" if seconds is None else _milliseconds(seconds),
        "" if rate is None else f"{rate:,.0f}",
    )


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms"
