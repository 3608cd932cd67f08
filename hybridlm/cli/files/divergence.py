"""`hybridlm divergence`: how far two models are from one another on the texts of a file."""

from pathlib import Path
from typing import Annotated

import typer

from hybridlm.cli.files.row_options import LOADED_WITH, RowOptions, Texts, end
from hybridlm.cli.options import Loading, Model, loads


@loads(*LOADED_WITH)
def divergence(
    loading: Loading,
    model: Model,
    other: Annotated[
        str,
        typer.Option(
            "--other",
            "-o",
            help="The model to compare with, given as --model is: Q where that is P. --adapter is not for it.",
        ),
    ],
    input: Texts,
    output: Annotated[
        Path,
        typer.Argument(
            metavar="OUTPUT",
            help=".jsonl or .parquet, in the order of the input: id, token_ids, kl, reverse_kl, js, same_top, means.",
        ),
    ],
    rows: RowOptions,
) -> None:
    """Compare the distributions of two models with one tokenizer in the place of every token of a file.

    An interrupted run continues when it is run again: finished rows are in OUTPUT.parts until all are done. A row that
    cannot be compared gets its id and "error" instead; the exit status is 3 then. The means over all tokens are
    printed.
    """
    rows.check(input, output)
    lm, reference = loading.load(model), loading.load(other, adapter=None)
    report = rows.answered(lm.divergence_file, "texts", reference, input, output)
    means = "no means, they need a text of two tokens"
    if report.predicted:
        means = (
            f"KL {report.mean_kl:.6g}, reverse KL {report.mean_reverse_kl:.6g}, Jensen-Shannon {report.mean_js:.6g} "
            f"nats, same most likely token {report.agreement:.2%}"
        )
    typer.echo(f"{report.predicted:,} predicted tokens: {means}")
    end(report)
