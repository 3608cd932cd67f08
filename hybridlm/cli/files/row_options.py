"""Options and report of commands for the rows of a file."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import jax
import typer

from hybridlm.engine.config import STEP_OPTIONS
from hybridlm.score_files.order import DEFAULT_SORT_WINDOW
from hybridlm.score_files.score_file import DEFAULT_WINDOW, ScoreFileReport, check_file

SortWindow = Annotated[
    int, typer.Option(help="Bytes of consecutive rows that are sorted by their beginnings; 0 sorts nothing.")
]
Restart = Annotated[bool, typer.Option("--restart", help="Delete the parts of an interrupted run and begin again.")]
Texts = Annotated[
    Path,
    typer.Argument(
        metavar="INPUT",
        help=".jsonl or .parquet, whose rows have text or token_ids, and an id, if you like; or .txt, a text per line.",
    ),
]

LOADED_WITH = (*STEP_OPTIONS, "adapter")
"""Options of `hybridlm.load` that these commands have."""
EXIT_BAD_ROWS = 3
"""Exit status of a run that is complete and has rows with errors."""

Report = TypeVar("Report", bound=ScoreFileReport)


@dataclass(frozen=True)
class RowOptions:
    """Options of every command for the rows of a file; see `FileOptions`."""

    strict: Annotated[bool, typer.Option("--strict", help="Stop at the first row that cannot be answered.")] = False
    window: Annotated[int, typer.Option(help="Most rows computed together and kept as a part.")] = DEFAULT_WINDOW
    sort_window: SortWindow = DEFAULT_SORT_WINDOW
    shard: Annotated[
        str | None,
        typer.Option(metavar="I/N", help="Compute shard I of N only, from 0/N; the name of OUTPUT gets the shard."),
    ] = None
    restart: Restart = False

    def check(self, input: Path, output: Path, requests: bool = False) -> None:
        """Check the files and the options, before a model is loaded; see `check_file`.

        Of several processes the first one alone reads and writes files.
        """
        if not jax.process_index():
            limits = {name: value for name, value in asdict(self).items() if name in ("window", "shard", "sort_window")}
            check_file(input, output, requests=requests, **limits)

    def answered(self, compute: Callable[..., Report], items: str, *arguments: Any, **options: Any) -> Report:
        """Compute a file, and report on standard error.

        Args:
            compute: method of a model that computes files.
            items: plural word for the rows.
            *arguments, **options: arguments of the method in addition to these options.
        """
        began = time.perf_counter()
        report = compute(*arguments, **options, **asdict(self), progress="lines")
        seconds = time.perf_counter() - began
        kept = f"; {report.kept:,} rows were done by an earlier run" if report.kept else ""
        saved = report.prefix_tokens_saved
        shared = f"; {saved:,} tokens of common prefixes were not computed again" if saved else ""
        share = report.token_share
        places = "" if share is None else f"; {share:.0%} of the {report.step_places:,} computed places were tokens"
        typer.echo(
            f"{report.output}: {report.texts:,} {items} of {report.tokens:,} tokens in {seconds:.1f} s{kept}{shared}"
            f"{places} (compilation included)",
            err=True,
        )
        if report.shifted:
            typer.echo(
                f"{report.output}: {report.shifted:,} completions are scored from within the prompt, because a token "
                "spans both (boundary_shift)",
                err=True,
            )
        if report.errors:
            typer.echo(
                f"{report.output}: {report.errors:,} rows have an error instead (--strict stops at one)", err=True
            )
        return report


def end(report: ScoreFileReport) -> None:
    """End a command with the status of its rows."""
    if report.errors:
        raise typer.Exit(EXIT_BAD_ROWS)
