"""Version of a file: tells without reading it if its content may have changed."""

import os
import time
from dataclasses import dataclass, field

SETTLED_NS = 3_000_000_000
"""Minimum age of a file's last change; a later change then has another time. File systems count up to 2 s as one."""


@dataclass(frozen=True)
class FileVersion:
    """Identity of a file's content.

    Attributes:
        device, inode, size: of the file.
        modified, changed: times of the last write, and of the last change of content or status, in nanoseconds. No
            program can set the second one back.
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
