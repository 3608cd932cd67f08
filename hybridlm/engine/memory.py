"""Whether a model with its pools fits the memory, told before anything large is allocated.

Whether a model may be loaded: what each device has to hold of it, compared with what the device has.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from hybridlm.checkpoint import ParameterPath, Shards
from hybridlm.devices.placement import ONE_DEVICE, Placement
from hybridlm.engine.engine import MAX_PREFILL_ROWS, Engine
from hybridlm.prefix_cache.budget import CacheBudget
from hybridlm.programs.shapes import Shape
from models import KV_BLOCK, Decoder, Weight
from models.platform import platform


class InsufficientMemory(ValueError):
    """Weights, rows and scratch are more than the device has; the message has the arithmetic and what would fit."""


@dataclass(frozen=True)
class Demand:
    """What a loaded model needs, in bytes.

    Attributes:
        weights: the parameters.
        row: context -> the rows of one sequence.
        lanes, prefill_rows: rows of the decode and of the prefill pool that each device has.
        context: most tokens of a sequence.
        scratch: of the largest compiled step; 0 while none has been compiled.
        kept: most that the states of earlier prompts may take.
        devices: over which lanes are split; everything else is of each of them.
    """

    weights: int
    row: Callable[[int], int]
    lanes: int
    prefill_rows: int
    context: int
    scratch: int = 0
    kept: int = 0
    devices: int = 1

    @property
    def rows(self) -> int:
        """Bytes of both pools."""
        return (self.lanes + self.prefill_rows) * self.row(self.context)

    @property
    def total(self) -> int:
        return self.weights + self.rows + self.scratch + self.kept

    def require(self, available: int | None) -> None:
        """Check it against the memory that is there; None where that is not known.

        Raises:
            InsufficientMemory: it does not fit.
        """
        if available is None or self.total <= available:
            return
        scratch = f" + scratch of the largest step {in_words(self.scratch)}" if self.scratch else ""
        kept = f" + prefix_cache {in_words(self.kept)}" if self.kept else ""
        each = f" on each of {self.devices} devices" if self.devices > 1 else ""
        raise InsufficientMemory(
            f"the model does not fit{each}: weights {in_words(self.weights)} + rows of {self.lanes} decoding and "
            f"{self.prefill_rows} staged sequences x {in_words(self.row(self.context))} at a context of {self.context}"
            f"{scratch}{kept} = {in_words(self.total)}, available are {in_words(available)}; "
            f"{self._would_fit(available)}"
        )

    def _would_fit(self, available: int) -> str:
        left = available - self.weights - self.scratch - self.kept
        lanes = max(
            (n for n in range(1, self.lanes) if (n + min(n, self.prefill_rows)) * self.row(self.context) <= left), default=0
        )
        contexts = range(KV_BLOCK, self.context, KV_BLOCK)
        context = max((c for c in contexts if (self.lanes + self.prefill_rows) * self.row(c) <= left), default=0)
        options = [f"lanes={lanes * self.devices}"] if lanes else []
        options += [f"context={context}"] if context else []
        options += ["a smaller prefix_cache"] if self.kept and self.total - self.kept <= available else []
        if not options:
            return "not even one lane would fit: load it in a narrower dtype or on a larger device"
        return f"{' or '.join(options)} would fit"


def available_memory(placement: Placement = ONE_DEVICE) -> int | None:
    """Bytes that can still be allocated on each of the devices; None where nothing tells.

    On a CPU what the operating system says is available, within the limit of the process's control group; virtual
    devices share it.
    """
    devices = placement.local_devices
    if devices[0].platform != "cpu":
        return min((left for left in map(_left_on, devices) if left is not None), default=None)
    found = [_meminfo(), _control_group()]
    least = min((number for number in found if number is not None), default=None)
    return None if least is None else least // len(devices)


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


def in_words(count: int) -> str:
    if count < 1000:
        return f"{count} B"
    power = min(int(math.log(count, 1000)), 4)
    return f"{count / 1000**power:.4g} {'kMGT'[power - 1]}B"


def weight_bytes(
    weights: Sequence[Weight], dtype: str, shards: Mapping[ParameterPath, Shards], placement: Placement
) -> int:
    """Bytes of the parameters on each device; what virtual devices of a CPU have alike lies there once for all of them.

    Args:
        weights: every parameter.
        dtype: of the matrices.
        shards: how parameters lie over the devices.
        placement: the devices.
    """
    together = len(placement.local_devices) if platform() == "cpu" else 1
    total = 0
    for one in weights:
        own, kept = shards[one.path], jnp.dtype("float32" if one.float32 else dtype)
        total += own.local_bytes(kept) * (own.different if together > 1 else 1) // together
    return total


def admit_model(
    model: Decoder,
    weights: int,
    cache_dtype: Any,
    lanes: int,
    context: int,
    budget: CacheBudget | None,
    placement: Placement,
) -> Demand:
    """Before weights are read: the memory that each device needs without the steps.

    Args:
        model: what one device holds of the model.
        weights: bytes of its parameters.
        cache_dtype: dtype of convolution and key/value state.
        lanes: most sequences that decode at the same time, on all devices.
        context: most tokens of a sequence.
        budget: bytes for states of earlier prompts; each device may come to hold all of them.
        placement: the devices.

    Raises:
        InsufficientMemory: it is more than there is.
    """
    # The host's share lies in the same memory where that is the device's.
    kept = 0 if budget is None else sum(budget) if platform() == "cpu" else budget.device
    devices, prefill_rows = placement.data, placement.prefill_rows(lanes, MAX_PREFILL_ROWS)
    row = model.state_size(cache_dtype).of
    demand = Demand(weights, row, lanes // devices, prefill_rows // devices, context, kept=kept, devices=devices)
    demand.require(available_memory(placement))
    return demand


def admit_steps(engine: Engine, demand: Demand) -> None:
    """Before any pool is allocated: where rows take most of what is left, the scratch of the steps counts too.

    Raises:
        InsufficientMemory: the largest steps' scratch does not fit beside weights and rows.
    """
    left = available_memory(engine.placement)
    if left is None or 2 * (demand.rows + demand.kept) < left:
        return
    largest = [Shape("generate", engine.prefill_rows, engine.chunk), Shape("generate", engine.lanes, 1)]
    if engine.speculate is not None:
        largest.append(Shape("verify", engine.lanes, engine.draft_tokens + 1, mtp_drafts=engine.mtp_drafts))
    scratch = max(engine.program(shape).certificate.memory.temp for shape in largest)
    replace(demand, scratch=scratch).require(left + demand.weights)
