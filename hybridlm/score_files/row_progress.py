"""Progress over a file of texts: a bar, or lines on standard error."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from hybridlm.progress import progress_bar

FileProgress = bool | Literal["lines"] | None
"""None shows a bar if standard error is a terminal; "lines" prints lines if it is not."""
SECONDS_BETWEEN_LINES = 30.0
"""Time between two lines of progress."""
SECONDS_BETWEEN_RATES = 0.5
"""Seconds between updates of the tokens in a bar."""
Tokens = Callable[[], int]
"""Returns the tokens computed so far."""


def no_tokens() -> int:
    return 0


def progress_line(description: str, count: int, total: int, seconds: float, stored: int = 0, tokens: int = 0) -> str:
    """Return a line with the share of finished work and the remaining time.

    Args:
        seconds: of this run.
        stored: finished amount of an earlier run.
        tokens: of this run; 0 if not counted.
    """
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
    """Call a function at intervals from a thread, also during a long part."""
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


class RowProgress:
    """Progress over the rows of a file, as a bar, as lines, or hidden.

    Rows count by bytes. Within a part progress follows computed tokens, by tokens per byte of earlier parts.
    """

    def __init__(self, bar: Progress | None, lines: bool, tokens: Tokens, verb: str = "scoring"):
        self._verb = verb
        self._bar, self._lines, self._count = bar, lines, tokens
        self._task = None if bar is None else bar.add_task("reading", total=None, rate="", rows="", left="")
        self._done_rows = self._total_rows = self._part_rows = 0
        self._done_size = self._total_size = self._part_size = self._stored_size = 0
        self._start, self._start_tokens = 0.0, 0
        self._first = self._tokens = self._bytes = 0
        self._part_tokens: Tokens = no_tokens
        self._lock = threading.Lock()

    def read(self, rows: int) -> None:
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, rows=f"{rows:,} rows")

    def begin(self, rows: int, size: int, stored_rows: int, stored_size: int) -> None:
        """Begin a file of `size` bytes of text, with rows of an earlier run."""
        self._start, self._start_tokens = time.monotonic(), self._count()
        self._total_rows, self._total_size = rows, size
        self._done_rows, self._done_size, self._stored_size = stored_rows, stored_size, stored_size
        if self._bar is not None and self._task is not None:
            self._bar.reset(self._task, total=size, completed=stored_size, description=self._verb)
        self._show()

    def begin_part(self, rows: int, size: int, tokens: Tokens = no_tokens) -> None:
        """Begin a part; `tokens()` is 0 while unknown."""
        self._part_rows, self._part_size, self._part_tokens, self._first = rows, size, tokens, self._count()

    def end_part(self) -> None:
        with self._lock:
            self._tokens, self._bytes = self._tokens + self._count() - self._first, self._bytes + self._part_size
            self._done_rows, self._done_size = self._done_rows + self._part_rows, self._done_size + self._part_size
            self._part_rows = self._part_size = 0
            self._show()

    def tick(self) -> None:
        with self._lock:
            if self.done < self._total_size:  # the total is unknown, or the last line has been printed
                self._show(line=True)

    @property
    def done(self) -> int:
        """Finished bytes of text; within a part an estimate."""
        total = self._part_tokens()
        size, tokens = (self._part_size, total) if total else (self._bytes, self._tokens)
        if not self._part_size or not tokens:
            return self._done_size
        estimate = (self._count() - self._first) * size // tokens
        return self._done_size + min(estimate, self._part_size - 1)

    def _show(self, line: bool = False) -> None:
        size, total = self.done, self._total_size
        seconds, tokens = time.monotonic() - self._start, self._count() - self._start_tokens
        if self._lines and (line or size >= total):
            text = progress_line(self._verb, size, total, seconds, self._stored_size, tokens)
            print(text, file=sys.stderr, flush=True)
        if self._bar is not None and self._task is not None and self._total_rows:
            rows, rest = f"{self._done_rows:,} rows", f"{self._total_rows - self._done_rows:,} left"
            rate = f"{tokens / max(seconds, 1e-9):,.0f} tokens/s"
            self._bar.update(self._task, completed=size, rate=rate, rows=rows, left=rest)


@contextmanager
def score_progress(show: FileProgress, verb: str, tokens: Tokens) -> Iterator[RowProgress]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[rows]}"),
        TextColumn("{task.fields[left]}"),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    lines = show == "lines" and not sys.stderr.isatty()
    with progress_bar(not lines if show == "lines" else show, *columns) as bar:
        rows = RowProgress(bar, lines, tokens, verb)
        if not lines and bar is None:
            yield rows
            return
        with every(SECONDS_BETWEEN_LINES if lines else SECONDS_BETWEEN_RATES, rows.tick):
            yield rows
