"""The command line: `hybridlm demo | generate | score | batch | eval | verify | inspect | bench | launch`."""

from typing import Annotated

import typer

from hybridlm import __version__
from hybridlm._cli_batch import batch
from hybridlm._cli_bench import bench
from hybridlm._cli_demo import demo
from hybridlm._cli_eval import evaluate
from hybridlm._cli_generate import generate
from hybridlm._cli_inspect import inspect
from hybridlm._cli_launch import launch
from hybridlm._cli_score import score
from hybridlm._cli_verify import verify

# Plain texts: they read the same in a log, and brackets in a message are no markup.
app = typer.Typer(name="hybridlm", no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)
app.command()(demo)
app.command()(generate)
app.command()(score)
app.command()(batch)
app.command("eval")(evaluate)
app.command()(verify)
app.command()(inspect)
app.command()(bench)
app.command()(launch)


def _print_version(asked: bool) -> bool:
    if asked:
        typer.echo(f"hybridlm {__version__}")
        raise typer.Exit
    return asked


@app.callback()
def hybridlm(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Hybrid language models in JAX: many sequences in one step."""


def main() -> None:
    """The console script."""
    app(prog_name="hybridlm")
