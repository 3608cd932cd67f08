"""Report the dead peer when JAX aborts this process.

The client of JAX's coordination service, which runs in process 0, calls `abort()` as soon as the connection breaks,
with a message that names nobody; no exception is raised, and no Python function can be given to it instead. So the
signal that `abort()` raises is caught: the thread that called it then reports which process died, and exits.
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
"""Callbacks for C code, which must not be collected."""


def report_at_abort(reason: Callable[[], str | None], status: int) -> None:
    """Print the reason at `abort()`, and exit.

    Args:
        reason: returns why this process exits; None for another cause, and `abort()` goes on.
        status: exit status, in place of the signal.
    """

    def report(number: int) -> None:
        why = reason()
        if why is not None:
            os.write(2, f"error: {why}\n".encode())  # sys.stderr may be held by a thread that waits
            os._exit(status)

    handler = _Handler(report)
    ctypes.CDLL(None).signal(signal.SIGABRT, handler)
    if not _installed:
        atexit.register(signal.signal, signal.SIGABRT, signal.SIG_DFL)  # Python no longer runs by then
    _installed[:] = [handler]


def is_unreachable(address: str) -> bool:
    """True if no process listens at an address, "host:port".

    A process that is being killed gets a second to disappear.
    """
    host, port = address.rsplit(":", 1)
    for _ in range(_ATTEMPTS):
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_PAUSE).close()
        except OSError:
            return True
        time.sleep(_PAUSE)
    return False
