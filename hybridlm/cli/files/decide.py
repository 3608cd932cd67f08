"""`hybridlm decide`: typed questions of every line of a file, answered with a probability for every option."""

from pathlib import Path
from typing import Annotated

import typer

from hybridlm.cli.files.row_options import LOADED_WITH, RowOptions, end
from hybridlm.cli.options import Loading, Model, loads


@loads(*LOADED_WITH)
def decide(
    loading: Loading,
    model: Model,
    input: Annotated[
        Path,
        typer.Argument(
            metavar="INPUT", help=".jsonl; every line has state, questions, and an id, if you like (docs/scoring.md)."
        ),
    ],
    output: Annotated[
        Path, typer.Argument(metavar="OUTPUT", help=".jsonl, in the order of the input: id and answers.")
    ],
    rows: RowOptions,
) -> None:
    """Answer typed questions about a state, of every line of a file, without generating a token.

    An interrupted run continues when it is run again: finished rows are in OUTPUT.parts until all are done. A row that
    cannot be answered gets its id and "error" instead; the exit status is 3 then.
    """
    rows.check(input, output, requests=True)
    if (lm := loading.leading(model)) is not None:
        end(rows.answered(lm.decide_file, "requests", input, output))
