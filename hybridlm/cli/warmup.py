"""`hybridlm warmup`: compile the steps of a model ahead, for the processes that come."""

from typing import Annotated, Any, cast

import typer
from rich.table import Table
from rich.text import Text

from hybridlm.cli.options import (
    Chunk,
    Context,
    Debug,
    Drafting,
    DraftTokens,
    Dtype,
    Kernels,
    Lanes,
    Model,
    OnMesh,
    Verbose,
    console_for_table,
    reported,
)
from hybridlm.devices.mesh import read_mesh
from hybridlm.drafting.drafters import DEFAULT_DRAFT_TOKENS
from hybridlm.loading import load


def warmup(
    model: Model,
    full: Annotated[
        bool, typer.Option("--full", help="Only the steps of all lanes, not those of fewer sequences.")
    ] = False,
    lanes: Lanes = 8,
    context: Context = None,
    dtype: Dtype = None,
    chunk: Chunk = None,
    speculate: Drafting = None,
    draft_tokens: DraftTokens = DEFAULT_DRAFT_TOKENS,
    prefix_cache: Annotated[
        str | None, typer.Option(help='Memory for the states of common prefixes (radix cache), such as "512MB".')
    ] = None,
    mesh: OnMesh = None,
    kernels: Kernels = None,
    verbose: Verbose = False,
    debug: Debug = False,
) -> None:
    """Compile and keep every step that generating and scoring use, so that later processes compile nothing.

    Give the settings that the model is loaded with later: other lanes, contexts, chunks, dtypes or meshes have other
    steps.
    """
    with reported(debug, verbose):
        lm = load(
            model,
            lanes=lanes,
            context=context,
            dtype=dtype,
            chunk=chunk,
            speculate=cast(Any, speculate),
            draft_tokens=draft_tokens,
            prefix_cache=prefix_cache,
            mesh=read_mesh(mesh),
            kernels=kernels,
        )
        if lm.follow():
            return
        lm.warmup(every_bucket=not full)
        table = Table()
        for heading in ("step", "origin", "seconds"):
            table.add_column(heading, justify="right" if heading == "seconds" else "left")
        origins = lm.engine.programs.origins
        for shape, origin in origins.items():
            where = "from the store" if origin.stored else "compiled"
            table.add_row(*map(Text, (str(shape), where, f"{sum(origin.seconds.values()):.2f}")))
        console_for_table().print(table)
        compiled = sum(not origin.stored for origin in origins.values())
        typer.echo(f"{len(origins)} steps are ready, {compiled} of them were compiled")
