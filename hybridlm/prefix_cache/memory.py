"""Memory of cached states: swapped from device to host, least recently used (LRU) first.

A page that rows share counts once, as long as a state refers to it.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from hybridlm.prefix_cache.budget import CacheBudget
from hybridlm.rows.cached_buffers import CachedBuffers, KeptPage


class CacheMemory:
    """Keeps buffers within the budgets, in LRU order.

    The least recently used unpinned buffer is moved to the host or dropped. States are dropped with spans of no other
    state. Use of a state is use of its spans, so a span never goes first.

    Args:
        drop: removes a state from the tree; returns all freed buffers, or None.
        copied: returns a copy in arrays of a page of a pool, or other buffers unchanged.

    Attributes:
        spills, evictions: buffers moved to the host, and dropped states.
    """

    def __init__(
        self,
        budget: CacheBudget,
        drop: Callable[[CachedBuffers], Iterable[CachedBuffers] | None],
        copied: Callable[[CachedBuffers], CachedBuffers],
    ):
        self.budget, self._drop, self._copied = budget, drop, copied
        self._device: OrderedDict[CachedBuffers, None] = OrderedDict()
        self._host: OrderedDict[CachedBuffers, None] = OrderedDict()
        self.device_bytes = self.host_bytes = self.spills = self.evictions = 0

    def fits(self, needed: int) -> bool:
        """Whether `needed` more bytes fit the device without evictions."""
        return self.device_bytes + needed <= self.budget.device

    def evict_one(self) -> bool:
        """Swap out the LRU buffer, or drop a state; False if impossible."""
        return self._evict(next((buffers for buffers in self._device if not buffers.refcount), None))

    def free_page(self, device: int) -> bool:
        """Swap out a device's LRU unshared page, or drop a state; False if impossible."""
        return self._evict(next((page for page in self._pages(device) if page.page.alone), None))

    def _pages(self, device: int) -> Iterator[Any]:
        for buffers in self._device:
            page = buffers.page
            if page is not None and not buffers.refcount and page.device == device:
                yield buffers

    def _evict(self, buffers: CachedBuffers | None) -> bool:
        if buffers is None:
            return False
        if not self._room_on_host(buffers.nbytes):
            return self._drop_one((*self._host, *self._device))
        self._spill(buffers)
        return True

    def _spill(self, buffers: CachedBuffers) -> None:
        if buffers in self._device:  # they may have gone with a state dropped to make room
            del self._device[buffers]
            self.device_bytes -= buffers.nbytes
            buffers.to_host(self._copied(buffers))
            self._host[buffers] = None
            self.host_bytes += buffers.nbytes
            self.spills += 1

    def add(self, buffers: CachedBuffers) -> None:
        """Add fitting buffers on the device, or mark them as used."""
        if buffers in self._host:
            self._host.move_to_end(buffers)
            return
        if buffers not in self._device:
            self.device_bytes += buffers.nbytes
            self._device[buffers] = None
        self._device.move_to_end(buffers)

    def page_in(self, buffers: CachedBuffers, keep: Callable[[], KeptPage] | None = None) -> None:
        """Move pinned buffers to the device, if there is room after evictions.

        Args:
            keep: right to a page of a pool with the same values; None for new arrays.
        """
        if buffers not in self._host or buffers.nbytes > self.budget.device:
            return
        while not self.fits(buffers.nbytes):
            if not self.evict_one():
                return
        del self._host[buffers]
        self.host_bytes -= buffers.nbytes
        if keep is None:
            buffers.to_device()
        else:
            buffers.share(keep())
        self.add(buffers)

    def discard(self, removed: Iterable[CachedBuffers]) -> None:
        for buffers in removed:
            buffers.release()
            if buffers in self._device:
                del self._device[buffers]
                self.device_bytes -= buffers.nbytes
            else:
                del self._host[buffers]
                self.host_bytes -= buffers.nbytes

    def faults(self, expected: set[CachedBuffers]) -> list[str]:
        """List the accounts' errors, given all buffers."""
        device, host = set(self._device), set(self._host)
        faults = []
        if device & host or device | host != expected:
            faults.append(f"{len(device)} arrays on the device and {len(host)} on the host, expected {len(expected)}")
        for name, buffers, counted, budget in (
            ("device", device, self.device_bytes, self.budget.device),
            ("host", host, self.host_bytes, self.budget.host),
        ):
            total = sum(buffer.nbytes for buffer in buffers)
            if total != counted or counted > budget:
                faults.append(f"{name}: arrays of {total} B, counted {counted} B, budget {budget} B")
            if any(buffer.on_device != (name == "device") for buffer in buffers):
                faults.append(f"{name}: arrays that are elsewhere")
        return faults

    def _room_on_host(self, needed: int) -> bool:
        if needed > self.budget.host:
            return False
        while self.host_bytes + needed > self.budget.host:
            if not self._drop_one(tuple(self._host)):
                return False
        return True

    def _drop_one(self, among: Iterable[CachedBuffers]) -> bool:
        """Drop the first unpinned state; return whether there is one."""
        for buffers in among:
            if not buffers.refcount and (dropped := self._drop(buffers)) is not None:
                self.discard(dropped)
                self.evictions += 1
                return True
        return False
