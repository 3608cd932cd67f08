"""Steps of recurrences beside float64, lane by lane and at the edges of memory: recurrent_step_check.cc; sanitizers."""

import subprocess
from pathlib import Path

import pytest

from models.cpu_kernels.build import FOLDER, LIBRARY, build, is_current

pytestmark = pytest.mark.cpu_kernels

CHECK = Path(__file__).with_name("recurrent_step_check.cc")
SANITIZERS = {
    "address": ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-g1"),
    "thread": ("-fsanitize=thread", "-g1"),
}
STRICT = ("-Wall", "-Wextra", "-Wno-maybe-uninitialized", "-Wno-psabi", "-Werror")


def run(program: Path, *arguments: str) -> None:
    done = subprocess.run([program, *arguments], capture_output=True, text=True)
    assert done.returncode == 0 and ", 0 faults" in done.stdout, done.stdout[-4000:] + done.stderr[-4000:]


def test_recurrent_step(tmp_path: Path):
    assert is_current(), "no kernels: build them with `python -m models.cpu_kernels`"
    run(build(tmp_path / "check", program=[CHECK, LIBRARY]))


@pytest.mark.long
@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_recurrent_step_with_sanitizers(tmp_path: Path, sanitizer: str):
    sources = [CHECK, *sorted(FOLDER.glob("*.cc"))]
    run(build(tmp_path / "check", program=sources, flags=[*STRICT, "-O1", *SANITIZERS[sanitizer]]), "brief")
