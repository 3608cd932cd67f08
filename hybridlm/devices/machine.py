"""What this process computes on."""

import os
import platform
from dataclasses import dataclass
from importlib import metadata

import jax

VECTORS = ("avx", "amx", "fma", "f16c", "asimd", "sve", "bf16", "i8mm")
"""How the flags of vector instructions begin, of x86 and of ARM."""


@dataclass(frozen=True)
class Machine:
    """What decides how fast a compiled program is.

    Attributes:
        device, processor: their names.
        instructions: what the processor has of instructions for several numbers at a time, which a virtual machine may
            hide.
        cores: that this process may use.
        jaxlib, flags: its version, and XLA_FLAGS.
    """

    device: str
    processor: str
    instructions: str
    cores: int
    jaxlib: str
    flags: str

    @classmethod
    def here(cls) -> "Machine":
        """The one that this process has."""
        device, flags = jax.devices()[0], " ".join(sorted(os.environ.get("XLA_FLAGS", "").split()))
        named = f"{device.platform} {device.device_kind}"
        return cls(named, *_processor(), cores(), metadata.version("jaxlib"), flags)


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _processor() -> tuple[str, str]:
    """The name of the CPU and its vector instructions, which Python knows of some systems only."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            lines = [line.partition(":") for line in file.read(1 << 16).splitlines()]
    except OSError:
        lines = []
    known = {name.strip().lower(): value.strip() for name, _, value in reversed(lines)}
    name = known.get("model name") or platform.processor() or platform.machine()
    instructions = known.get("flags", known.get("features", "")).split()
    vectors = sorted(one for one in instructions if one.startswith(VECTORS))
    return name.encode("ascii", "replace").decode(), " ".join(vectors).encode("ascii", "replace").decode()
