"""Progress on standard error: bars if it is a terminal."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

LoadProgress = Callable[[int, int, str], None]


@contextmanager
def progress_bar(show: bool | None, *columns: ProgressColumn) -> Iterator[Progress | None]:
    """Show a bar of these columns; yield None without a bar."""
    if not (sys.stderr.isatty() if show is None else show):
        yield None
        return
    console = Console(stderr=True)
    # Without a terminal the bar is written once, at the end.
    with Progress(*columns, console=console, transient=console.is_terminal) as bar:
        yield bar


@contextmanager
def load_progress(show: bool | None) -> Iterator[LoadProgress | None]:
    """Show a bar over bytes of parameters (None: on a terminal)."""
    columns = (
        TextColumn("loading"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[name]}"),
    )
    with progress_bar(show, *columns) as bar:
        if bar is None:
            yield None
            return
        task = bar.add_task("load", total=None, name="")
        yield lambda count, total, name: bar.update(task, completed=count, total=total, name=name)


@contextmanager
def counting_progress(show: bool | None, description: str, total: int, above: int = 0) -> Iterator[Callable[..., None]]:
    """Show a bar over items; yield its update (finished items, last name).

    Args:
        show: None shows it on a terminal, for more than `above` items.
    """
    if show is None and total <= above:
        yield lambda count, name="": None
        return
    name = TextColumn("{task.fields[name]}")
    columns = TextColumn(description), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), name
    with progress_bar(show, *columns) as bar:
        if bar is None:
            yield lambda count, name="": None
            return
        task = bar.add_task(description, total=total, name="")
        yield lambda count, name="": bar.update(task, completed=count, name=name)
