"""Version of a file: tells whether its content may have changed, without reading it."""

import os
import time
from dataclasses import dataclass, field

SETTLED_NS = 3_000_000_000
"""Age from which a file's last change is told from a later one; clocks of file systems tick in up to 2 seconds."""


@dataclass(frozen=True)
class FileVersion:
    """Identity of a file's content.

    Attributes:
        device, inode, size: of the file.
        modified, changed: times of the last write, and of the last change of anything, which no program can set back,
            in nanoseconds.
        settled: True if a later write changes one of these.
    """

    device: int
    inode: int
    size: int
    modified: int
    changed: int
    settled: bool = field(compare=False)

    @classmethod
    def of(cls, status: os.stat_result) -> "FileVersion":
        """Return the version of a file that has this status now."""
        modified, changed = status.st_mtime_ns, status.st_ctime_ns
        settled = time.time_ns() - max(modified, changed) >= SETTLED_NS
        return cls(status.st_dev, status.st_ino, status.st_size, modified, changed, settled)
