"""`hybridlm verify`: prove and audit every step of a model."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hybridlm._all_steps import all_shapes
from hybridlm._cli_options import Chunk, Context, Debug, Dtype, Lanes, Model, console_for_table, reported
from hybridlm._load import load
from hybridlm._programs import CopyShape, Shape
from ir_passes import AuditError, Certificate, IsolationError

HEADINGS = ("step", "lanes", "tokens", "equations", "proved", "audited", "copies", "scratch", "seconds", "checks")


def verify(
    model: Model,
    full: Annotated[
        bool, typer.Option("--full", help="Only the steps of all lanes, not those that few sequences run in.")
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show the equations around each fault, with what the proof knows of them.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Write each certificate as JSON into this directory.")] = None,
    lanes: Lanes = 8,
    context: Context = None,
    dtype: Dtype = None,
    chunk: Chunk = None,
    debug: Debug = False,
) -> None:
    """Prove that no lane of any step reaches another, and audit what XLA makes of it.

    A row per step: generation while prompts are consumed, generation of one token at a time, and scoring. The exit
    status is 1 if one of them fails. "copies" are pool-sized ones, "checks" the time of proof, rewrites and audit as a
    part of XLA's, in seconds.
    """
    with reported(debug):
        lm = load(model, lanes=lanes, context=context, dtype=dtype, chunk=chunk)
        console = console_for_table()
        engine = lm._engine
        table, faults = Table(), list[str]()
        for heading in HEADINGS:
            table.add_column(heading, justify="left" if heading == "step" else "right")
        for shape in all_shapes(engine, full):
            place = _place(shape)
            with console.status(f"{shape}"):
                try:
                    certificate = engine.program(shape).certificate
                except IsolationError as error:
                    faults.append(error.explain() if explain else _described(error))
                    table.add_row(*place, "", Text("NO", "bold red"), "", "", "", "", "")
                    continue
                except AuditError as error:
                    faults.append(_described(error))
                    table.add_row(*place, "", Text("yes", "green"), Text("NO", "bold red"), "", "", "", "")
                    continue
            table.add_row(*place, *_cells(certificate))
            if out is not None:
                out.mkdir(parents=True, exist_ok=True)
                name = f"{str(shape).replace(' ', '-')}.json"
                (out / name).write_text(certificate.to_json(), encoding="utf-8")
        console.print(table)
        _print_statements(console, lm.certificates.values())
        if faults:
            for fault in faults:
                typer.echo(f"\n{fault}", err=True)
            typer.echo(f"\nerror: {len(faults)} of {table.row_count} steps failed", err=True)
            raise typer.Exit(1)
        console.print(Text(f"all {table.row_count} steps are proved and audited"))


def _place(shape: Shape | CopyShape) -> tuple[str, str, str]:
    if isinstance(shape, CopyShape):
        return f"copy from {shape.source}", str(shape.target), ""
    return shape.step, str(shape.lanes), str(shape.tokens)


def _cells(certificate: Certificate) -> tuple[str | Text, ...]:
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


def _print_statements(console: Console, certificates: Iterable[Certificate]) -> None:
    """What the certificates say, each statement once."""
    every = list(certificates)
    for heading in ("proved", "audited", "assumed", "not_covered"):
        lines = dict.fromkeys(line for one in every for line in getattr(one, heading))
        if lines:
            console.print(Text(f"\n{heading.replace('_', ' ')}:"))
        for line in lines:
            console.print(Text(f"  {line}"))


def _described(error: Exception) -> str:
    return "\n".join((str(error), *getattr(error, "__notes__", ())))
