"""Common settings of the processes: environment variables, exit status and timeout."""

import os
import sys
import time

import jax

ADDRESS, COUNT, NUMBER = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"
"""Coordinator address, number of processes, and own number; unnecessary on a detected cluster."""
MAX_TIMEOUT = 60
EXIT_PEER_LOST = 70
"""Exit status caused by another process."""


_timeout: float = MAX_TIMEOUT


class ProcessLost(RuntimeError):
    """A process has ended or does not answer; steps in flight are lost."""


class Disagreement(RuntimeError):
    """Processes have different operands, or a message is damaged; no row was written."""


def exit_peer_lost() -> None:
    """Exit without JAX: its exit waits for processes that wait for this one."""
    sys.stdout.flush()
    sys.stderr.flush()
    if jax.process_index() == 0:
        time.sleep(_timeout / 8)  # the others read here why they exit
    os._exit(EXIT_PEER_LOST)


def peer_timeout() -> float:
    """Return the seconds until all exit because of an unresponsive process."""
    return _timeout


def set_peer_timeout(timeout: float) -> None:
    """Set the timeout; raises ValueError if out of range."""
    global _timeout
    check_timeout(timeout)
    _timeout = timeout


def check_timeout(timeout: float) -> None:
    if not 1 <= timeout <= MAX_TIMEOUT:
        raise ValueError(f"timeout: expected 1 to {MAX_TIMEOUT} seconds, got {timeout:g}")
