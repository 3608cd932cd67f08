"""Parts of an unfinished output, for a killed run to continue.

`OUTPUT.parts/` holds `lock`, `manifest.jsonl`, part files, and results of the current part. The manifest's first line
is the origin; each further line records a part and reaches the disk after it; the last marks a complete output. A part
without a record does not exist.
"""

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from hybridlm.files.atomic import naming, sync
from hybridlm.files.finished import FinishedTexts, delete_finished, finished_files
from hybridlm.files.json_lines import dump
from hybridlm.files.part_lock import locked
from ir_passes.files.atomic import whole_file
from ir_passes.files.strict_json import parse_json

FORMAT = 1
"""Version of the manifest; others are refused."""

Origin = Mapping[str, str | int]
"""Everything that the output's bytes depend on, by name."""


Contents = Sequence[Callable[[], bytes]]
"""Contents of parts, read on call; a changed part raises ValueError."""


@dataclass(frozen=True)
class PartRecord:
    """The record of a part in the manifest.

    Attributes:
        tokens: of rows without an error.
        error: the first.
        saved: by common prefixes.
        shifted: completions scored from within the prompt.
        size: bytes of text.
        step_tokens, step_places: tokens and token places of its steps.
    """

    rows: int
    tokens: int
    errors: int
    error: str | None
    bytes: int
    sha256: str
    generated: int = 0
    saved: int = 0
    shifted: int = 0
    size: int = 0
    step_tokens: int = 0
    step_places: int = 0


