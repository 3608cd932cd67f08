"""Command `families`: model types, origin and state formulas of every family."""

import typer
from rich.text import Text

from hybridlm.cli.options import Debug, console_for_table, reported, table_of
from models import WRAPPERS, families


def list_families(debug: Debug = False) -> None:
    """List families with model types, origin and state of a sequence.

    The origin is "built in", or a distribution and its version. The state is given by the names of its dimensions,
    with caches in bfloat16; `hybridlm inspect` prints sizes. A wrapper is a model around a text model of a family.
    """
    with reported(debug):
        table = table_of("family", "model types", "origin", "state", text_columns=4, overflow="fold")
        for family, origin in families().items():
            state = "\n".join(family.state_formulas())
            table.add_row(*map(Text, (family.name, "\n".join(family.model_types), origin, state)))
        console_for_table().print(table)
        typer.echo("wrappers: " + ", ".join(name for wrapper in WRAPPERS for name in wrapper.model_types))
