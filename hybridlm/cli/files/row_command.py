"""Commands that compute values of every row of a file: the options that they share, and what they say at the end."""

import inspect
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Concatenate, ParamSpec, TypeVar

import typer

from hybridlm.cli.options import Adapter, Chunk, Context, Debug, Dtype, Kernels, Lanes, OnMesh, Verbose, reported
from hybridlm.devices.mesh import read_mesh
from hybridlm.lm import LM
from hybridlm.loading import load
from hybridlm.score_files.order import DEFAULT_SORT_WINDOW
from hybridlm.score_files.score_file import DEFAULT_WINDOW, ScoreFileReport

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

EXIT_BAD_ROWS = 3
"""Exit status of a run that is complete and has rows with errors."""

Own = ParamSpec("Own")
Report = TypeVar("Report", bound=ScoreFileReport)


@dataclass(frozen=True)
class RowRun:
    """The options that all these commands have, as they were given.

    Attributes:
        settings: of `hybridlm.load`, the mesh as the option has it.
        options: of every file.
    """

    settings: dict[str, Any]
    options: dict[str, Any]

    def load(self, model: str, **others: Any) -> LM:
        """Load a model; `others` are settings in the place of those given."""
        settings = self.settings | others
        return load(model, **{**settings, "mesh": read_mesh(settings["mesh"])})

    def leading(self, model: str) -> LM | None:
        """Load the model of a command; None where this process has followed another one to its end."""
        lm = self.load(model)
        return None if lm.follow() else lm

    def answered(self, compute: Callable[..., Report], what: str, *arguments: Any, **own: Any) -> Report:
        """Compute a file, and say on standard error what was done.

        Args:
            compute: method of a model that computes files.
            what: plural word for what the rows are.
            *arguments, **own: its own, beside those of every file.
        """
        began = time.perf_counter()
        report = compute(*arguments, **own, **self.options, progress="lines")
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
            typer.echo(
                f"{report.output}: {report.errors:,} rows have an error instead (--strict stops at one)", err=True
            )
        return report


def row_command(command: Callable[Concatenate[RowRun, Own], None]) -> Callable[..., None]:
    """Give a command the options of all commands of this kind, behind its own, as its first argument.

    Its errors are reported as those of all commands.
    """
    own = list(inspect.signature(command).parameters.values())[1:]
    shared = list(inspect.signature(_shared).parameters.values())
    about = [inspect.Parameter("verbose", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Verbose)]
    about += [inspect.Parameter("debug", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Debug)]

    @wraps(command)
    def with_shared(*, verbose: bool, debug: bool, **given: Any) -> None:
        with reported(debug, verbose):
            run = _shared(**{one.name: given.pop(one.name) for one in shared})
            command(run, **given)  # type: ignore[call-arg]

    keywords = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in (*own, *shared)]
    with_shared.__dict__["__signature__"] = inspect.Signature([*keywords, *about])
    return with_shared


def _shared(
    strict: Strict = False,
    window: Window = DEFAULT_WINDOW,
    sort_window: SortWindow = DEFAULT_SORT_WINDOW,
    shard: Shard = None,
    restart: Restart = False,
    lanes: Lanes = 8,
    context: Context = None,
    dtype: Dtype = None,
    chunk: Chunk = None,
    mesh: OnMesh = None,
    kernels: Kernels = None,
    adapter: Adapter = None,
) -> RowRun:
    settings = {
        "lanes": lanes,
        "context": context,
        "dtype": dtype,
        "chunk": chunk,
        "mesh": mesh,
        "kernels": kernels,
        "adapter": adapter,
    }
    options = {"strict": strict, "window": window, "shard": shard, "restart": restart, "sort_window": sort_window}
    return RowRun(settings, options)


def end(report: ScoreFileReport) -> None:
    """End a command with the status of its rows."""
    if report.errors:
        raise typer.Exit(EXIT_BAD_ROWS)
