"""Join the processes of a run, on JAX's own distributed runtime."""

import os
from typing import Any

import jax

from hybridlm.multiprocess.environment import ADDRESS, COUNT, MAX_TIMEOUT, NUMBER, set_peer_timeout
from hybridlm.multiprocess.heartbeat import start_heartbeat

MIN_JAX_HEARTBEAT = 10
"""Seconds of silence that JAX's coordination service grants a busy machine."""


def join(timeout: float, devices: int | None = None) -> None:
    """Join a run as one process of a launcher; start to watch the others.

    Args:
        timeout: seconds without an answer after which a process counts as lost.
        devices: virtual devices of this process, on a CPU; None for JAX's default.

    Raises:
        ValueError: the number of processes is unknown, or the timeout is out of range.
    """
    set_peer_timeout(timeout)
    if devices is not None:
        jax.config.update("jax_num_cpu_devices", devices)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    numbers: dict[str, Any] = {}
    if COUNT in os.environ and NUMBER in os.environ:
        numbers = {"num_processes": int(os.environ[COUNT]), "process_id": int(os.environ[NUMBER])}
    try:
        # JAX aborts a process after this time; our heartbeat is quicker and reports more.
        jax.distributed.initialize(
            **numbers,
            initialization_timeout=2 * MAX_TIMEOUT,
            heartbeat_timeout_seconds=max(MIN_JAX_HEARTBEAT, int(timeout)),
            # Processes leave together; JAX aborts all if one is later than this, such as one that still loads programs.
            shutdown_timeout_seconds=max(1, int(timeout)),
        )
    except ValueError as error:
        raise ValueError(
            f"launch: no launcher has started this process ({error}); say how many processes to start here (-n 4), or "
            f"run it under SLURM or Open MPI, or set {ADDRESS}, {COUNT} and {NUMBER}"
        ) from error
    jax.devices()  # a barrier: all processes wait for each other here
    if jax.process_count() > 1:
        start_heartbeat()
