"""Resources of kernels on a GPU, and errors of kernels beyond its limits.

XLA's error has the required memory of a program instance, but no kernel. ptxas reports threads, registers and spills of
XLA's PTX; the executable of an absent GPU exposes neither.
"""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import jax

from ir_passes.targets.gpus import GPUS
from ir_passes.targets.target import TargetError

EXCEEDED = re.compile(r"([\w ]+?)(?: size)? limit exceeded: requested (\d+), available:? (\d+)")
"""XLA's message for a Triton kernel beyond the limits."""
KERNEL_NAME = re.compile(r'@__gpu\$xla\.gpu\.triton\([^\n]*?\bname = "(\w+)"')
"""Name of a Triton kernel in a call of a lowered program."""
TOOLKIT = "/usr/local/cuda/bin"
"""Default folder of CUDA's programs, as in XLA."""
REGISTERS_OF_A_BLOCK, REGISTERS_OF_A_THREAD, THREADS_OF_A_BLOCK = 65_536, 255, 1024
"""Equal on all GPUs from compute capability 5.0 on (CUDA C++ Programming Guide, technical specifications)."""
MAX_SPILLED = 128
"""Allowed bytes of spilled registers per thread: 32 registers."""
ENTRY = re.compile(r"\.entry (\w+_kernel)\b[^{]*?\.(?:req|max)ntid (\d+)")
"""A Pallas kernel in PTX, with its threads."""


@contextmanager
def kernel_limits(lowered: jax.stages.Lowered) -> Iterator[None]:
    """Convert XLA's error for a kernel beyond the limits to `TargetError`."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        exceeded = EXCEEDED.search(str(error))
        if exceeded is None:
            raise
        memory, requested, available = exceeded[1].rpartition(":")[2].strip().lower(), *map(int, exceeded.group(2, 3))
        names = ", ".join(sorted(set(KERNEL_NAME.findall(lowered.as_text())))) or "only those of XLA"
        raise TargetError(
            f"a kernel asks for {requested:,} of {memory} for each program instance, the GPU has {available:,}; "
            f"kernels of the program: {names}. Give your kernel smaller blocks or fewer stages, or load the model with "
            "kernels='off'"
        ) from error


@dataclass(frozen=True)
class KernelResources:
    """Resources of a kernel on a GPU.

    Attributes:
        threads: of a program instance.
        registers: of a thread.
        spilled: bytes of registers per thread that are stored to memory.
    """

    name: str
    threads: int
    registers: int
    spilled: int

    def faults(self) -> tuple[str, ...]:
        """Return the exceeded limits of every GPU, and of `MAX_SPILLED`."""
        numbers = (
            ("threads of a program instance", self.threads, THREADS_OF_A_BLOCK),
            ("registers of a thread", self.registers, REGISTERS_OF_A_THREAD),
            ("registers of a program instance", self.threads * self.registers, REGISTERS_OF_A_BLOCK),
            ("spilled bytes of a thread", self.spilled, MAX_SPILLED),
        )
        exceeded = [number for number in numbers if number[1] > number[2]]
        return tuple(f"{self.name}: {count:,} {kind}, expected at most {limit:,}" for kind, count, limit in exceeded)


def kernel_programs(folder: Path) -> tuple[str, ...]:
    """Return the distinct PTX programs with Pallas kernels in a dump folder.

    Pallas names end in "_kernel". XLA also dumps incomplete parts of a program.
    """
    texts = (file.read_text("utf-8") for file in sorted(folder.glob("*.ptx")))
    return tuple(dict.fromkeys(text for text in texts if ENTRY.search(text)))


def kernel_resources(programs: Iterable[str], target: str) -> tuple[KernelResources, ...]:
    """Return the distinct resources of Pallas kernels in PTX; raises TargetError without ptxas."""
    gpu = GPUS[target.partition(":")[0]]
    major, minor = gpu.capability
    architecture = f"sm_{major}{minor}{'a' if gpu.accelerated else ''}"
    kernels = dict[KernelResources, None]()
    for program in programs:
        threads = dict(ENTRY.findall(program))
        with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
            file.write(program)
            file.flush()
            command = [_ptxas(), "-v", f"-arch={architecture}", file.name, "-o", os.devnull]
            output = subprocess.run(command, capture_output=True, text=True, check=True).stderr
        for entry in output.split("Compiling entry function")[1:]:
            name = re.match(r" '(\w+)'", entry)
            if name is None or name[1] not in threads:
                continue
            used, spilled = re.search(r"Used (\d+) registers", entry), re.search(r"(\d+) bytes spill stores", entry)
            assert used is not None and spilled is not None, entry
            kernels[KernelResources(name[1], int(threads[name[1]]), int(used[1]), int(spilled[1]))] = None
    return tuple(kernels)


def _ptxas() -> Path:
    """Return ptxas of NVIDIA's packages or a CUDA toolkit."""
    spec = find_spec("nvidia")
    places = [] if spec is None else map(Path, spec.submodule_search_locations or ())
    files = [file for place in places for file in place.glob("*/bin/ptxas")]
    toolkit = shutil.which("ptxas") or shutil.which("ptxas", path=TOOLKIT)
    files += [] if toolkit is None else [Path(toolkit)]
    if not files:
        raise TargetError("ptxas is not installed: pip install 'hybridlm[target-cuda]'")
    return files[0]
