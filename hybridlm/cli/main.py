"""The command line.

`hybridlm demo | generate | score | decide | classify | embed | divergence | batch | eval | verify | inspect | bench |
quantise | warmup | launch | cache | families`
"""

import os
import sys
from typing import Annotated

import typer

from hybridlm.cli.bench import bench
from hybridlm.cli.demo import demo
from hybridlm.cli.eval import evaluate
from hybridlm.cli.files.commands import batch, classify, decide, divergence, embed, score
from hybridlm.cli.generate import generate
from hybridlm.cli.inspect import inspect
from hybridlm.cli.launch import launch
from hybridlm.cli.listings import cache, list_families, warmup
from hybridlm.cli.quantise import quantise
from hybridlm.cli.signals import EXIT_INTERRUPTED, signals_repeated
from hybridlm.cli.standard_output import standard_output
from hybridlm.cli.verify import verify
from hybridlm.version import __version__

# No markup: messages read the same in a log and may contain brackets.
app = typer.Typer(
    name="hybridlm", no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)  # fmt: skip
app.command()(demo)
app.command()(generate)
app.command()(score)
app.command()(decide)
app.command()(classify)
app.command()(embed)
app.command()(divergence)
app.command()(batch)
app.command("eval")(evaluate)
app.command()(verify)
app.command()(inspect)
app.command()(bench)
app.command()(quantise)
app.command()(warmup)
app.command()(launch)
app.add_typer(cache, name="cache")
app.command("families")(list_families)


def _print_version(version: bool) -> bool:
    if version:
        typer.echo(f"hybridlm {__version__}")
        raise typer.Exit
    return version


@app.callback()
def hybridlm(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Hybrid language models in JAX: many sequences in one step."""


def main() -> None:
    """The console script."""
    try:
        with standard_output(), signals_repeated():
            app(prog_name="hybridlm")
    except SystemExit as end:
        if end.code in EXIT_INTERRUPTED:
            # The interpreter's own end can crash while other threads compile or compute.
            sys.stderr.flush()
            os._exit(int(end.code))
        raise