class Parts:
    """Parts of one output, locked by this process.

    Attributes:
        begun: of the first run, seconds since 1970.
    """

    def __init__(self, output: Path, folder: Path):
        self.output, self.folder = output, folder
        self._manifest = folder / "manifest.jsonl"
        self._ours = False
        self.done: list[PartRecord] = []
        self.joined = False
        self.begun = int(time.time())

    def resume(self, origin: Origin, restart: bool) -> None:
        """Continue with an earlier run's parts, or begin.

        Raises:
            ValueError: another origin, or foreign files.
        """
        if not self._manifest.exists():
            strangers = sorted({path.name for path in self.folder.iterdir()} - {"lock"})
            if strangers:
                raise ValueError(
                    f"{self.folder}: expected a manifest and parts, found {', '.join(strangers[:3])} and no manifest; "
                    "rename or delete the folder, or give another output"
                )
        elif restart:
            self.delete()
        else:
            self._read(origin)
        self._ours = True
        if not self._manifest.exists():
            self._append({"format": FORMAT, "origin": dict(origin), "begun": self.begun})

    def _read(self, origin: Origin) -> None:
        lines = self._lines()
        over = lines[-1].get("over") if lines else None
        if over == "joined" and self.output.exists() and not self._differences(lines[0], origin):
            self.joined = True
        elif over or (len(lines) < 2 and not finished_files(self.folder)):
            # The run was killed while it deleted its parts, or before it had any.
            self.delete()
            return
        elif differ := self._differences(lines[0], origin):
            raise ValueError(
                f"{self.folder}: holds parts of a run with another input, model or setting ({'; '.join(differ)}). Run "
                f"it as it was to continue; {_WAY_OUT}"
            )
        self.begun = lines[0].get("begun", self.begun)
        self.done = [PartRecord(**line) for line in lines[1 : len(lines) - self.joined]]
        for number, part in enumerate(self.done):
            path = self._path(number)
            if not self.joined and not (path.is_file() and path.stat().st_size == part.bytes):
                raise _damaged(path)

    def _differences(self, head: Mapping[str, Any], origin: Origin) -> list[str]:
        if head.get("format") != FORMAT:
            return [f"format of the manifest: {head.get('format')!r} there, {FORMAT} now"]
        recorded = head["origin"]
        return [
            f"{name}: {recorded.get(name)} there, {origin.get(name)} now"
            for name in {**recorded, **origin}
            if recorded.get(name) != origin.get(name)
        ]

    def _lines(self) -> list[dict[str, Any]]:
        """Return the manifest's complete lines; remove one cut by a power failure."""
        content = self._manifest.read_bytes()
        lines = content[: content.rfind(b"\n") + 1]
        if len(lines) != len(content):
            os.truncate(self._manifest, len(lines))
        try:
            return [parse_json(line) for line in lines.splitlines()]
        except ValueError as error:
            raise ValueError(f"{self._manifest}: cannot be read ({error}); {_WAY_OUT}") from error

    def add(self, content: bytes, rows: int, tokens: int, errors: int, error: str | None, **counts: int) -> None:
        """Write the next part durably; a failure leaves earlier parts unharmed.

        `counts` are other fields of its record.
        """
        sha256 = hashlib.sha256(content).hexdigest()
        part = PartRecord(rows, tokens, errors, error, len(content), sha256, **counts)
        _write(self._path(len(self.done)), content)
        self._append(asdict(part))
        delete_finished(self.folder, len(self.done))
        self.done.append(part)

    def finished(self) -> FinishedTexts:
        return FinishedTexts(self.folder, len(self.done), begun=self.begun)

    def join(self, write: Callable[[Contents, BinaryIO], None]) -> None:
        """Replace the output by the parts atomically; raises ValueError for a changed part."""
        partial_output = self.folder / "whole"
        partial_output.unlink(missing_ok=True)  # of a killed run
        with naming(partial_output), whole_file(self.output, partial_output) as file:
            write([partial(_content, self._path(i), part.sha256) for i, part in enumerate(self.done)], file)
        sync(self.output.parent)
        self._append({"over": "joined"})
        self.joined = True

    def delete(self) -> None:
        """Delete all parts, the manifest last, so that a killed deletion continues."""
        files = sorted(self.folder.glob("part-*"))
        if files and not self.joined:
            self._append({"over": "deleted"})
        for path in files:
            path.unlink()
        delete_finished(self.folder)
        (self.folder / "whole").unlink(missing_ok=True)
        self._manifest.unlink(missing_ok=True)
        self.done = []

    def note(self, error: BaseException, unit: str) -> None:
        """Add a note about finished rows or lines (`unit`) to an error."""
        rows = sum(part.rows for part in self.done)
        if self.done and not self.joined:
            error.add_note(f"{rows:,} {unit} are kept in {self.folder}: the same command continues")
        elif finished_files(self.folder) and not self.joined:
            error.add_note(f"some {unit} are kept in {self.folder}: the same command continues")
        elif isinstance(error, KeyboardInterrupt) and not self.joined:
            error.add_note(f"no {unit} are kept: the same command begins again")

    def leave(self) -> None:
        """Delete the parts of a complete output, or an empty folder."""
        if self._ours and (self.joined or not (self.done or finished_files(self.folder))):
            self.delete()

    def _path(self, number: int) -> Path:
        # Parts are compressed once they are joined.
        return self.folder / f"part-{number:06}{Path(self.output.name.removesuffix('.gz')).suffix}"

    def _append(self, line: Mapping[str, Any]) -> None:
        _write(self._manifest, dump(line).encode() + b"\n", "ab")


def _content(path: Path, sha256: str) -> bytes:
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != sha256:
        raise _damaged(path)
    return content


def _damaged(path: Path) -> ValueError:
    return ValueError(f"{path}: is not what was written, by the manifest; {_WAY_OUT}")


_WAY_OUT = "--restart (restart=True) deletes these parts and begins again"


@contextmanager
def parts_of(output: Path) -> Iterator[Parts]:
    """Hold the lock of an output's folder of parts, created if necessary.

    Afterwards a folder of joined or no parts is deleted.

    Raises:
        ValueError: another process holds the lock, or another user could have written the parts.
        OSError: the folder cannot be created or written to.
    """
    folder = output.with_name(output.name + ".parts")
    with locked(folder) as lock:
        parts = Parts(output, folder)
        try:
            yield parts
        finally:
            parts.leave()
            lock.unlink(missing_ok=True)
            with suppress(OSError):
                # Parts are left, or another process has made its lock.
                folder.rmdir()


def _write(path: Path, content: bytes, mode: str = "wb") -> None:
    new = not path.exists()
    with naming(path), path.open(mode) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    if new:
        sync(path.parent)
