"""Progress bars on standard error, where somebody is looking."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

LoadProgress = Callable[[int, int, str], None]


@contextmanager
def load_progress(show: bool | None) -> Iterator[LoadProgress | None]:
    """A bar over the bytes of parameters, or None where nobody is looking.

    Args:
        show: None shows it where standard error is a terminal.
    """
    if not (sys.stderr.isatty() if show is None else show):
        yield None
        return
    columns = (
        TextColumn("loading"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[name]}"),
    )
    console = Console(stderr=True)
    # Without a terminal the bar is written once, when it is done.
    with Progress(*columns, console=console, transient=console.is_terminal) as bar:
        task = bar.add_task("load", total=None, name="")
        yield lambda done, total, name: bar.update(task, completed=done, total=total, name=name)
