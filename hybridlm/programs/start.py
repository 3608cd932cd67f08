"""The start of a model: seconds of its parts, messages, and previous times."""

import logging
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ir_passes.files.record import from_json, to_json
from ir_passes.files.store import FileStore
from ir_passes.files.trust import UntrustedError
from ir_passes.jaxpr.fingerprint import fingerprint

_log = logging.getLogger("hybridlm")

STARTS = "starts"
VERSION = 1


@dataclass(frozen=True)
class LastStart:
    """Seconds from `load` to the first answer, of the last starts."""

    version: int
    warm: float | None
    cold: float | None


class Start:
    """One start, from the beginning of `load` to the first answer.

    Args:
        folder: of the cache; None keeps nothing.
        settings: that the seconds depend on.
        began: `time.perf_counter()` at the beginning.
    """

    def __init__(self, model: str, folder: Path | None, settings: Any, show: bool | None, began: float):
        self._model, self._mark = model, began
        self._show = sys.stderr.isatty() if show is None else show
        self._store = None if folder is None else FileStore(folder / STARTS)
        self._name = f"{fingerprint(settings)}.json"
        record = None if self._store is None else self._store.read_record(self._name, partial(from_json, LastStart))
        self.last = record if record is not None and record.version == VERSION else LastStart(VERSION, None, None)
        self.parts: dict[str, float] = {}
        self._compiled = self._answered = False
        times = [
            f"{seconds:.1f} s{kind}"
            for seconds, kind in ((self.last.warm, ""), (self.last.cold, " when its steps were compiled"))
            if seconds is not None
        ]
        self._say(f"loading {model}; last time {', '.join(times)} to the first answer" if times else f"loading {model}")

    def ended(self, part: str) -> None:
        now = time.perf_counter()
        self.parts[part], self._mark = now - self._mark, now

    def compiling(self) -> None:
        """Announce compilation once, from any thread."""
        if not self._compiled:
            self._compiled = True
            if not self._answered:
                last = "" if self.last.cold is None else f"; last time {self.last.cold:.1f} s to the first answer"
                note = "" if self._store is None else ", which later processes load"
                self._say(f"compiling steps of {self._model}{note}{last}")

    def answered(self, seconds: float) -> None:
        """End the start with the first answer after `seconds`, and store its duration."""
        if self._answered:
            return
        self._answered = True
        total = sum(self.parts.values()) + seconds
        self.parts["first answer"] = seconds
        _log.info("%s: %.2f s from load to the first answer", self._model, total)
        warm, cold = (self.last.warm, total) if self._compiled else (total, self.last.cold)
        if self._store is not None:
            try:
                self._store.write_file(self._name, to_json(LastStart(VERSION, warm, cold)).encode())
            except (OSError, UntrustedError) as error:
                _log.info("what the start of %s took is not kept: %s", self._model, error)

    def _say(self, line: str) -> None:
        if self._show:
            print(line, file=sys.stderr, flush=True)
