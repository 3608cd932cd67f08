"""`hybridlm divergence`: how far two models are from one another on the texts of a file."""

from pathlib import Path
from typing import Annotated, Any

import typer

from hybridlm.cli.file_command import Restart, Shard, Strict, Texts, Window, answered, end
from hybridlm.cli.options import Chunk, Context, Debug, Dtype, Lanes, Model, Verbose, reported
from hybridlm.loading import load
from hybridlm.score_files.score_file import DEFAULT_WINDOW


def divergence(
    model: Model,
    other: Annotated[
        str, typer.Option("--other", "-o", help="The model to compare with, given as --model is: Q where that is P.")
    ],
    input: Texts,
    output: Annotated[
        Path,
        typer.Argument(
            metavar="OUTPUT",
            help=".jsonl or .parquet, in the order of the input: id, token_ids, kl, reverse_kl, js, same_top, means.",
        ),
    ],
    strict: Strict = False,
    window: Window = DEFAULT_WINDOW,
    shard: Shard = None,
    restart: Restart = False,
    lanes: Lanes = 8,
    context: Context = None,
    dtype: Dtype = None,
    chunk: Chunk = None,
    verbose: Verbose = False,
    debug: Debug = False,
) -> None:
    """Compare the distributions of two models with one tokenizer in the place of every token of a file.

    An interrupted run continues when it is run again: finished rows are in OUTPUT.parts until all are done. A row that
    cannot be compared gets its id and "error" instead; the exit status is 3 then. The means over all tokens are
    printed.
    """
    with reported(debug, verbose):
        settings: dict[str, Any] = {"lanes": lanes, "context": context, "dtype": dtype, "chunk": chunk}
        lm, its = load(model, **settings), load(other, **settings)
        options = {"strict": strict, "window": window, "shard": shard, "restart": restart}
        report = answered(lm.divergence_file, "texts", its, input, output, **options)
        typer.echo(
            f"{report.predicted:,} predicted tokens: KL {report.mean_kl:.6g}, reverse KL {report.mean_reverse_kl:.6g}, "
            f"Jensen-Shannon {report.mean_js:.6g} nats, same most likely token {report.agreement:.2%}"
        )
        end(report)
