"""Instruction sets for tests of CPU kernels."""

from pathlib import Path

import pytest

from models.cpu_kernels import INSTRUCTIONS, library


def instruction_sets() -> tuple[str, ...]:
    """Return this processor's sets; without a library all, so that tests fail."""
    result = library()
    return INSTRUCTIONS if result is None else result.instructions


AMX_EMULATION = Path(__file__).parents[2] / "models" / "cpu_kernels" / "amx_emulation.h"
"""Header that emulates AMX for checks and libraries on other processors."""
needs_avx512bf16 = pytest.mark.skipif(
    "avx512bf16" not in instruction_sets(), reason="beside tiles, the code for AMX has vectors of AVX-512 with BF16"
)

NEEDED = {
    "avx2": "avx2 fma",
    "avx512": "avx2 fma avx512f avx512bw avx512vl avx512dq",
    "avx512bf16": "avx2 fma avx512f avx512bw avx512vl avx512dq avx512_bf16 avx512vbmi",
    "amx": "avx2 fma avx512f avx512bw avx512vl avx512dq avx512_bf16 avx512vbmi amx_tile amx_bf16",
    "neon": "asimd",
    "neonbf16": "asimd bf16",
}
"""Flags of a processor that has an instruction set, as Linux names them."""


def described() -> set[str]:
    """Return the instruction sets that this processor runs, as Linux describes it."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = next(line.partition(":")[2].split() for line in lines if line.startswith(("flags", "Features")))
    return {"portable"} | {name for name, needed in NEEDED.items() if set(needed.split()) <= set(flags)}
