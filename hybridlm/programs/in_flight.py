"""Few calls of compiled steps in flight on CPUs."""

from typing import Any

import jax

MAX_IN_FLIGHT = 16
"""Calls before a wait; XLA:CPU lets 32 programs wait on a device."""


class InFlight:
    """Bounds the number of calls in flight, to avoid a deadlock of XLA:CPU.

    XLA:CPU has one thread per device of a process. A collective holds the threads of arrived devices; so does a call
    for a device with 32 waiting programs. Without a free thread for the other devices, XLA ends the process after 40
    seconds.

    Args:
        shared: programs run on several such devices; otherwise nothing is awaited.
    """

    def __init__(self, shared: bool):
        self._shared = shared
        self._results: list[Any] = []

    def add(self, results: Any) -> None:
        """Add a call's results, a pytree of arrays; later calls may donate them."""
        if not self._shared:
            return
        self._results.append(results)
        if len(self._results) == MAX_IN_FLIGHT:
            # Arrays donated to a later call are ready before the results of that call, which are awaited too.
            results, self._results = self._results, []
            jax.block_until_ready([leaf for leaf in jax.tree.leaves(results) if not leaf.is_deleted()])
