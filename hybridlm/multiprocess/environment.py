"""What processes of one run have in common: how they end, and how long they wait for each other."""

import os
import sys
import time

import jax

ADDRESS, COUNT, NUMBER = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"
"""Environment variables that say which of how many processes this one is, where no cluster is found that JAX knows."""
MOST_SECONDS = 60
LOST = 70
"""Exit status of a process that has ended because of another one."""


_patience: float = MOST_SECONDS


class ProcessLost(RuntimeError):
    """A process has ended, or does not answer; what was on its way is not computed."""


class Disagreement(RuntimeError):
    """Processes were about to run a step with different operands; no row was written."""


def leave() -> None:
    """End this process now. An ordinary end waits in JAX for the other processes, which wait for this one in a step."""
    sys.stdout.flush()
    sys.stderr.flush()
    if jax.process_index() == 0:
        time.sleep(_patience / 8)  # the others learn here why they end
    os._exit(LOST)


def patience() -> float:
    """Seconds after which a process that does not answer has ended all others."""
    return _patience


def set_patience(timeout: float) -> None:
    """Say how many; raises ValueError for seconds that are no timeout."""
    global _patience
    check_timeout(timeout)
    _patience = timeout


def check_timeout(timeout: float) -> None:
    """Raises ValueError for seconds that are no timeout."""
    if not 1 <= timeout <= MOST_SECONDS:
        raise ValueError(f"timeout: expected 1 to {MOST_SECONDS} seconds, got {timeout:g}")
