"""Records of device checks: one JSON line each, on disk immediately.

A part of scripts/check_device.py runs in a separate process. It appends its records to results.jsonl with one write
each, and puts evidence (arrays, programs, profiles) into files. The main process makes the page and the archives from
both, and kills a part at its deadline. A kill of either process loses the running check only.
"""

import gzip
import io
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

RECORDS = "results.jsonl"
PASSED, FAILED, NOT_RUN = "passed", "FAILED", "not run"
MAX_RECORDS = 4 << 20
"""Size of results.jsonl, in bytes, above which records lose their tracebacks."""
MAX_EVIDENCE = 1 << 20
"""Bytes of one compressed file of evidence."""
KINDS = ("arrays", "profiles", "programs")
"""Kinds of evidence, each a folder and later an archive."""


class NotRun(Exception):
    """A check that cannot run here, with the reason."""


class Failure(Exception):
    """A check with wrong figures.

    Args:
        why: expected and measured.
        figures: of the record.
    """

    def __init__(self, why: str, figures: Mapping[str, Any]):
        super().__init__(why)
        self.figures = dict(figures)


class Records:
    """The records of one part.

    Args:
        folder: of results.jsonl.
        evidence: folder with a subfolder for each of `KINDS`.
        part: name of the part.
        seconds: until the deadline.
    """

    def __init__(self, folder: Path, evidence: Path, part: str, seconds: float):
        self.folder, self.evidence, self.part = folder, evidence, part
        self.deadline = time.monotonic() + seconds

    @property
    def seconds_left(self) -> float:
        """Seconds until the deadline; negative after it."""
        return self.deadline - time.monotonic()

    def plan(self, names: Iterable[str]) -> None:
        """Write the names of a part's checks; missing records count as not run."""
        self._append({"part": self.part, "planned": list(names)})

    def check(
        self,
        name: str,
        work: Callable[[], Mapping[str, Any] | None],
        evidence: Callable[[], object] = lambda: None,
    ) -> Mapping[str, Any] | None:
        """Run a check and record it; return figures, None after failure.

        Args:
            name: as planned.
            work: returns figures, or raises.
            evidence: writes evidence of a failure.
        """
        if self.seconds_left <= 0:
            self._record(name, NOT_RUN, 0.0, why="the part's time was over")
            return None
        start = time.perf_counter()
        try:
            figures = dict(work() or {})
        except NotRun as error:
            self._record(name, NOT_RUN, time.perf_counter() - start, why=str(error))
            return None
        except Exception as error:
            seconds = time.perf_counter() - start
            figures = error.figures if isinstance(error, Failure) else {}
            why = str(error) if isinstance(error, Failure) else f"{type(error).__name__}: {error}"
            self._record(name, FAILED, seconds, figures, why, traceback.format_exc())
            try:
                evidence()
            except Exception:
                self._record(f"{name}, evidence", FAILED, 0.0, why="no evidence", trace=traceback.format_exc())
            return None
        self._record(name, PASSED, time.perf_counter() - start, figures)
        return figures

    def write_evidence(self, kind: str, name: str, content: bytes) -> None:
        """Write compressed evidence; oversized evidence is recorded as left out.

        Args:
            kind: one of `KINDS`.
            name: of the file.
            content: uncompressed.
        """
        packed = gzip.compress(content, 6)
        if len(packed) > MAX_EVIDENCE:
            self._record(f"{name} left out", NOT_RUN, 0.0, why=f"{len(packed):,} bytes, at most {MAX_EVIDENCE:,}")
            return
        folder = self.evidence / kind
        folder.mkdir(parents=True, exist_ok=True)
        safe = "".join(letter if letter.isalnum() or letter in ".-" else "_" for letter in f"{self.part}-{name}")
        part = folder / f".{safe}.part"
        part.write_bytes(packed)
        part.rename(folder / f"{safe}.gz")

    def write_arrays(self, name: str, arrays: Mapping[str, Any], limit: int = 1 << 18) -> None:
        """Write the first `most` bytes of each array, flat, with its shape and dtype."""
        packed, saved = io.BytesIO(), dict[str, np.ndarray]()
        for key, array in arrays.items():
            host = np.asarray(array)
            flat = np.ascontiguousarray(host).reshape(-1).view(np.uint8)
            saved[key] = flat[:limit]
            saved[f"{key}, shape"] = np.array([*map(str, host.shape), str(host.dtype)])
        np.savez(packed, **saved)  # type: ignore[arg-type]  # its stubs take keywords for allow_pickle
        self.write_evidence("arrays", f"{name}.npz", packed.getvalue())

    def _record(
        self, name: str, verdict: str, seconds: float, figures: Any = None, why: str | None = None, trace: str = ""
    ) -> None:
        record = {
            "part": self.part, "name": name, "verdict": verdict, "seconds": round(seconds, 3),
            "figures": figures or {}, "why": why, "traceback": trace,
        }  # fmt: skip
        self._append(record)
        print(f"{self.part}: {name}: {verdict} ({seconds:.1f} s){f': {why}' if why else ''}", file=sys.stderr)

    def _append(self, record: dict[str, Any]) -> None:
        file = self.folder / RECORDS
        if file.exists() and file.stat().st_size > MAX_RECORDS and "traceback" in record:
            record["traceback"] = "left out: results.jsonl is full"
        line = json.dumps(record, default=_plain) + "\n"
        descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)


def read_records(folder: Path) -> list[dict[str, Any]]:
    """Return a folder's records without a line torn by a kill."""
    file = folder / RECORDS
    records = []
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else []:
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return records


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else str(value)
