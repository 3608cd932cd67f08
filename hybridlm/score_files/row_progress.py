"""Progress over a file of texts, by bytes, and within a part by tokens."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from hybridlm import progress
from hybridlm.progress import FileProgress, Lines, Speed, Tokens, every, lines_or_bar, no_tokens, progress_bar


class Amount(NamedTuple):
    rows: int
    size: int


class RowProgress:
    """Progress over the rows of a file, as a bar, as lines, or hidden.

    Rows count by bytes. Within a part progress follows computed tokens, as a share of its tokens or, if unknown, by
    tokens per byte of earlier parts.

    Args:
        tokens: counts computed tokens.
    """

    def __init__(self, bar: Progress | None, lines: Lines | None, tokens: Tokens, verb: str = "scoring"):
        self._verb = verb
        self._bar, self._lines, self._count, self._rate = bar, lines, tokens, Speed(tokens)
        self._task = None if bar is None else bar.add_task("reading", total=None, rate="", rows="", left="")
        self._done = self._total = self._kept = self._part = Amount(0, 0)
        self._first = self._tokens = self._bytes = 0
        self._part_tokens: Tokens = no_tokens
        self._lock = threading.Lock()

    def read(self, rows: int) -> None:
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, rows=f"{rows:,} rows")

    def begin(self, total: Amount, stored: Amount) -> None:
        """Begin the rows of a file, after the stored rows of an earlier run."""
        self._done, self._kept, self._total = stored, stored, total
        self._rate.begin()
        if self._lines is not None:
            self._lines.begin(stored.size, total.size, stored.size)
        if self._bar is not None and self._task is not None:
            self._bar.reset(self._task, total=total.size, completed=stored.size, description=self._verb)
        self._show()

    def begin_part(self, part: Amount, tokens: Tokens = no_tokens) -> None:
        """Begin a part; `tokens()` is 0 while unknown."""
        self._part, self._part_tokens, self._first = part, tokens, self._count()

    def end_part(self) -> None:
        with self._lock:
            self._tokens, self._bytes = self._tokens + self._count() - self._first, self._bytes + self._part.size
            self._done = Amount(self._done.rows + self._part.rows, self._done.size + self._part.size)
            self._part = Amount(0, 0)
            self._show()

    def tick(self) -> None:
        """Show the current state: a part may take hours."""
        with self._lock:
            if self.done < self._total.size:
                self._show()
            if self._lines is not None:
                self._lines.tick()

    @property
    def done(self) -> int:
        """Finished bytes of text; within a part an estimate."""
        total = self._part_tokens()
        size, tokens = (self._part.size, total) if total else (self._bytes, self._tokens)
        if not self._part.size or not tokens:
            return self._done.size
        estimate = (self._count() - self._first) * size // tokens
        return self._done.size + min(estimate, self._part.size - 1)

    def _show(self) -> None:
        size = self.done
        if self._lines is not None:
            self._lines.advance(size, self._total.size, self._kept.size)
        if self._bar is not None and self._task is not None and self._total.rows:
            rows, rest = f"{self._done.rows:,} rows", f"{self._total.rows - self._done.rows:,} left"
            self._bar.update(self._task, completed=size, rate=str(self._rate), rows=rows, left=rest)


@contextmanager
def score_progress(show: FileProgress, verb: str, tokens: Tokens) -> Iterator[RowProgress]:
    """Show a bar with share, rows, speed and remaining time, or lines."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[rows]}"),
        TextColumn("{task.fields[left]}"),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    lines, show_bar = lines_or_bar(show)
    with progress_bar(show_bar, *columns) as bar:
        rows = RowProgress(bar, Lines(verb, tokens) if lines else None, tokens, verb)
        if not lines and bar is None:
            yield rows
            return
        with every(progress.SECONDS_BETWEEN_LINES if lines else progress.SECONDS_BETWEEN_RATES, rows.tick):
            yield rows
