"""Kernels cross-compiled for aarch64 and run in an emulator."""

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from models.cpu_kernels.build import build, sources

COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
MISSING = [item for item in (COMPILER, EMULATOR) if shutil.which(item) is None]
STRICT = ("-Wall", "-Wextra", "-Wno-maybe-uninitialized", "-Wno-psabi", "-Werror")
PROCESSORS = ("cortex-a57", "max")
"""The one has no instructions for bfloat16, the other has all."""
SETS = {
    "row_product_check": (2, 3), "packed_product_check": (2, 3), "recurrent_step_check": (2, 2),
    "conv_step_check": (2, 2), "decode_attention_check": (2, 2), "sample_rows_check": (2, 2),
}  # fmt: skip
"""Instruction sets of each processor that a check has code for."""

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(bool(MISSING), reason=f"not on the path: {' '.join(MISSING)}; .ci/long installs them"),
]


@pytest.mark.parametrize("check", SETS)
def test_kernels(check: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    monkeypatch.setenv("CXX", COMPILER)
    inputs = [Path(__file__).with_name(f"{check}.cc"), *sources()]
    program = build(tmp_path / "check", program=inputs, flags=[*STRICT, "-static"])
    for processor, sets in zip(PROCESSORS, SETS[check], strict=True):
        process = subprocess.run([EMULATOR, "-cpu", processor, program, "brief"], capture_output=True, text=True)
        message = process.stdout[-4000:] + process.stderr[-4000:]
        assert process.returncode == 0 and f"{sets} instruction sets, 0 faults" in process.stdout, message
