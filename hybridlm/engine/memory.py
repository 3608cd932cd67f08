"""Admission of a model by memory per device: weights, rows, pages, scratch, prefix cache.

A model without room is refused at load; later nothing is allocated.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax.numpy as jnp

from hybridlm.checkpoint import ParameterPath, Shards
from hybridlm.checkpoint.packed.layout import PackedLayout
from hybridlm.devices.placement import ONE_DEVICE, Placement
from hybridlm.engine.cache_size import pool_pages
from hybridlm.engine.config import ResolvedConfig
from hybridlm.engine.engine import MAX_PREFILL_LANES, Engine
from hybridlm.engine.reading import max_states
from models import KV_BLOCK, Decoder, Weight
from models.state.pages import context_pages


class InsufficientMemory(ValueError):
    """Weights, rows and scratch exceed the device's memory; the message has the arithmetic."""


@dataclass(frozen=True)
class Demand:
    """Memory of a loaded model, in bytes per device.

    Attributes:
        row: arrays of fixed size of one sequence.
        page: 0 without a KV cache.
        states: common prefixes of scored texts, outside the pool.
        scratch: of the largest step; 0 before compilation.
    """

    weights: int
    row: int
    page: int
    lanes: int
    states: int
    context: int
    page_limit: int | None = None
    scratch: int = 0
    prefix_cache: int = 0
    devices: int = 1

    @property
    def rows(self) -> int:
        return self._rows(self.lanes, self.context, self.page_limit)

    def _rows(self, lanes: int, context: int, page_limit: int | None) -> int:
        return (lanes + self.states) * self.row + self._pages(lanes, context, page_limit) * self.page

    def _pages(self, lanes: int, context: int, page_limit: int | None) -> int:
        return sum(pool_pages(rows, self._blocks(context), page_limit) for rows in (lanes, self.states))

    def _blocks(self, context: int) -> int:
        return context_pages(context) if self.page else 0

    @property
    def total(self) -> int:
        return self.weights + self.rows + self.scratch + self.prefix_cache

    def require(self, available: int | None) -> None:
        """Raise InsufficientMemory if it exceeds the available memory; None if that is unknown."""
        if available is None or self.total <= available:
            return
        scratch = f" + scratch of the largest step {format_bytes(self.scratch)}" if self.scratch else ""
        cached = f" + prefix_cache {format_bytes(self.prefix_cache)}" if self.prefix_cache else ""
        each = f" on each of {self.devices} devices" if self.devices > 1 else ""
        pages = self._pages(self.lanes, self.context, self.page_limit)
        limit = "" if self.page_limit is None else ", limited by cache"
        cache = f" + KV cache of {pages} pages x {format_bytes(self.page)} at a context of {self.context}{limit}"
        raise InsufficientMemory(
            f"the model does not fit{each}: weights {format_bytes(self.weights)} + rows of {self.lanes} lanes and "
            f"{self.states} states while scoring x {format_bytes(self.row)}{cache if self.page else ''}{scratch}"
            f"{cached} = {format_bytes(self.total)}, available are {format_bytes(available)}; "
            f"{self._would_fit(available)}"
        )

    def _would_fit(self, available: int) -> str:
        remaining = available - self.weights - self.scratch - self.prefix_cache

        def most(numbers: Sequence[int], pool: Callable[[int], int]) -> int:
            count = bisect_left(numbers, True, key=lambda number: pool(number) > remaining)
            return numbers[count - 1] if count else 0

        lanes = most(range(1, self.lanes), lambda n: self._rows(n, self.context, self.page_limit))
        contexts = range(KV_BLOCK, self.context, KV_BLOCK) if self.page else ()
        context = most(contexts, lambda context: self._rows(self.lanes, context, self.page_limit))
        pages = pool_pages(self.lanes, self._blocks(self.context), self.page_limit)
        cache = most(range(1, pages - 1), lambda limit: self._rows(self.lanes, self.context, limit))
        options = [f"lanes={lanes * self.devices}"] if lanes else []
        options += [f"context={context}"] if context else []
        options += [f"cache={cache * KV_BLOCK * self.devices}"] if cache else []
        options += (
            ["a smaller prefix_cache"] if self.prefix_cache and self.total - self.prefix_cache <= available else []
        )
        if not options:
            return "not even one lane would fit: load it in a narrower dtype or on a larger device"
        return f"{' or '.join(options)} would fit"


