"""Commands that answer every row of a file: options that they share, and what they say at the end."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from hybridlm.devices.mesh import read_mesh
from hybridlm.lm import LM
from hybridlm.loading import load
from hybridlm.score_files.score_file import ScoreFileReport

Strict = Annotated[bool, typer.Option("--strict", help="Stop at the first row that cannot be answered.")]
Window = Annotated[int, typer.Option(help="Most rows computed together and kept as a part.")]
Shard = Annotated[
    str | None,
    typer.Option(metavar="I/N", help="Compute shard I of N only, from 0/N; the name of OUTPUT gets the shard."),
]
Restart = Annotated[bool, typer.Option("--restart", help="Delete the parts of an interrupted run and begin again.")]
Texts = Annotated[
    Path,
    typer.Argument(
        metavar="INPUT",
        help=".jsonl or .parquet, whose rows have text or token_ids, and an id, if you like; or .txt, a text per line.",
    ),
]

EXIT_BAD_ROWS = 3
"""Exit status of a run that is complete and has rows with errors."""

Report = TypeVar("Report", bound=ScoreFileReport)


def leading(model: str, **settings: Any) -> LM | None:
    """Load the model of a command; None where this process has followed another one to its end.

    Args:
        model: directory, file or id on the hub.
        **settings: of `hybridlm.load`; the mesh as the option has it.
    """
    lm = load(model, **{**settings, "mesh": read_mesh(settings["mesh"])})
    return None if lm.follow() else lm


def answered(compute: Callable[..., Report], what: str, *arguments: Any, **options: Any) -> Report:
    """Compute a file, and say on standard error what was done.

    Args:
        compute: method of a model that computes files.
        what: plural word for what the rows are.
        *arguments, **options: its own.
    """
    began = time.perf_counter()
    report = compute(*arguments, **options, progress="lines")
    seconds = time.perf_counter() - began
    kept = f"; {report.kept:,} rows were done by an earlier run" if report.kept else ""
    saved = report.prefix_tokens_saved
    shared = f"; {saved:,} tokens of common prefixes were not computed again" if saved else ""
    typer.echo(
        f"{report.output}: {report.texts:,} {what} of {report.tokens:,} tokens in {seconds:.1f} s{kept}{shared} "
        f"(compilation included)",
        err=True,
    )
    if report.errors:
        typer.echo(f"{report.output}: {report.errors:,} rows have an error instead (--strict stops at one)", err=True)
    return report


def end(report: ScoreFileReport) -> None:
    """End a command with the status of its rows."""
    if report.errors:
        raise typer.Exit(EXIT_BAD_ROWS)
