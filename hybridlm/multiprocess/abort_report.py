"""Report of the dead peer when JAX aborts this process.

JAX's coordination client calls `abort()` without a reason when the connection to process 0 breaks. The signal is
caught: the calling thread names the dead process, and exits.
"""

import atexit
import ctypes
import os
import signal
import socket
import time
from collections.abc import Callable

_ATTEMPTS, _PAUSE = 4, 0.25
_Handler = ctypes.CFUNCTYPE(None, ctypes.c_int)
_installed: list[object] = []
"""Callbacks for C code, protected from garbage collection."""


def report_at_abort(reason: Callable[[], str | None], status: int) -> None:
    """Print the reason at `abort()`, and exit.

    Args:
        reason: None lets `abort()` go on.
    """

    def report(number: int) -> None:
        why = reason()
        if why is not None:
            os.write(2, f"error: {why}\n".encode())  # a waiting thread may hold sys.stderr
            os._exit(status)

    handler = _Handler(report)
    ctypes.CDLL(None).signal(signal.SIGABRT, handler)
    if not _installed:
        atexit.register(signal.signal, signal.SIGABRT, signal.SIG_DFL)  # Python no longer runs by then
    _installed[:] = [handler]


def is_unreachable(address: str) -> bool:
    """Whether no process listens at "host:port", within a second."""
    host, port = address.rsplit(":", 1)
    for _ in range(_ATTEMPTS):
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_PAUSE).close()
        except OSError:
            return True
        time.sleep(_PAUSE)
    return False
