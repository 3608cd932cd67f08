"""Calls in a forked process that ends after a time limit."""

import json
import os
import select
import signal
import warnings
from collections.abc import Callable, Mapping
from typing import Any

SECONDS = 60


def outcomes(calls: Mapping[str, Callable[[], Any]]) -> dict[str, str]:
    """Return each call's error name or "returned" from one fork; hanging calls are missing."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of JAX and of Python, about the fork itself
        process = os.fork()
    if process == 0:
        for name, call in calls.items():
            try:
                call()
                outcome = "returned"
            except BaseException as error:
                outcome = type(error).__name__
            os.write(writing, f"{json.dumps([name, outcome])}\n".encode())
        os._exit(0)
    os.close(writing)
    text = b""
    while select.select([reading], [], [], SECONDS)[0] and (part := os.read(reading, 1 << 16)):
        text += part
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    os.close(reading)
    return dict(json.loads(line) for line in text.splitlines())
