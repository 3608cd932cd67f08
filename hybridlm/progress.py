"""Progress on standard error: bars on a terminal, or lines."""

import sys
import threading
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
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

LoadProgress = Callable[[int, int, str], None]


@contextmanager
def progress_bar(show: bool | None, *columns: ProgressColumn) -> Iterator[Progress | None]:
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
def request_progress(show: bool | None, total: int, lanes: int) -> Iterator[Callable[[int], None]]:
    """Show a bar over prompts (None: for more prompts than lanes, on a terminal); yield its update."""
    if show is None and total <= lanes:
        show = False
    with counting_progress(show, "generating", total) as update:
        yield lambda count: update(count, "")


@contextmanager
def counting_progress(show: bool | None, description: str, total: int) -> Iterator[Callable[[int, str], None]]:
    """Show a bar over items (None: on a terminal); yield its update (number of finished items, last name)."""
    name = TextColumn("{task.fields[name]}")
    with progress_bar(
        show, TextColumn(description), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), name
    ) as bar:
        if bar is None:
            yield lambda count, name: None
            return
        task = bar.add_task(description, total=total, name="")
        yield lambda count, name: bar.update(task, completed=count, name=name)


FileProgress = bool | Literal["lines"] | None
"""None shows a bar on a terminal; "lines" prints lines without one."""
SECONDS_BETWEEN_LINES = 30.0
SECONDS_BETWEEN_RATES = 0.5
"""Time between updates of a bar's token rate."""
Tokens = Callable[[], int]
"""Returns the tokens computed so far: parts of a file may take hours."""


def no_tokens() -> int:
    return 0


def progress_line(description: str, count: int, total: int, seconds: float, stored: int = 0, tokens: int = 0) -> str:
    """Return a line with the share of finished work and the remaining time."""
    seconds_left = round(seconds * (total - count) / (count - stored)) if count > stored else None
    ahead = (
        ""
        if seconds_left is None
        else f", {seconds_left // 3600}:{seconds_left // 60 % 60:02}:{seconds_left % 60:02} left"
    )
    computed = f", {tokens:,} tokens" if tokens else ""
    return f"{description}: {100 * count // max(total, 1)}% after {seconds:,.0f} s{computed}{ahead}"


@contextmanager
def every(seconds: float, tick: Callable[[], None]) -> Iterator[None]:
    """Call a function at intervals from a thread."""
    end = threading.Event()

    def run() -> None:
        while not end.wait(seconds):
            tick()

    thread = threading.Thread(target=run, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


class Speed:
    """Seconds, tokens, and tokens per second as a text, since the beginning."""

    def __init__(self, tokens: Tokens):
        self._count = tokens
        self.begin()

    def begin(self) -> None:
        self._begin, self._first = time.monotonic(), self._count()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._begin

    @property
    def tokens(self) -> int:
        return self._count() - self._first

    def __str__(self) -> str:
        return f"{self.tokens / max(self.seconds, 1e-9):,.0f} tokens/s"


class Lines:
    """Lines of progress, one per `tick` and one at the end."""

    def __init__(self, description: str, tokens: Tokens):
        self._description, self._speed, self._amounts = description, Speed(tokens), (0, 0, 0)

    def begin(self, count: int, total: int, stored: int) -> None:
        self._speed.begin()
        self._amounts = count, total, stored

    def advance(self, count: int, total: int, stored: int) -> None:
        self._amounts = count, total, stored
        if count >= total:
            self._print()

    def tick(self) -> None:
        count, total, _ = self._amounts
        if count < total:  # the total is 0 before the amount is known, and equal to the count after the last line
            self._print()

    def _print(self) -> None:
        count, total, stored = self._amounts
        line = progress_line(self._description, count, total, self._speed.seconds, stored, self._speed.tokens)
        print(line, file=sys.stderr, flush=True)


def lines_or_bar(show: FileProgress) -> tuple[bool, bool | None]:
    """Return whether to print lines, and whether to show a bar."""
    lines = show == "lines" and not sys.stderr.isatty()
    return lines, False if lines else True if show == "lines" else show
