"""`hybridlm classify`: classes or rewards of every row of a file."""

from pathlib import Path
from typing import Annotated

import typer

from hybridlm.cli.files.row_command import RowRun, Texts, end, row_command
from hybridlm.cli.options import Model


@row_command
def classify(
    run: RowRun,
    model: Model,
    input: Texts,
    output: Annotated[
        Path,
        typer.Argument(
            metavar="OUTPUT", help=".jsonl or .parquet, in the order of the input: id, logits, label, probabilities."
        ),
    ],
) -> None:
    """Classify every text of a file, or compute its reward, by the head of the checkpoint (score.weight).

    An interrupted run continues when it is run again: finished rows are in OUTPUT.parts until all are done. A row that
    cannot be answered gets its id and "error" instead; the exit status is 3 then.
    """
    run.check(input, output)
    if (lm := run.leading(model)) is not None:
        end(run.answered(lm.classify_file, "texts", input, output))
