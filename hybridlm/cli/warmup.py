"""`hybridlm warmup`: compile the steps of a model ahead, for the processes that come."""

from typing import Annotated

import typer
from rich.text import Text

from hybridlm.cli.options import Loading, Model, console_for_table, loads, table_of
from hybridlm.programs.compilation_cache import STEPS, cache_of


@loads()
def warmup(
    loading: Loading,
    model: Model,
    full: Annotated[
        bool, typer.Option("--full", help="Only the steps of all lanes, not those of fewer sequences.")
    ] = False,
) -> None:
    """Compile and store every step of generation and scoring.

    Later processes compile nothing.

    Give the settings that the model is loaded with later: other lanes, contexts, chunks, dtypes or meshes have other
    steps. The exit status is 1 if a step could not be kept.
    """
    if (lm := loading.leading(model)) is None:
        return
    lm.warmup(every_bucket=not full)
    table = table_of("step", "origin", "seconds", text_columns=2)
    origins = lm.engine.programs.origins
    for shape, origin in origins.items():
        where = "from the store" if origin.stored else "compiled"
        table.add_row(*map(Text, (str(shape), where, f"{sum(origin.seconds.values()):.2f}")))
    console_for_table().print(table)
    compiled = sum(not origin.stored for origin in origins.values())
    typer.echo(f"{len(origins)} steps are ready, {compiled} of them were compiled")
    if lost := sum(not origin.reusable for origin in origins.values()):
        folder = cache_of(None).folder
        typer.echo(
            f"error: {'no cache' if folder is None else folder / STEPS}: {lost} of {len(origins)} steps are not kept, "
            "later processes compile them again: make room (hybridlm cache clear) or set XDG_CACHE_HOME to a folder of "
            "another disk, and run this again",
            err=True,
        )
        raise typer.Exit(1)