def available_memory(placement: Placement = ONE_DEVICE) -> int | None:
    """Return the bytes that each device can still allocate; None if unknown.

    On a CPU it is the control group's; virtual devices share it.
    """
    devices = placement.local_devices
    if devices[0].platform != "cpu":
        return min((remaining for remaining in map(_left_on, devices) if remaining is not None), default=None)
    limits = [_meminfo(), _control_group()]
    smallest = min((number for number in limits if number is not None), default=None)
    return None if smallest is None else smallest // len(devices)


def _left_on(device: Any) -> int | None:
    stats = device.memory_stats() or {}
    limit = stats.get("bytes_limit")
    return None if limit is None else int(limit) - int(stats.get("bytes_in_use", 0))


def _meminfo() -> int | None:
    path = Path("/proc/meminfo")
    lines = path.read_text().splitlines() if path.exists() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _control_group() -> int | None:
    group = Path("/sys/fs/cgroup")
    limit, used = group / "memory.max", group / "memory.current"
    if not (limit.exists() and used.exists()) or limit.read_text().strip() == "max":
        return None
    return int(limit.read_text()) - int(used.read_text())


def format_bytes(count: int) -> str:
    """Return bytes in decimal units, "1.23 GB"."""
    if count < 1000:
        return f"{count} B"
    power = min(int(math.log(count, 1000)), 4)
    return f"{count / 1000**power:.4g} {'kMGT'[power - 1]}B"


def weight_bytes(
    weights: Sequence[Weight],
    dtype: str,
    shards: Mapping[ParameterPath, Shards],
    placement: Placement,
    packed: Mapping[ParameterPath, PackedLayout] = MappingProxyType({}),
) -> int:
    """Return the parameters' bytes per device; virtual CPU devices share them."""
    sharing = len(placement.local_devices) if placement.platform == "cpu" else 1
    total = 0
    for weight in weights:
        layout, stored = shards[weight.path], jnp.dtype("float32" if weight.float32 else dtype)
        local = packed[weight.path].local_bytes() if weight.path in packed else layout.local_bytes(stored)
        total += local * (layout.distinct if sharing > 1 else 1) // sharing
    return total


def admit_model(model: Decoder, weights: int, settings: ResolvedConfig, placement: Placement) -> Demand:
    """Return the memory per device without the steps, before weights are read.

    Args:
        settings: each device may hold all cached states.

    Raises:
        InsufficientMemory: it exceeds the available memory.
    """
    # On a CPU the host's share of the prefix cache is in the same memory.
    budget, lanes, context = settings.prefix_cache, settings.lanes, settings.context
    cached = 0 if budget is None else sum(budget) if placement.platform == "cpu" else budget.device
    devices = placement.data
    size = model.state_size(settings.cache_dtype(placement.platform))
    row, page = size.fixed, size.token * KV_BLOCK
    demand = Demand(
        weights, row, page, lanes // devices, max_states(placement.prefill_lanes(lanes, MAX_PREFILL_LANES)), context,
        settings.page_limit(page, devices), prefix_cache=cached, devices=devices,
    )  # fmt: skip
    demand.require(available_memory(placement))
    return demand


def admit_steps(engine: Engine, demand: Demand) -> None:
    """Check weights, rows and the largest steps' scratch before a pool is allocated.

    Raises:
        InsufficientMemory: they do not fit together.
    """
    remaining = available_memory(engine.placement)
    if remaining is None or 2 * (demand.rows + demand.prefix_cache) < remaining:
        return
    largest = [engine.full_shape("prompt"), engine.full_shape("decode")]
    if engine.options.drafts:
        largest.append(engine.verify_shape(engine.lanes))
    scratch = max(
        engine.programs.compiled(shape, engine.example_arguments).certificate.memory.temp for shape in largest
    )
    replace(demand, scratch=scratch).require(remaining + demand.weights)
