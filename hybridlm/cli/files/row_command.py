"""Commands that compute values of every row of a file: the options that they share, and what they say at the end."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Concatenate, TypeVar

import jax
import typer

from hybridlm.cli.options import Loading, Own, loads
from hybridlm.score_files.order import DEFAULT_SORT_WINDOW
from hybridlm.score_files.score_file import DEFAULT_WINDOW, ScoreFileReport, check_file

Strict = Annotated[bool, typer.Option("--strict", help="Stop at the first row that cannot be answered.")]
Window = Annotated[int, typer.Option(help="Most rows computed together and kept as a part.")]
SortWindow = Annotated[
    int, typer.Option(help="Bytes of consecutive rows that are sorted by their beginnings; 0 sorts nothing.")
]
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

MIN_TOKEN_SHARE = 0.5
"""Share of tokens among the computed places below which the default chunk is advised."""
EXIT_BAD_ROWS = 3
"""Exit status of a run that is complete and has rows with errors."""

Report = TypeVar("Report", bound=ScoreFileReport)


@dataclass(frozen=True)
class RowRun(Loading):
    """The options that all these commands have, as they were given; `together` are those of every file."""

    def check(self, input: Path, output: Path, requests: bool = False) -> None:
        """Check the files and the options before a model is loaded, which may take minutes; see `check_file`.

        Of several processes the first one alone reads and writes files.
        """
        if jax.process_index():
            return
        options = {name: self.together[name] for name in ("window", "shard", "sort_window")}
        check_file(input, output, requests=requests, **options)

    def answered(self, compute: Callable[..., Report], what: str, *arguments: Any, **own: Any) -> Report:
        """Compute a file, and say on standard error what was done.

        Args:
            compute: method of a model that computes files.
            what: plural word for what the rows are.
            *arguments, **own: its own, beside those of every file.
        """
        began = time.perf_counter()
        report = compute(*arguments, **own, **self.together, progress="lines")
        seconds = time.perf_counter() - began
        kept = f"; {report.kept:,} rows were done by an earlier run" if report.kept else ""
        saved = report.prefix_tokens_saved
        shared = f"; {saved:,} tokens of common prefixes were not computed again" if saved else ""
        share = report.token_share
        places = "" if share is None else f"; {share:.0%} of the {report.step_places:,} computed places were tokens"
        typer.echo(
            f"{report.output}: {report.texts:,} {what} of {report.tokens:,} tokens in {seconds:.1f} s{kept}{shared}"
            f"{places} (compilation included)",
            err=True,
        )
        if share is not None and share < MIN_TOKEN_SHARE and self.settings.get("chunk") is not None:
            typer.echo(
                f"{report.output}: more than half of the places were padding: without --chunk short texts have short "
                "steps",
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


def row_command(command: Callable[Concatenate[RowRun, Own], None]) -> Callable[..., None]:
    """Give a command the options of all commands of this kind, behind its own, as its first argument."""

    @wraps(command)
    def with_run(loading: Loading, **given: Any) -> None:
        command(RowRun(loading.settings, loading.together), **given)  # type: ignore[call-arg]  # typer read its own options

    options = {
        "strict": (Strict, False),
        "window": (Window, DEFAULT_WINDOW),
        "sort_window": (SortWindow, DEFAULT_SORT_WINDOW),
        "shard": (Shard, None),
        "restart": (Restart, False),
    }
    return loads("lanes", "context", "dtype", "chunk", "mesh", "kernels", "adapter", together=options)(with_run)


def end(report: ScoreFileReport) -> None:
    """End a command with the status of its rows."""
    if report.errors:
        raise typer.Exit(EXIT_BAD_ROWS)
