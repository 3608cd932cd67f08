"""Results of finished texts of an unfinished part, written every few seconds.

A part may take hours; a killed run computes only the other texts again.
"""

import hashlib
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np

from hybridlm.files.atomic import naming
from ir_passes.files.atomic import whole_file

KEPT_EVERY = 20.0
"""Seconds between two files: below the promised 30, because a step may take seconds."""


class FinishedTexts(AbstractContextManager["FinishedTexts"]):
    """Results of the finished texts of one part, as arrays by text number.

    As a context it writes new results when an error ends the part. A part makes the same calls in each run. Files are
    named `finished-PART-NUMBER.safetensors`.

    Args:
        folder: written by this process only.
        begun: of the first run, seconds since 1970.

    Attributes:
        tokens: of texts to compute; 0 while unknown.

    Raises:
        ValueError: a file is damaged.
    """

    def __init__(self, folder: Path, part: int, clock: Callable[[], float] = time.monotonic, begun: int = 0):
        self._folder, self._part, self._clock = folder, part, clock
        self._earlier, self._new = dict[str, np.ndarray](), dict[str, np.ndarray]()
        self._calls, self._written, self._last, self.tokens, self.begun = 0, 0, clock(), 0, begun
        while (path := self._path(self._written)).exists():
            self._earlier |= _read(path)
            self._written += 1

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        """Write new results after an error, unless nothing can be written."""
        if kind is not None and not issubclass(kind, OSError):
            self.flush()

    def begin_call(self) -> int:
        self._calls += 1
        return self._calls - 1

    def restore(self, call: int, text: int, arrays: Mapping[str, np.ndarray]) -> bool:
        """Fill arrays with an earlier run's results; return whether there are any.

        Raises:
            ValueError: other shapes or dtypes.
        """
        names = {name: f"{call}/{text}/{name}" for name in arrays}
        if not all(key in self._earlier for key in names.values()):
            return False
        for name, array in arrays.items():
            stored = self._earlier.pop(names[name])
            if stored.shape != array.shape or stored.dtype != array.dtype:
                message = f"{names[name]}: expected {array.dtype}{array.shape}, got {stored.dtype}{stored.shape}"
                raise _damaged(self._path(0), message)
            array[...] = stored
        return True

    def take(self, call: int, text: int, name: str) -> np.ndarray | None:
        """Return an array of an earlier run; None without one."""
        return self._earlier.pop(f"{call}/{text}/{name}", None)

    def add(self, call: int, text: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Add a text's results; write at intervals."""
        self._new |= {f"{call}/{text}/{name}": np.ascontiguousarray(array) for name, array in arrays.items()}
        self.write_if_due()

    def write_if_due(self) -> None:
        if self._clock() - self._last >= KEPT_EVERY:
            self.flush()

    def flush(self) -> None:
        from safetensors.numpy import save

        if self._new:
            path, partial = self._path(self._written), self._folder / "finished.partial"
            partial.unlink(missing_ok=True)  # of a killed run
            with naming(path), whole_file(path, partial) as file:
                file.write(save(self._new, {"sha256": _digest(self._new)}))
            self._written, self._new = self._written + 1, {}
        self._last = self._clock()

    def _path(self, number: int) -> Path:
        return self._folder / f"finished-{self._part:06}-{number:06}.safetensors"


def delete_finished(folder: Path, part: int | None = None) -> None:
    for path in finished_files(folder, part):
        path.unlink()


def finished_files(folder: Path, part: int | None = None) -> list[Path]:
    return sorted(
        [*folder.glob(f"finished-{'*' if part is None else f'{part:06}-*'}"), *folder.glob("finished.partial")]
    )


def _read(path: Path) -> dict[str, np.ndarray]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "np") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # no mapping
            digest = (file.metadata() or {}).get("sha256")
    except SafetensorError as error:
        raise _damaged(path, str(error)) from error
    if digest != _digest(arrays):
        raise _damaged(path, "its SHA-256 is another one")
    return arrays


def _digest(arrays: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _damaged(path: Path, fault: str) -> ValueError:
    return ValueError(f"{path}: cannot be read ({fault}); --restart (restart=True) deletes it and begins again")
