"""C++ checks of each kernel, also sanitized: numbers, separate rows and lanes, memory edges."""

import subprocess
from pathlib import Path

import pytest
from instruction_sets import AMX_EMULATION, needs_avx512bf16

from models.cpu_kernels.build import LIBRARY, build, is_current, sources

pytestmark = pytest.mark.cpu_kernels

SIZES = {
    "row_product": "brief", "packed_product": "all", "recurrent_step": "brief", "conv_step": "brief",
    "decode_attention": "brief", "sample_rows": "brief",
}  # fmt: skip
"""Checks of kernels, with the sizes that a build with sanitizers runs in minutes."""
SANITIZERS = {
    "address": ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-g1"),
    "thread": ("-fsanitize=thread", "-g1"),
}
WITH_AMX = ("-include", str(AMX_EMULATION))
"""Compiler flags that emulate AMX on processors without it."""
STRICT = ("-Wall", "-Wextra", "-Wno-uninitialized", "-Wno-maybe-uninitialized", "-Wno-psabi", "-Werror")
"""Without warnings of what GCC's own intrinsics for AVX-512 leave undefined on purpose (`__m512 __Y = __Y`)."""


def source(name: str) -> Path:
    return Path(__file__).with_name(f"{name}_check.cc")


def run(program: Path, *arguments: str) -> None:
    process = subprocess.run([program, *arguments], capture_output=True, text=True)
    assert process.returncode == 0 and ", 0 faults" in process.stdout, process.stdout[-4000:] + process.stderr[-4000:]


@pytest.mark.slow
@pytest.mark.parametrize("sizes", ["brief", pytest.param("all", marks=pytest.mark.long)])
@pytest.mark.parametrize("kernel", SIZES)
def test_kernel(kernel: str, sizes: str, tmp_path: Path):
    """Sizes with different remainders of vectors and tiles; the long run has all."""
    assert is_current(), "no kernels: build them with `python -m models.cpu_kernels`"
    run(build(tmp_path / "check", program=[source(kernel), LIBRARY], flags=["-O1"]), sizes)


@pytest.mark.long
@pytest.mark.parametrize("sanitizer", SANITIZERS)
@pytest.mark.parametrize("kernel", SIZES)
def test_kernel_with_sanitizers(kernel: str, sanitizer: str, tmp_path: Path):
    inputs = [source(kernel), *sources()]
    run(build(tmp_path / "check", program=inputs, flags=[*STRICT, "-O1", *SANITIZERS[sanitizer]]), SIZES[kernel])


@pytest.mark.long
@needs_avx512bf16
@pytest.mark.parametrize("sanitizer", [None, *SANITIZERS])
@pytest.mark.parametrize("kernel", ["row_product", "packed_product"])
def test_kernel_with_amx_emulated(kernel: str, sanitizer: str | None, tmp_path: Path):
    """All sizes, without sanitizers: these make emulated instructions many times slower."""
    inputs = [source(kernel), *sources()]
    flags = [*STRICT, "-O1", *SANITIZERS[sanitizer]] if sanitizer else []
    program = build(tmp_path / "check", program=inputs, flags=[*WITH_AMX, *flags])
    run(program, "brief" if sanitizer else SIZES[kernel])
