"""Interrupts between any two statements of the owners of rows."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

FILES = ("slot_owner.py", "page_owner.py", "pool.py")


def is_interrupted(line: int, call: Callable[[], Any]) -> bool:
    """Call with Ctrl-C before the line with this number, counted as they run; False after the last one."""
    lines = iter(range(line + 1))

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.endswith(FILES):
            return None
        if event == "line" and next(lines, None) == line:
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def unlock(owner: Any) -> None:
    """Release the lock of an owner; a trace interrupts before its release, a signal does not."""
    if owner._lock.locked():
        owner._lock.release()
