"""Progress bars on standard error, where somebody is looking."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

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


@contextmanager
def request_progress(show: bool | None, total: int, lanes: int) -> Iterator[Callable[[int], None]]:
    """A bar over completed prompts, or nothing where nobody is looking; gives what takes their number.

    Args:
        show: None shows it for more prompts than lanes where standard error is a terminal.
        total: prompts.
        lanes: sequences that are computed at the same time.
    """
    if show is None and total <= lanes:
        show = False
    with _counting("generating", show, total) as update:
        yield lambda done: update(done, "")


@contextmanager
def step_progress(show: bool | None, total: int) -> Iterator[Callable[[int, str], None]]:
    """A bar over compiled steps; gives what takes their number and the name of the last one. `show` as for loading."""
    with _counting("compiling", show, total) as update:
        yield update


@contextmanager
def file_progress(show: bool | None, what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar over the bytes of an input file; gives what takes those done and all of them. `show` as for loading."""
    if not (sys.stderr.isatty() if show is None else show):
        yield lambda done, total: None
        return
    columns = (TextColumn(what), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    # Without a terminal the bar is written once, when it is done.
    with Progress(*columns, console=console, transient=console.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        # A pipe has no size.
        yield lambda done, total: bar.update(task, completed=done, total=total or None)


@contextmanager
def _counting(what: str, show: bool | None, total: int) -> Iterator[Callable[[int, str], None]]:
    if not (sys.stderr.isatty() if show is None else show):
        yield lambda done, name: None
        return
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, TextColumn("{task.fields[name]}"), console=console, transient=console.is_terminal) as bar:
        task = bar.add_task(what, total=total, name="")
        yield lambda done, name: bar.update(task, completed=done, name=name)
