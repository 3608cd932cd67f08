"""`hybridlm score`: log-probabilities of every line of a file."""

import time
from pathlib import Path
from typing import Annotated

import typer

from hybridlm._cli_options import Chunk, Context, Debug, Dtype, Lanes, Model, reported
from hybridlm._load import load


def score(
    model: Model,
    input: Annotated[
        Path,
        typer.Argument(metavar="INPUT.jsonl", help='A JSON object per line: {"id", "text"} or {"id", "token_ids"}.'),
    ],
    output: Annotated[
        Path,
        typer.Argument(
            metavar="OUTPUT.jsonl",
            help="In the order of the input: id, token_ids, logprobs (null first), sum_logprob, perplexity.",
        ),
    ],
    strict: Annotated[bool, typer.Option("--strict", help="Stop at the first bad line; nothing is written.")] = False,
    lanes: Lanes = 8,
    context: Context = None,
    dtype: Dtype = None,
    chunk: Chunk = None,
    debug: Debug = False,
) -> None:
    """Log-probability of every token of every text of a file.

    A bad line becomes a row with its id, where it has one, and "error". OUTPUT appears when everything is written.
    """
    with reported(debug):
        lm = load(model, lanes=lanes, context=context, dtype=dtype, chunk=chunk)
        start = time.perf_counter()
        report = lm.score_file(input, output, strict=strict)
        seconds = time.perf_counter() - start
        typer.echo(
            f"{output}: {report.texts:,} texts of {report.tokens:,} tokens in {seconds:.1f} s "
            f"({report.tokens / seconds:,.0f} tokens/s, compilation included)",
            err=True,
        )
        if report.bad_lines:
            typer.echo(f"{output}: {report.bad_lines:,} rows have an error instead (--strict stops at one)", err=True)
