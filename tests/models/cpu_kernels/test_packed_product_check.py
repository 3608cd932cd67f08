"""Products of packed weights at the edges of memory, and with sanitizers: packed_product_check.cc."""

import subprocess
from pathlib import Path

import pytest

from models.cpu_kernels.build import FOLDER, LIBRARY, build, is_current

pytestmark = pytest.mark.cpu_kernels

CHECK = Path(__file__).with_name("packed_product_check.cc")
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-g1")
STRICT = ("-Wall", "-Wextra", "-Wno-maybe-uninitialized", "-Wno-psabi", "-Werror")


def run(program: Path) -> None:
    done = subprocess.run([program], capture_output=True, text=True)
    assert done.returncode == 0 and ", 0 faults" in done.stdout, done.stdout[-4000:] + done.stderr[-4000:]


@pytest.mark.slow
def test_packed_product(tmp_path: Path) -> None:
    assert is_current(), "no kernels: build them with `python -m models.cpu_kernels`"
    run(build(tmp_path / "check", program=[CHECK, LIBRARY]))


@pytest.mark.long
def test_packed_product_with_sanitizers(tmp_path: Path) -> None:
    sources = [CHECK, *sorted(FOLDER.glob("*.cc"))]
    run(build(tmp_path / "check", program=sources, flags=[*STRICT, "-O1", *SANITIZERS]))
