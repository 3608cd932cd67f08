"""`hybridlm families`: the families of models that can be loaded, with the formulas of their states."""

import typer
from rich.text import Text

from hybridlm.cli.options import Debug, console_for_table, reported, table_of
from models import WRAPPERS, families


def list_families(debug: Debug = False) -> None:
    """List the families: model types, origin (built in, or distribution and version), state of a sequence.

    The state is given by the names of its dimensions, with caches in bfloat16; `hybridlm inspect` prints sizes. A
    wrapper is a model around a text model of one of these families.
    """
    with reported(debug):
        table = table_of("family", "model types", "origin", "state", left=4, overflow="fold")
        for family, origin in families().items():
            state = "\n".join(family.state_formulas())
            table.add_row(*map(Text, (family.name, "\n".join(family.model_types), origin, state)))
        console_for_table().print(table)
        typer.echo("wrappers: " + ", ".join(name for wrapper in WRAPPERS for name in wrapper.model_types))
