"""`hybridlm embed`: a vector for every row of a file."""

from pathlib import Path
from typing import Annotated

import typer

from hybridlm.cli.file_command import Restart, Shard, Strict, Texts, Window, answered, end, leading
from hybridlm.cli.options import Adapter, Chunk, Context, Debug, Dtype, Lanes, Model, OnMesh, Tune, Verbose, reported
from hybridlm.score_files.score_file import DEFAULT_WINDOW


def embed(
    model: Model,
    input: Texts,
    output: Annotated[
        Path, typer.Argument(metavar="OUTPUT", help=".jsonl or .parquet, in the order of the input: id and embedding.")
    ],
    pooling: Annotated[
        str, typer.Option(help="Vector of the last or the first token, or the mean of all: last, first or mean.")
    ] = "last",
    normalised: Annotated[
        bool, typer.Option("--normalised/--as-it-is", help="Divide each vector by its length, or leave it as it is.")
    ] = True,
    strict: Strict = False,
    window: Window = DEFAULT_WINDOW,
    shard: Shard = None,
    restart: Restart = False,
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
    """Embed every text of a file.

    An interrupted run continues when it is run again: finished rows are in OUTPUT.parts until all are done. A row that
    cannot be answered gets its id and "error" instead; the exit status is 3 then.
    """
    with reported(debug, verbose):
        lm = leading(
            model, lanes=lanes, context=context, dtype=dtype, chunk=chunk, mesh=mesh, tune=tune, adapter=adapter
        )
        if lm is None:
            return
        options = {"strict": strict, "window": window, "shard": shard, "restart": restart}
        end(answered(lm.embed_file, "texts", input, output, pooling=pooling, normalised=normalised, **options))
