"""`hybridlm batch`: answer a file of OpenAI Batch requests."""

import time
from pathlib import Path
from typing import Annotated

import typer

from hybridlm.cli.files.row_options import Restart, SortWindow
from hybridlm.cli.options import Loading, Model, loads
from hybridlm.openai_batch.batch_file import check_batch_file
from hybridlm.score_files.order import DEFAULT_SORT_WINDOW

DEFAULT_PREFIX_CACHE = "512MB"
"""Lines that begin alike are answered together, so that some states are enough."""
EXIT_BAD_LINES = 3
"""Exit status of a run that is complete and has lines with errors."""


@loads(prefix_cache=DEFAULT_PREFIX_CACHE)
def batch(
    loading: Loading,
    model: Model,
    input: Annotated[
        Path, typer.Option("--input-file", "-i", help='A request per line: {"custom_id", "method", "url", "body"}.')
    ],
    output: Annotated[
        Path, typer.Option("--output-file", "-o", help="In the order of the input: custom_id, response, error.")
    ],
    restart: Restart = False,
    sort_window: SortWindow = DEFAULT_SORT_WINDOW,
) -> None:
    """Answer a file of OpenAI Batch requests to /v1/completions and /v1/chat/completions.

    A line that cannot be answered gets an error instead; the exit status is 3 then. An interrupted run continues when
    it is run again: answered lines are in OUTPUT.parts until all are done.
    """
    check_batch_file(input, output, sort_window)
    lm = loading.load(model)
    start = time.perf_counter()
    report = lm.batch_file(input, output, restart=restart, sort_window=sort_window, progress="lines")
    seconds = time.perf_counter() - start
    tokens = report.prompt_tokens + report.completion_tokens
    kept = f" ({report.kept:,} lines were done by an earlier run)" if report.kept else ""
    saved = report.prefix_tokens_saved
    shared = f" ({saved:,} of common prefixes not again)" if saved else ""
    typer.echo(
        f"{output}: {report.responses:,} responses{kept}, {report.prompt_tokens:,} tokens read{shared} and "
        f"{report.completion_tokens:,} generated in {seconds:.1f} s ({tokens / seconds:,.0f} tokens/s, compilation "
        "included)",
        err=True,
    )
    if report.bad_lines:
        total = report.responses + report.bad_lines
        typer.echo(f"{output}: {report.bad_lines:,} of {total:,} lines have an error instead, such as", err=True)
        for error in report.first_errors:
            typer.echo(f"  {error}", err=True)
        raise typer.Exit(EXIT_BAD_LINES)
