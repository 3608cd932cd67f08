"""Whether a model with its pools fits the memory, told before anything large is allocated."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hybridlm._placement import ONE_DEVICE, Placement
from models import KV_BLOCK


class InsufficientMemory(ValueError):
    """Weights, rows and scratch are more than the device has; the message has the arithmetic and what would fit."""


@dataclass(frozen=True)
class Demand:
    """What a loaded model needs, in bytes.

    Attributes:
        weights: the parameters.
        row: context -> the rows of one sequence.
        lanes, staging: rows of the decode and of the staging pool that each device has.
        context: most tokens of a sequence.
        scratch: of the largest compiled step; 0 while none has been compiled.
        kept: most that the states of earlier prompts may take.
        devices: over which lanes are split; everything else is of each of them.
    """

    weights: int
    row: Callable[[int], int]
    lanes: int
    staging: int
    context: int
    scratch: int = 0
    kept: int = 0
    devices: int = 1

    @property
    def rows(self) -> int:
        """Bytes of both pools."""
        return (self.lanes + self.staging) * self.row(self.context)

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
            f"{self.staging} staged sequences x {in_words(self.row(self.context))} at a context of {self.context}"
            f"{scratch}{kept} = {in_words(self.total)}, available are {in_words(available)}; "
            f"{self._would_fit(available)}"
        )

    def _would_fit(self, available: int) -> str:
        left = available - self.weights - self.scratch - self.kept
        lanes = max(
            (n for n in range(1, self.lanes) if (n + min(n, self.staging)) * self.row(self.context) <= left), default=0
        )
        contexts = range(KV_BLOCK, self.context, KV_BLOCK)
        context = max((c for c in contexts if (self.lanes + self.staging) * self.row(c) <= left), default=0)
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
