"""`hybridlm score`: log-probabilities of every row of a file."""

from pathlib import Path
from typing import Annotated

import typer

from hybridlm.cli.files.row_command import RowRun, row_command
from hybridlm.cli.options import Model


@row_command
def score(
    run: RowRun,
    model: Model,
    input: Annotated[
        Path,
        typer.Argument(
            metavar="INPUT",
            help=".jsonl or .parquet; every line or row has an id, if you like, and text, token_ids, prompt and "
            "completion, or messages, whose last answer is scored; or .txt, a text per line.",
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
) -> None:
    """Write the log-probability of every token of every text of a file.

    An interrupted run continues when it is run again: finished rows are in OUTPUT.parts until all are done. A row that
    cannot be scored gets its id and "error" instead.
    """
    if (lm := run.leading(model)) is None:
        return
    asked = {"token_ids": _ids(token_ids), "top": top, "start": start, "temperature": temperature, "entropy": entropy}
    run.answered(lm.score_file, "texts", input, output, **asked)


def _ids(given: str | None) -> str | list[int] | None:
    """Return token ids, or the name of the field that has them."""
    parts = [] if given is None else given.split(",")
    whole = all(part.strip().removeprefix("-").isdecimal() for part in parts)
    return [int(part) for part in parts] if parts and whole else given
