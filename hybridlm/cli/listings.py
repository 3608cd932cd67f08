"""Steps kept between processes, and lists: `hybridlm warmup`, `hybridlm cache`, `hybridlm families`."""

import time
from pathlib import Path
from typing import Annotated

import typer

from hybridlm.cli.options import Debug, Full, Loading, Model, console_for_table, loads, reported, table_of
from hybridlm.prefix_cache.budget import to_bytes
from hybridlm.programs.compilation_cache import STEPS, cache_of
from ir_passes.compile.stored import ExecutableStore
from models import WRAPPERS, families

cache = typer.Typer(no_args_is_help=True, help="List or delete compiled steps that are kept between processes.")

Folder = Annotated[
    Path | None, typer.Option("--folder", help="The `compilation_cache` of `load`.", show_default="the default")
]


@cache.command("list")
def list_steps(folder: Folder = None, debug: Debug = False) -> None:
    """Show every compiled step with its size, compile time and last use."""
    with reported(debug):
        store = _store(folder)
        table = table_of("step", "MB", "compiled in", "last used", "file", text_columns=5, overflow="fold")
        entries = store.entries()
        for file, header in entries:
            used = time.strftime("%Y-%m-%d %H:%M", time.localtime(file.used))
            label, seconds = ("damaged, or another's", 0.0) if header is None else (header.label, header.seconds)
            table.add_row(label, f"{file.bytes / 1e6:,.1f}", f"{seconds:.1f} s", used, file.name[:12])
        console_for_table().print(table)
        total = sum(file.bytes for file, _ in entries)
        typer.echo(f"{store.directory}: {len(entries)} steps, {total / 1e6:,.1f} of {store.max_bytes / 1e6:,.0f} MB")


@cache.command("clear")
def clear(
    folder: Folder = None,
    max_size: Annotated[str, typer.Option(help="Keep that much, what was used last, as 500MB.", metavar="SIZE")] = "0B",
    debug: Debug = False,
) -> None:
    """Delete compiled steps, those first that were not used for the longest."""
    with reported(debug):
        store = _store(folder)
        count, size = store.forget(to_bytes(max_size, "--max-size"))
        typer.echo(f"{store.directory}: {count} steps deleted, {size / 1e6:,.1f} MB")


def _store(folder: Path | None) -> ExecutableStore:
    _, store = cache_of(folder)
    if store is None:
        raise ValueError("expected JAX's compilation cache, or one of the user's own, in a local folder; give --folder")
    return ExecutableStore(store / STEPS)


def list_families(debug: Debug = False) -> None:
    """List families with model types, origin and state of a sequence.

    The origin is "built in", or a distribution and its version. The state is given by the names of its dimensions,
    with caches in bfloat16; `hybridlm inspect` prints sizes. A wrapper is a model around a text model of a family.
    """
    with reported(debug):
        table = table_of("family", "model types", "origin", "state", text_columns=4, overflow="fold")
        for family, origin in families().items():
            state = "\n".join(family.state_formulas())
            table.add_row(family.name, "\n".join(family.model_types), origin, state)
        console_for_table().print(table)
        typer.echo("wrappers: " + ", ".join(name for wrapper in WRAPPERS for name in wrapper.model_types))


@loads()
def warmup(
    loading: Loading,
    model: Model,
    full: Full = False,
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
        table.add_row(str(shape), where, f"{sum(origin.seconds.values()):.2f}")
    console_for_table().print(table)
    compiled = sum(not origin.stored for origin in origins.values())
    typer.echo(f"{len(origins)} steps are ready, {compiled} of them were compiled")
    if lost := sum(not origin.reusable for origin in origins.values()):
        _, folder = cache_of(None)
        typer.echo(
            f"error: {'no cache' if folder is None else folder / STEPS}: {lost} of {len(origins)} steps are not kept, "
            "later processes compile them again: make room (hybridlm cache clear) or set XDG_CACHE_HOME to a folder of "
            "another disk, and run this again",
            err=True,
        )
        raise typer.Exit(1)
