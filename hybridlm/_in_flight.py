"""How many programs may wait to run on devices that share the threads of a CPU."""

from typing import Any

import jax

MOST = 16
"""Calls after which they are waited for; XLA:CPU lets 32 programs wait on a device."""


class InFlight:
    """Waits, now and then, until every program that was called has run.

    XLA:CPU runs the devices of one process on one pool of as many threads. An exchange between devices holds a thread
    of it for every device that has arrived; so does a call for a device on which 32 programs wait already. If the
    devices that are still to arrive find no thread, nothing moves any more, and XLA ends the process after 40 seconds.

    Args:
        shared: whether the programs run on several such devices; nothing is waited for otherwise.
    """

    def __init__(self, shared: bool):
        self._shared = shared
        self._results: list[Any] = []

    def add(self, results: Any) -> None:
        """What a call returned, any pytree of arrays; later calls may consume them."""
        if not self._shared:
            return
        self._results.append(results)
        if len(self._results) == MOST:
            # What a later call has consumed is ready before that call's results, which are here, too.
            results, self._results = self._results, []
            jax.block_until_ready([leaf for leaf in jax.tree.leaves(results) if not leaf.is_deleted()])
