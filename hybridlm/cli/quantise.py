"""`hybridlm quantise`: a quantised copy of a checkpoint, for this library and for others."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from hybridlm.checkpoint import resolve
from hybridlm.checkpoint.quantise import quantise_checkpoint
from hybridlm.cli.options import Debug, reported
from hybridlm.progress import load_progress

Scheme = Literal["fp8-block", "int8", "int4", "nvfp4"]
"""Codes and scales of the weights."""
GroupSize = Annotated[
    int | None,
    typer.Option(help="Columns that share a scale, of integers.", show_default="128 for int4, a row for int8"),
]
Mixers = Annotated[
    bool, typer.Option("--mixers", help="With 4 bits, quantise attention, linear attention and Mamba, too.")
]
Head = Annotated[
    bool, typer.Option("--head", help="Quantise the head and the embedding, too; in 8 bits with every scheme.")
]


def quantise(
    source: Annotated[str, typer.Argument(metavar="IN", help="Checkpoint directory, or the id of a model on the Hub.")],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="Directory to create.")],
    scheme: Annotated[Scheme, typer.Option(help="How weights are stored (docs/quantised.md).")],
    group_size: GroupSize = None,
    mixers: Mixers = False,
    head: Head = False,
    debug: Debug = False,
) -> None:
    """Write a checkpoint with quantised weights, rounded to nearest, as compressed-tensors.

    The most sensitive matrices stay unchanged. Weights are read and written tensor by tensor.
    """
    with reported(debug), load_progress(None) as progress:
        report = quantise_checkpoint(
            resolve(source), target, scheme=scheme, group_size=group_size, mixers=mixers, head=head, progress=progress
        )
        if report.ragged:
            typer.echo(f"{len(report.ragged)} tensors stay plain: groups do not divide their rows ({report.ragged[0]})")
        typer.echo(
            f"{target}: {report.quantised} matrices quantised, {report.bytes_before / 1e6:,.1f} MB became "
            f"{report.bytes_after / 1e6:,.1f} MB"
        )
