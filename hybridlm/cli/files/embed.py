"""`hybridlm embed`: a vector for every row of a file."""

from pathlib import Path
from typing import Annotated

import typer

from hybridlm.cli.files.row_options import LOADED_WITH, RowOptions, Texts, end
from hybridlm.cli.options import Loading, Model, loads
from hybridlm.scoring.pooling import check_pooling


@loads(*LOADED_WITH)
def embed(
    loading: Loading,
    model: Model,
    input: Texts,
    output: Annotated[
        Path, typer.Argument(metavar="OUTPUT", help=".jsonl or .parquet, in the order of the input: id and embedding.")
    ],
    rows: RowOptions,
    pooling: Annotated[
        str, typer.Option(help="Vector of the last or the first token, or the mean of all: last, first or mean.")
    ] = "last",
    normalised: Annotated[
        bool, typer.Option("--normalised/--as-it-is", help="Divide each vector by its length, or leave it as it is.")
    ] = True,
) -> None:
    """Embed every text of a file.

    An interrupted run continues when it is run again: finished rows are in OUTPUT.parts until all are done. A row that
    cannot be answered gets its id and "error" instead; the exit status is 3 then.
    """
    rows.check(input, output)
    check_pooling(pooling)
    if (lm := loading.leading(model)) is not None:
        end(rows.answered(lm.embed_file, "texts", input, output, pooling=pooling, normalised=normalised))
