"""`hybridlm batch`: answer a file of OpenAI Batch requests."""

import time
from pathlib import Path
from typing import Annotated

import typer

from hybridlm.cli.options import Adapter, Chunk, Context, Debug, Dtype, Lanes, Model, Tune, reported
from hybridlm.loading import load


def batch(
    model: Model,
    input: Annotated[
        Path, typer.Option("--input-file", "-i", help='A request per line: {"custom_id", "method", "url", "body"}.')
    ],
    output: Annotated[
        Path, typer.Option("--output-file", "-o", help="In the order of the input: custom_id, response, error.")
    ],
    lanes: Lanes = 8,
    context: Context = None,
    dtype: Dtype = None,
    chunk: Chunk = None,
    tune: Tune = False,
    adapter: Adapter = None,
    debug: Debug = False,
) -> None:
    """Answer a file of OpenAI Batch requests to /v1/completions and /v1/chat/completions.

    A line that cannot be answered gets an error instead. The output appears when it is complete.
    """
    with reported(debug):
        lm = load(model, lanes=lanes, context=context, dtype=dtype, chunk=chunk, tune=tune, adapter=adapter)
        start = time.perf_counter()
        report = lm.batch_file(input, output)
        seconds = time.perf_counter() - start
        tokens = report.prompt_tokens + report.completion_tokens
        typer.echo(
            f"{output}: {report.responses:,} responses, {report.prompt_tokens:,} tokens read and "
            f"{report.completion_tokens:,} generated in {seconds:.1f} s ({tokens / seconds:,.0f} tokens/s, compilation "
            "included)",
            err=True,
        )
        if report.bad_lines:
            typer.echo(f"{output}: {report.bad_lines:,} lines have an error instead", err=True)
