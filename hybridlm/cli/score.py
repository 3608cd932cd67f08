"""`hybridlm score`: log-probabilities of every row of a file."""

import time
from pathlib import Path
from typing import Annotated

import typer

from hybridlm.cli.options import Adapter, Chunk, Context, Debug, Dtype, Lanes, Model, OnMesh, Tune, Verbose, reported
from hybridlm.devices.mesh import read_mesh
from hybridlm.loading import load
from hybridlm.score_files.score_file import DEFAULT_WINDOW


def score(
    model: Model,
    input: Annotated[
        Path,
        typer.Argument(
            metavar="INPUT",
            help=".jsonl or .parquet; every line or row has an id, if you like, and text, token_ids, prompt and "
            "completion, or messages, whose last answer is scored.",
        ),
    ],
    output: Annotated[
        Path,
        typer.Argument(
            metavar="OUTPUT",
            help=".jsonl or .parquet, in the order of the input: id, token_ids, logprobs (of a text null first), "
            "sum_logprob, perplexity.",
        ),
    ],
    strict: Annotated[bool, typer.Option("--strict", help="Stop at the first row that cannot be scored.")] = False,
    window: Annotated[int, typer.Option(help="Most rows scored together and kept as a part.")] = DEFAULT_WINDOW,
    shard: Annotated[
        str | None,
        typer.Option(metavar="I/N", help="Score shard I of N only, from 0/N; the name of OUTPUT gets the shard."),
    ] = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="Delete the parts of an interrupted run and begin again.")
    ] = False,
    token_ids: Annotated[
        str | None,
        typer.Option(
            metavar="IDS",
            help="Also write the log-probabilities and ranks of these ids at each position: 5,6,7 for all rows, or the "
            "name of the field or column that has them for each row.",
        ),
    ] = None,
    top: Annotated[int, typer.Option(help="Also write this many most likely ids of each position.")] = 0,
    start: Annotated[int | None, typer.Option(help="First token of a text or completion to report on.")] = None,
    temperature: Annotated[float, typer.Option(help="Divides the logits.")] = 1.0,
    entropy: Annotated[bool, typer.Option("--entropy", help="Also write the entropy at each position.")] = False,
    lanes: Lanes = 8,
    context: Context = None,
    dtype: Dtype = None,
    chunk: Chunk = None,
    mesh: OnMesh = None,
    tune: Tune = False,
    verbose: Verbose = False,
    adapter: Adapter = None,
    debug: Debug = False,
) -> None:
    """Write the log-probability of every token of every text of a file.

    An interrupted run continues when it is run again: finished rows are in OUTPUT.parts until all are done. A row that
    cannot be scored gets its id and "error" instead.
    """
    with reported(debug, verbose):
        lm = load(
            model,
            lanes=lanes,
            context=context,
            dtype=dtype,
            chunk=chunk,
            mesh=read_mesh(mesh),
            tune=tune,
            adapter=adapter,
        )
        if lm.follow():
            return
        began = time.perf_counter()
        report = lm.score_file(
            input,
            output,
            strict=strict,
            window=window,
            shard=shard,
            restart=restart,
            progress="lines",
            token_ids=_ids(token_ids),
            top=top,
            start=start,
            temperature=temperature,
            entropy=entropy,
        )
        seconds = time.perf_counter() - began
        kept = f"; {report.kept:,} rows were done by an earlier run" if report.kept else ""
        saved = report.prefix_tokens_saved
        shared = f"; {saved:,} tokens of common prefixes were prefilled once" if saved else ""
        typer.echo(
            f"{report.output}: {report.texts:,} texts of {report.tokens:,} tokens in {seconds:.1f} s{kept}{shared} "
            f"(compilation included)",
            err=True,
        )
        if report.errors:
            typer.echo(
                f"{report.output}: {report.errors:,} rows have an error instead (--strict stops at one)", err=True
            )


def _ids(given: str | None) -> str | list[int] | None:
    """Return token ids, or the name of the field that has them."""
    parts = [] if given is None else given.split(",")
    whole = all(part.strip().removeprefix("-").isdecimal() for part in parts)
    return [int(part) for part in parts] if parts and whole else given
