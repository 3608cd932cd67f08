"""Lines of a plain or gzip file, from any offset in constant memory."""

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from hybridlm.score_files.rows import InputRow, Mark, TextSource

BLOCK_BYTES = 1 << 16
MAX_RECORD_BYTES = 1 << 26
"""Bounds the memory of compressed lines and CSV rows."""
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@contextmanager
def open_lines(path: Path) -> Iterator[BinaryIO]:
    """Open a plain or gzip file for reading; raises ValueError if damaged.

    Offsets count decompressed bytes; a seek in a compressed file reads from its beginning.
    """
    try:
        with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as file:
            yield cast(BinaryIO, file)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(
            f"{path}: expected a complete gzip file, but it cannot be read: {error}; test it with gzip -t, and "
            "compress it again, or remove .gz from the name of a file without compression"
        ) from error


def content_end(file: BinaryIO) -> int:
    """Return the offset behind the last byte other than white space or a byte-order mark."""
    offset = end = 0
    while block := file.read(BLOCK_BYTES):
        content = block.rstrip()
        if content and not (offset == 0 and content == BYTE_ORDER_MARK):
            end = offset + len(content)
        offset += len(block)
    return end


class TextLines(TextSource):
    """A file of texts, one per line; blank lines at its end do not count."""

    unit = "line"

    def __init__(self, path: Path):
        self.path = path
        self._most = MAX_RECORD_BYTES if path.suffix.lower() == ".gz" else -1
        with open_lines(path) as file:
            self._end = content_end(file)

    def rows(self, start: Mark) -> Iterator[tuple[InputRow, Mark]]:
        """Yield lines from `start` on, with a fault for another encoding."""
        number, offset = start
        with open_lines(self.path) as file:
            file.seek(offset)
            while offset < self._end:
                line = self._read_line(file, number + 1, offset)
                number, offset = number + 1, offset + len(line)
                if number == 1:
                    line = line.removeprefix(BYTE_ORDER_MARK)
                yield self._row(number, line.rstrip(b"\r\n")), Mark(number, offset)

    def _read_line(self, file: BinaryIO, number: int, offset: int) -> bytes:
        line = file.readline(self._most)
        if not line:
            raise ValueError(f"{self.path}: has become shorter while it was read, it ends at byte {offset}")
        if len(line) == self._most:
            raise ValueError(
                f"{self.path}: {self.unit} {number}: expected less than {self._most:,} bytes in a line of a compressed "
                "or CSV file; split the line, or write JSON lines without compression"
            )
        return line

    def _row(self, number: int, line: bytes) -> InputRow:
        try:
            return InputRow(number, None, "text", line.decode(), len(line))
        except UnicodeDecodeError as error:
            return InputRow(number, None, "", None, len(line), f"expected UTF-8: {error}")
