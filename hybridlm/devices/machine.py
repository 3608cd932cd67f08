"""The machine that this process computes on: its cores, instructions and memory, and the XLA flags in force."""

import os
import platform
from dataclasses import dataclass
from importlib import metadata

import jax

VECTORS = ("avx", "amx", "fma", "f16c", "asimd", "sve", "bf16", "i8mm")
"""Prefixes of the CPU flags of vector instructions, on x86 and ARM."""


@dataclass(frozen=True)
class Machine:
    """Everything that the speed of a compiled program depends on.

    Attributes:
        device, processor: their names.
        instructions: vector instructions of the processor, some of which a virtual machine may hide.
        cores: that this process may use.
        jaxlib, flags: version of jaxlib, and XLA_FLAGS.
    """

    device: str
    processor: str
    instructions: str
    cores: int
    jaxlib: str
    flags: str

    @classmethod
    def here(cls) -> "Machine":
        """Return the machine of this process."""
        device, flags = jax.devices()[0], " ".join(sorted(os.environ.get("XLA_FLAGS", "").split()))
        named = f"{device.platform} {device.device_kind}"
        return cls(named, *_processor(), cores(), metadata.version("jaxlib"), flags)


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _processor() -> tuple[str, str]:
    """Return the name of the CPU and its vector instructions, as far as the system tells."""
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
