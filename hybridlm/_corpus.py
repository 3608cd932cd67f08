"""Texts of a corpus: given as they are, or as paths of text files."""

import os
from pathlib import Path
from typing import Any


def read_files(texts: Any) -> Any:
    """The same texts with each path replaced by what the file holds; a bare path is one text.

    Raises:
        OSError: a file cannot be read.
        ValueError: a file is not UTF-8.
    """
    if isinstance(texts, os.PathLike):
        return [_read(texts)]
    if isinstance(texts, list | tuple):
        return [_read(item) if isinstance(item, os.PathLike) else item for item in texts]
    return texts


def _read(path: os.PathLike[str]) -> str:
    # Line ends are part of the text, as they stand.
    data = Path(path).read_bytes()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{os.fspath(path)}: expected a text file in UTF-8: {error}") from error
