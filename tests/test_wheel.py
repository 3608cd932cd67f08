"""Content of an installation: exactly the three packages, typed, with their data."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("hybridlm", "ir_passes", "models")


LIBRARY = "models/cpu_kernels/libhybridlm_kernels.so"


def build(folder: Path, **environment: str) -> tuple[Path, str]:
    """Build a wheel; return its path and printed output."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=os.environ | environment)
    assert result.returncode == 0, result.stderr
    (path,) = folder.glob("*.whl")
    return path, result.stdout + result.stderr


def built(folder: Path, **environment: str) -> Path:
    return build(folder, **environment)[0]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    path = built(tmp_path_factory.mktemp("wheel"), HYBRIDLM_KERNELS="off")
    assert path.name.endswith("-py3-none-any.whl")
    return zipfile.ZipFile(path)


def contents(wheel: zipfile.ZipFile) -> set[str]:
    return {name for name in wheel.namelist() if not name.split("/")[0].endswith(".dist-info")}


def test_wheel_holds_every_file_of_the_three_packages_and_nothing_else(wheel: zipfile.ZipFile):
    present = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert contents(wheel) == present - {LIBRARY}
    for package in PACKAGES:
        assert {f"{package}/__init__.py", f"{package}/py.typed"} <= contents(wheel)


@pytest.mark.cpu_kernels
def test_wheel_with_kernels_is_one_of_the_platform(wheel: zipfile.ZipFile, tmp_path: Path):
    path = built(tmp_path, HYBRIDLM_KERNELS="required")
    assert "-py3-none-" in path.name and not path.name.endswith("-any.whl")
    assert contents(zipfile.ZipFile(path)) == contents(wheel) | {LIBRARY}


def test_wheel_without_the_requested_compiler_warns_and_has_no_kernels(tmp_path: Path):
    path, message = build(tmp_path, CXX="no-such-compiler", HYBRIDLM_KERNELS="auto")
    assert "CXX='no-such-compiler'" in message
    assert path.name.endswith("-py3-none-any.whl")


REQUIRED = "import hatchling.build as build; print(*build.get_requires_for_build_wheel(), sep=chr(10))"


@pytest.mark.cpu_kernels
@pytest.mark.parametrize(("environment", "fetched"), [
    ({"HYBRIDLM_KERNELS": "auto"}, []), ({"HYBRIDLM_KERNELS": "off"}, []), ({"CXX": "c++"}, ["jaxlib>=0.10.2"]),
], ids=["built already", "none wanted", "asked to compile"])  # fmt: skip
def test_headers_are_fetched_where_something_is_compiled(
    environment: dict[str, str], fetched: list[str], kernels_are_current: bool
):
    assert kernels_are_current
    variables = {name: value for name, value in os.environ.items() if name != "CXX"} | environment
    command = [sys.executable, "-c", REQUIRED]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=variables)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == fetched


ZIG = """
import sys
from pathlib import Path

compiler, *arguments = sys.argv[1:]
assert compiler == "c++"
Path(arguments[arguments.index("-o") + 1]).write_text(arguments[arguments.index("-target") + 1])
"""
"""A compiler that records its target machine."""


@pytest.mark.slow
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_wheel_for_another_platform_has_its_library_and_the_tree_keeps_its_own(
    wheel: zipfile.ZipFile, tmp_path: Path, machine: str
):
    (tmp_path / "ziglang").mkdir()
    (tmp_path / "ziglang" / "__main__.py").write_text(ZIG)
    source = ROOT / LIBRARY
    initial = source.read_bytes() if source.exists() else None
    paths = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    path = built(tmp_path, HYBRIDLM_PLATFORM=f"manylinux_2_28_{machine}", PYTHONPATH=paths)
    assert path.name.endswith(f"-py3-none-manylinux_2_28_{machine}.whl")
    zip_file = zipfile.ZipFile(path)
    assert contents(zip_file) == contents(wheel) | {"models/cpu_kernels/libhybridlm_kernels.so"}
    assert zip_file.read("models/cpu_kernels/libhybridlm_kernels.so").decode() == f"{machine}-linux-gnu.2.28"
    assert (source.read_bytes() if source.exists() else None) == initial


def test_wheel_metadata(wheel: zipfile.ZipFile):
    (folder,) = {name.split("/")[0] for name in wheel.namelist() if ".dist-info/" in name}
    assert "hybridlm = hybridlm.cli.main:main" in wheel.read(f"{folder}/entry_points.txt").decode()
    metadata = wheel.read(f"{folder}/METADATA").decode()
    for line in ("Name: hybridlm", "Requires-Python: >=3.11", "License-Expression: Apache-2.0"):
        assert line in metadata.splitlines()
    assert f"{folder}/licenses/LICENSE" in wheel.namelist()
