"""The machine of this process: cores, instructions, memory, and active XLA flags."""

import os
import platform
from dataclasses import dataclass
from importlib import metadata

import jax

VECTORS = ("avx", "amx", "fma", "f16c", "asimd", "sve", "bf16", "i8mm")
"""Prefixes of CPU flags of vector instructions, on x86 and ARM."""


@dataclass(frozen=True)
class Machine:
    """Everything that a compiled program's speed depends on.

    Attributes:
        instructions: vector instructions; a virtual machine may hide some.
        cores: available to this process.
    """

    device: str
    processor: str
    instructions: str
    cores: int
    jaxlib: str
    flags: str

    @classmethod
    def here(cls) -> "Machine":
        device, flags = jax.devices()[0], " ".join(sorted(os.environ.get("XLA_FLAGS", "").split()))
        named = f"{device.platform} {device.device_kind}"
        return cls(named, *_processor(), cores(), metadata.version("jaxlib"), flags)


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _processor() -> tuple[str, str]:
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            lines = [line.partition(":") for line in file.read(1 << 16).splitlines()]
    except OSError:
        lines = []
    fields = {name.strip().lower(): value.strip() for name, _, value in reversed(lines)}
    name = fields.get("model name") or platform.processor() or platform.machine()
    instructions = fields.get("flags", fields.get("features", "")).split()
    vectors = sorted(instruction for instruction in instructions if instruction.startswith(VECTORS))
    return name.encode("ascii", "replace").decode(), " ".join(vectors).encode("ascii", "replace").decode()
