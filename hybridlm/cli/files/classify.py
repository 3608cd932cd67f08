"""`hybridlm classify`: classes or rewards of every row of a file."""

from pathlib import Path
from typing import Annotated

import typer

from hybridlm.cli.files.row_options import LOADED_WITH, RowOptions, Texts, end
from hybridlm.cli.options import Loading, Model, loads


@loads(*LOADED_WITH)
def classify(
    loading: Loading,
    model: Model,
    input: Texts,
    output: Annotated[
        Path,
        typer.Argument(
            metavar="OUTPUT", help=".jsonl or .parquet, in the order of the input: id, logits, label, probabilities."
        ),
    ],
    rows: RowOptions,
) -> None:
    """Classify every text of a file, or compute its reward, by the head of the checkpoint (score.weight).

    An interrupted run continues when it is run again: finished rows are in OUTPUT.parts until all are done. A row that
    cannot be answered gets its id and "error" instead; the exit status is 3 then.
    """
    rows.check(input, output)
    if (lm := loading.leading(model)) is not None:
        end(rows.answered(lm.classify_file, "texts", input, output))
