"""Options of a run over a file: documentation, checks, help of the command line."""

import re
from dataclasses import dataclass
from typing import TypedDict

from hybridlm.engine.config import option
from hybridlm.keywords import suggests_fields
from hybridlm.requests.validation import check_count, is_whole, without_numpy
from hybridlm.score_files.order import DEFAULT_SORT_WINDOW
from hybridlm.score_files.row_progress import FileProgress

DEFAULT_WINDOW = 4096
"""Short rows that are computed together."""


@suggests_fields
@dataclass(frozen=True, kw_only=True)
class FileOptions:
    """Options of a run over a file: keyword arguments of `LM.run_file` and `LM.score_file`.

    A killed run continues when it is called again with the same arguments; finished rows are in `OUTPUT.parts`. The
    output has the bytes of an undisturbed run and appears once it is complete.

    Attributes:
        strict: raise at the first wrong row.
        window: maximum rows of a part, which is computed and saved together; None for 4096, or 16 per lane for OpenAI
            Batch requests.
        shard: "i/n", from "0/n" to "n-1/n": compute this share of the windows; the output's name gets the shard.
        restart: delete earlier parts and begin again.
        progress: True shows a bar; "lines" prints a line every 30 seconds without a terminal; None shows a bar on a
            terminal.
        sort_window: bytes of consecutive rows that are sorted, to compute common prefixes once; the output keeps the
            input's order. 0 sorts nothing.

    Raises:
        ValueError: an option is wrong.
    """

    strict: bool = option(False, "Stop at the first row that cannot be answered.")
    window: int | None = option(
        None, "Most rows computed together and kept as a part.", show_default="4096; of batch 16 per lane"
    )
    sort_window: int = option(
        DEFAULT_SORT_WINDOW, "Bytes of consecutive rows that are sorted by their first characters; 0 sorts nothing."
    )
    shard: str | None = option(
        None, "Compute shard I of N only, from 0/N; the name of OUTPUT gets the shard.", metavar="I/N"
    )
    restart: bool = option(False, "Delete the parts of an interrupted run and begin again.")
    progress: FileProgress = None

    def __post_init__(self) -> None:
        without_numpy(self)
        if self.window is not None:
            check_count(self.window, "window")
        size = self.sort_window
        if not is_whole(size, 0):
            raise ValueError(f"sort_window: expected a whole number of bytes, 0 to sort nothing, got {size!r}")
        _ = self.share

    @property
    def share(self) -> tuple[int, int]:
        """Index and number of shards; (0, 1) by default."""
        match = re.fullmatch(r"(\d+)/(\d+)", "0/1" if self.shard is None else self.shard)
        if match is None or not int(match[1]) < int(match[2]):
            raise ValueError(f"shard: expected i/n, of 0/n to n-1/n, got {self.shard!r}")
        return int(match[1]), int(match[2])


class FileSettings(TypedDict, total=False):
    """The fields of `FileOptions` as keywords."""

    strict: bool
    window: int | None
    sort_window: int
    shard: str | None
    restart: bool
    progress: FileProgress
