"""What this process computes on."""

import os
import platform
from dataclasses import dataclass
from importlib import metadata

import jax


@dataclass(frozen=True)
class Machine:
    """What decides how fast a compiled program is.

    Attributes:
        device, processor: their names.
        cores: that this process may use.
        jaxlib, flags: its version, and XLA_FLAGS.
    """

    device: str
    processor: str
    cores: int
    jaxlib: str
    flags: str

    @classmethod
    def here(cls) -> "Machine":
        """The one that this process has."""
        device, flags = jax.devices()[0], " ".join(sorted(os.environ.get("XLA_FLAGS", "").split()))
        return cls(f"{device.platform} {device.device_kind}", _processor(), cores(), metadata.version("jaxlib"), flags)


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _processor() -> str:
    """The name of the CPU, which Python knows of some systems only."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            found = [line.partition(":")[2].strip() for line in file.read(1 << 16).splitlines() if "model name" in line]
    except OSError:
        found = []
    name = found[0] if found else platform.processor() or platform.machine()
    return name.encode("ascii", "replace").decode()
