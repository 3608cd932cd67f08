"""AMX: detected, compiled, and multiplied through XLA over an emulation.

The kernels alone are checked over it in test_kernel_checks.
"""

import subprocess
import sys
from pathlib import Path

import pytest
from instruction_sets import AMX_EMULATION, needs_avx512bf16

from models.cpu_kernels.build import INSTRUCTION_FLAGS, LIBRARY, NAME, build, compiler, understands

pytestmark = pytest.mark.cpu_kernels

TDPBF16PS = bytes.fromhex("c4e24a5cc4")
"""The instruction's bytes for tiles 0, 4 and 6."""
PRODUCTS = [Path(__file__).parents[1] / "ops" / f"test_{name}_product.py" for name in ("row", "packed")]
OVER_ANOTHER_LIBRARY = """
import pathlib, sys
import pytest


class Plugin:
    def pytest_sessionstart(self):
        from models.cpu_kernels import library

        sys.modules[library.__module__].LIBRARY = pathlib.Path(sys.argv[1])
        assert library().instructions == ("portable", "amx")


options = ["-p", "no:cacheprovider", "-p", "no:faulthandler", "-q"]
sys.exit(pytest.main([*options, *sys.argv[2:]], plugins=[Plugin()]))
"""
"""Program that runs tests with another library; the emulation handles illegal instructions."""


def test_instruction_sets_are_told_from_what_a_processor_says(tmp_path: Path):
    program = build(tmp_path / "check", program=[Path(__file__).with_name("processor_check.cc")])
    process = subprocess.run([program], capture_output=True, text=True)
    assert process.returncode == 0 and ", 0 faults" in process.stdout, process.stdout


def test_library_has_the_instructions_if_the_compiler_knows_them():
    command = compiler()
    assert command is not None
    assert (TDPBF16PS in LIBRARY.read_bytes()) == understands(command, INSTRUCTION_FLAGS["amx"])


def test_a_compiler_that_does_not_know_an_instruction_set_compiles_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    source = tmp_path / "asked_amx.cc"
    source.write_text("#if defined(__AMX_TILE__)\n#error\n#endif\nint main() { return 0; }\n")
    monkeypatch.setitem(INSTRUCTION_FLAGS, "amx", ("-mamx-tile", "-mno-such-instructions"))
    assert subprocess.run([build(tmp_path / "program", program=[source])]).returncode == 0


@pytest.mark.long
@needs_avx512bf16
def test_products_through_xla(tmp_path: Path):
    library = build(tmp_path / NAME, flags=["-include", str(AMX_EMULATION)])
    command = [sys.executable, "-c", OVER_ANOTHER_LIBRARY, library, *PRODUCTS]
    process = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[3])
    assert process.returncode == 0, process.stdout[-4000:] + process.stderr[-4000:]
