"""Lines of a plain or gzip file, from any offset in constant memory."""

import gzip
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
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


LINE_ENDS = b"\r\n"


def content_end(path: Path, blanks: bytes | None = None) -> int:
    """Return the offset after the last byte except `blanks` (None: white space)."""
    offset = end = 0
    with open_lines(path) as file:
        while block := file.read(BLOCK_BYTES):
            content = block.rstrip(blanks)
            if content and not (offset == 0 and content == BYTE_ORDER_MARK):
                end = offset + len(content)
            offset += len(block)
    return end


def read_line(file: BinaryIO, max_bytes: int, place: str, offset: int) -> bytes:
    """Return the next line; raises ValueError for the end, or `max_bytes` bytes (-1: any).

    Args:
        place: file and number of the line, in messages.
    """
    line = file.readline(max_bytes)
    if not line:
        raise ValueError(f"{place}: the file has become shorter while it was read, it ends at byte {offset}")
    if len(line) == max_bytes:
        raise ValueError(
            f"{place}: expected less than {max_bytes:,} bytes in a line of a compressed or CSV file; split the line, "
            "or write JSON lines without compression"
        )
    return line


def text_row(number: int, line: bytes) -> InputRow:
    try:
        return InputRow(number, None, "text", line.decode(), len(line))
    except UnicodeDecodeError as error:
        return InputRow(number, None, "", None, len(line), f"expected UTF-8: {error}")


def open_text_lines(
    path: Path, row: Callable[[int, bytes], InputRow] = text_row, id_name: str = "id", blanks: bytes | None = None
) -> TextSource:
    """Open a file with a row on each line.

    Args:
        blanks: bytes of lines at the end that are no rows; None for white space.
        row: (number, line) -> row, by default its text, with a fault for another encoding.
    """
    return TextSource(path, "line", partial(_rows, path, content_end(path, blanks), row), id_name)


def _rows(path: Path, end: int, row: Callable[[int, bytes], InputRow], start: Mark) -> Iterator[tuple[InputRow, Mark]]:
    number, offset = start
    max_bytes = MAX_RECORD_BYTES if path.suffix.lower() == ".gz" else -1
    with open_lines(path) as file:
        file.seek(offset)
        while offset < end:
            line = read_line(file, max_bytes, f"{path}: line {number + 1}", offset)
            number, offset = number + 1, offset + len(line)
            if number == 1:
                line = line.removeprefix(BYTE_ORDER_MARK)
            yield row(number, line.rstrip(LINE_ENDS)), Mark(number, offset)
