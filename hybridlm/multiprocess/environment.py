"""What processes of one run have in common: how they end, and how long they wait for each other."""

import os
import sys
import time

import jax

ADDRESS, COUNT, NUMBER = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"
"""Environment variables that say which of how many processes this one is, where no cluster is found that JAX knows."""
MAX_TIMEOUT = 60
EXIT_PEER_LOST = 70
"""Exit status of a process that has ended because of another one."""


_timeout: float = MAX_TIMEOUT


class ProcessLost(RuntimeError):
    """A process has ended, or does not answer; what was on its way is not computed."""


class Disagreement(RuntimeError):
    """Processes were about to run a step with different operands; no row was written."""


def exit_peer_lost() -> None:
    """End this process now. An ordinary end waits in JAX for the other processes, which wait for this one in a step."""
    sys.stdout.flush()
    sys.stderr.flush()
    if jax.process_index() == 0:
        time.sleep(_timeout / 8)  # the others learn here why they end
    os._exit(EXIT_PEER_LOST)


def peer_timeout() -> float:
    """Seconds after which a process that does not answer has ended all others."""
    return _timeout


def set_peer_timeout(timeout: float) -> None:
    """Say how many; raises ValueError for seconds that are no timeout."""
    global _timeout
    check_timeout(timeout)
    _timeout = timeout


def check_timeout(timeout: float) -> None:
    """Raises ValueError for seconds that are no timeout."""
    if not 1 <= timeout <= MAX_TIMEOUT:
        raise ValueError(f"timeout: expected 1 to {MAX_TIMEOUT} seconds, got {timeout:g}")
