"""Where kept states are: on the device as far as its budget goes, then on the host, the least recently used first."""

from collections import OrderedDict
from collections.abc import Callable, Iterable

from hybridlm.prefix_cache.budget import CacheBudget
from hybridlm.rows.cached_buffers import CachedBuffers


class CacheMemory:
    """Keeps within its budgets what it is given, in the order of use.

    What is moved to the host and what is dropped is always what was used the longest ago and is not pinned. Only states
    are dropped; with a state go the spans that lead to no other. A span is used whenever a state behind it is, so that
    it never goes before that.

    Args:
        budget: most bytes on the device and on the host.
        drop: lets go of a state; returns all arrays that are no longer kept with it, or None for what is no state.

    Attributes:
        device_bytes, host_bytes: held now.
        spills, evictions: arrays that were moved to the host, and states that were dropped to make room.
    """

    def __init__(self, budget: CacheBudget, drop: Callable[[CachedBuffers], Iterable[CachedBuffers] | None]):
        self.budget, self._drop = budget, drop
        self._device: OrderedDict[CachedBuffers, None] = OrderedDict()
        self._host: OrderedDict[CachedBuffers, None] = OrderedDict()
        self.device_bytes = self.host_bytes = self.spills = self.evictions = 0

    def fits(self, needed: int) -> bool:
        """Whether so many bytes more fit the device's budget as it is."""
        return self.device_bytes + needed <= self.budget.device

    def evict_one(self) -> bool:
        """Move what was used the longest ago off the device, or drop a state; False where all is in use."""
        oldest = next((kept for kept in self._device if not kept.refcount), None)
        if oldest is None:
            return False
        if not self._room_on_host(oldest.nbytes):
            return self._drop_one((*self._host, *self._device))
        if oldest in self._device:  # it may have gone with a state that was dropped to make room
            self.discard([oldest])
            oldest.to_host()
            self._host[oldest] = None
            self.host_bytes += oldest.nbytes
            self.spills += 1
        return True

    def add(self, kept: CachedBuffers) -> None:
        """Something new on the device, for which there is room; or that is there already, and is used."""
        if kept in self._host:
            self._host.move_to_end(kept)
            return
        if kept not in self._device:
            self.device_bytes += kept.nbytes
            self._device[kept] = None
        self._device.move_to_end(kept)

    def page_in(self, kept: CachedBuffers) -> None:
        """Move something that is pinned back to the device, as far as there is or can be made room."""
        if kept not in self._host or kept.nbytes > self.budget.device:
            return
        while not self.fits(kept.nbytes):
            if not self.evict_one():
                return
        self.discard([kept])
        kept.to_device()
        self.add(kept)

    def discard(self, gone: Iterable[CachedBuffers]) -> None:
        """These are kept no longer."""
        for kept in gone:
            if kept in self._device:
                del self._device[kept]
                self.device_bytes -= kept.nbytes
            else:
                del self._host[kept]
                self.host_bytes -= kept.nbytes

    def faults(self, expected: set[CachedBuffers]) -> list[str]:
        """What is wrong with the account, given all that should be kept."""
        device, host = set(self._device), set(self._host)
        faults = []
        if device & host or device | host != expected:
            faults.append(f"{len(device)} arrays on the device and {len(host)} on the host, expected {len(expected)}")
        for name, kept, held, budget in (
            ("device", device, self.device_bytes, self.budget.device),
            ("host", host, self.host_bytes, self.budget.host),
        ):
            total = sum(one.nbytes for one in kept)
            if total != held or held > budget:
                faults.append(f"{name}: arrays of {total} B, counted {held} B, budget {budget} B")
            if any(one.here != (name == "device") for one in kept):
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
        """Drop the first state that is not in use; returns whether there is one."""
        for kept in among:
            if not kept.refcount and (gone := self._drop(kept)) is not None:
                self.discard(gone)
                self.evictions += 1
                return True
        return False
