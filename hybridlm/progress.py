"""Progress on standard error: bars if it is a terminal, or lines."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.text import Text

LoadProgress = Callable[[int, int, str], None]


@contextmanager
def _bar(show: bool | None, *columns: ProgressColumn) -> Iterator[Progress | None]:
    """Show a bar of these columns; None if `show` is False, or None without a terminal."""
    if not (sys.stderr.isatty() if show is None else show):
        yield None
        return
    console = Console(stderr=True)
    # Without a terminal the bar is written once, at the end.
    with Progress(*columns, console=console, transient=console.is_terminal) as bar:
        yield bar


@contextmanager
def load_progress(show: bool | None) -> Iterator[LoadProgress | None]:
    """Show a bar over the bytes of parameters, or None.

    Args:
        show: None shows it if standard error is a terminal.
    """
    columns = (
        TextColumn("loading"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[name]}"),
    )
    with _bar(show, *columns) as bar:
        if bar is None:
            yield None
            return
        task = bar.add_task("load", total=None, name="")
        yield lambda done, total, name: bar.update(task, completed=done, total=total, name=name)


@contextmanager
def request_progress(show: bool | None, total: int, lanes: int) -> Iterator[Callable[[int], None]]:
    """Show a bar over completed prompts; yield the function that takes their number.

    Args:
        show: None shows it if there are more prompts than lanes and standard error is a terminal.
        total: number of prompts.
        lanes: most sequences in a batch.
    """
    if show is None and total <= lanes:
        show = False
    with counting_progress(show, "generating", total) as update:
        yield lambda done: update(done, "")


@contextmanager
def counting_progress(show: bool | None, what: str, total: int) -> Iterator[Callable[[int, str], None]]:
    """Show a bar over items; yield the function that takes the number of finished items and the name of the last.

    Args:
        show: None shows it if standard error is a terminal.
        what: description of the items.
        total: number of items.
    """
    name = TextColumn("{task.fields[name]}")
    with _bar(show, TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), name) as bar:
        if bar is None:
            yield lambda done, name: None
            return
        task = bar.add_task(what, total=total, name="")
        yield lambda done, name: bar.update(task, completed=done, name=name)


FileProgress = bool | Literal["lines"] | None
"""Whether progress is shown: None shows a bar if standard error is a terminal, "lines" prints lines if it is none."""
SECONDS_BETWEEN_LINES = 30.0
"""Shortest time between two lines of progress."""


def progress_line(what: str, done: int, total: int, seconds: float, kept: int = 0) -> str:
    """Return a line on progress: the share that is done, and the time that is left at the same speed.

    Args:
        what: description of the work.
        done, total: amounts.
        seconds: since the beginning of this run.
        kept: amount that an earlier run had done.
    """
    left = round(seconds * (total - done) / (done - kept)) if done > kept else None
    ahead = "" if left is None else f", {left // 3600}:{left // 60 % 60:02}:{left % 60:02} left"
    return f"{what}: {100 * done // max(total, 1)}% after {seconds:,.0f} s{ahead}"


Advance = Callable[[int, int, int], None]
"""Takes the amounts that are done, of all, and of an earlier run."""


def _printing(what: str) -> Advance:
    """Return a function that prints a line of progress now and then."""
    begin = last = time.monotonic()

    def update(done: int, total: int, kept: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= SECONDS_BETWEEN_LINES or done >= total:
            last = now
            print(progress_line(what, done, total, now - begin, kept), file=sys.stderr, flush=True)

    return update


def _lines_or_bar(show: FileProgress) -> tuple[bool, bool | None]:
    """Return whether lines are printed, and whether a bar is shown."""
    lines = show == "lines" and not sys.stderr.isatty()
    return lines, False if lines else True if show == "lines" else show


@contextmanager
def file_progress(show: FileProgress, what: str) -> Iterator[Advance]:
    """Show progress over the bytes of an input file; yield the function that takes bytes done, all, and kept."""
    lines, show_bar = _lines_or_bar(show)
    with _bar(show_bar, TextColumn(what), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()) as bar:
        if bar is None:
            yield _printing(what) if lines else lambda done, total, kept: None
            return
        task = bar.add_task(what, total=None)
        # A pipe has no size.
        yield lambda done, total, kept: bar.update(task, completed=done, total=total or None)


class RowProgress:
    """Progress over the rows of a file that is scored; without a bar or lines the methods do nothing."""

    def __init__(self, bar: Progress | None, lines: bool):
        self._bar, self._lines = bar, lines
        self._task = None if bar is None else bar.add_task("reading", total=None, rate="")
        self._tokens, self._begin = 0, 0.0
        self._done = self._total = self._kept = 0
        self._print: Advance = lambda done, total, kept: None

    def read(self, rows: int) -> None:
        """Show the number of rows of the first pass."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=rows)

    def begin(self, rows: int, done: int) -> None:
        """Begin scoring of `rows` rows, of which an earlier run has done some."""
        self._begin, self._done, self._kept, self._total = time.perf_counter(), done, done, rows
        if self._lines:
            self._print = _printing("scoring")
        if self._bar is not None and self._task is not None:
            self._bar.reset(self._task, total=rows, completed=done, description="scoring")

    def advance(self, rows: int, tokens: int) -> None:
        """Add rows that have been scored, and their tokens."""
        self._tokens += tokens
        self._done += rows
        self._print(self._done, self._total, self._kept)
        if self._bar is not None and self._task is not None:
            rate = self._tokens / (time.perf_counter() - self._begin)
            self._bar.update(self._task, advance=rows, rate=f"{rate:,.0f} tokens/s")


@contextmanager
def score_progress(show: FileProgress) -> Iterator[RowProgress]:
    """Show a bar of rows, tokens per second and the time left, or lines."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,} rows"),
        _RowsLeft(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    lines, show_bar = _lines_or_bar(show)
    with _bar(show_bar, *columns) as bar:
        yield RowProgress(bar, lines)


class _RowsLeft(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text("" if task.remaining is None else f"{task.remaining:,.0f} left")
