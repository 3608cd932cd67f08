"""Wheel libraries by zig fit the machine and glibc that their tag names."""

import ctypes
import importlib.util
import platform
import re
import subprocess
from pathlib import Path

import pytest
from instruction_sets import AMX_EMULATION, described, needs_avx512bf16

from models.cpu_kernels.build import build, sources, sources_hash
from models.cpu_kernels.library import INSTRUCTIONS, TARGETS

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        importlib.util.find_spec("ziglang") is None, reason="ziglang is not installed; .ci/long installs it"
    ),
]

ELF_MACHINES = {"x86_64": 62, "aarch64": 183}


@pytest.mark.parametrize("machine", ELF_MACHINES)
def test_library(machine: str, tmp_path: Path):
    path = build(tmp_path / "library.so", tag=f"manylinux_2_28_{machine}")
    content = path.read_bytes()
    # A header of 64 bits, in little-endian order: the machine is its tenth number of 16 bits.
    assert content[:6] == b"\x7fELF\x02\x01" and int.from_bytes(content[18:20], "little") == ELF_MACHINES[machine]
    needed = {tuple(map(int, item)) for item in re.findall(rb"GLIBC_(\d+)\.(\d+)", content)}
    assert needed and max(needed) <= (2, 28)
    if machine == platform.machine():
        can_run = ctypes.CDLL(str(path)).hybridlm_can_run
        can_run.argtypes = [ctypes.c_int64]
        assert {name for index, name in enumerate(INSTRUCTIONS) if can_run(index)} == described()
    assert sources_hash(machine).encode() in content and all(name.encode() in content for name in TARGETS)


@needs_avx512bf16
def test_amx_emulated(tmp_path: Path):
    """The emulator runs zig's code, unlike this machine's compiler's."""
    inputs = [Path(__file__).with_name("row_product_check.cc"), *sources()]
    flags = ["-include", str(AMX_EMULATION)]
    program = build(tmp_path / "check", program=inputs, flags=flags, tag="manylinux_2_28_x86_64")
    process = subprocess.run([program, "brief"], capture_output=True, text=True)
    assert process.returncode == 0 and "2 instruction sets, 0 faults" in process.stdout, (
        process.stdout[-4000:] + process.stderr[-4000:]
    )
