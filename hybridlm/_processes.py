"""Bringing the processes of a run together, on JAX's own distributed runtime."""

import os
import sys
import time
from typing import Any

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


def join(timeout: float, devices: int | None = None) -> None:
    """Become one of the processes that a launcher has started.

    Args:
        timeout: seconds without an answer after which a process counts as lost.
        devices: virtual devices of this process, on a CPU; None for as many as there are.

    Raises:
        ValueError: nothing says how many processes there are, or the timeout is out of range.
    """
    global _patience
    check_timeout(timeout)
    _patience = timeout
    if devices is not None:
        jax.config.update("jax_num_cpu_devices", devices)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    given: dict[str, Any] = {}
    if COUNT in os.environ and NUMBER in os.environ:
        given = {"num_processes": int(os.environ[COUNT]), "process_id": int(os.environ[NUMBER])}
    try:
        # JAX ends a process in its own way after this time; our own watch is quicker and says more.
        jax.distributed.initialize(
            **given,
            initialization_timeout=2 * MOST_SECONDS,
            heartbeat_timeout_seconds=max(10, int(2 * timeout)),
            shutdown_timeout_seconds=max(1, int(timeout / 4)),
        )
    except ValueError as error:
        raise ValueError(
            f"launch: no launcher has started this process ({error}); say how many processes to start here (-n 4), or "
            f"run it under SLURM or Open MPI, or set {ADDRESS}, {COUNT} and {NUMBER}"
        ) from error
    jax.devices()  # where all processes wait for each other


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


def check_timeout(timeout: float) -> None:
    """Raises ValueError for seconds that are no timeout."""
    if not 1 <= timeout <= MOST_SECONDS:
        raise ValueError(f"timeout: expected 1 to {MOST_SECONDS} seconds, got {timeout:g}")
