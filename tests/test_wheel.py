"""What an installation contains: exactly the three packages, typed, with their data."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from models.cpu_kernels.build import NAME

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("hybridlm", "ir_passes", "models")


LIBRARY = f"models/cpu_kernels/{NAME}"


def built(folder: Path, kernels: str) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    result = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env=os.environ | {"HYBRIDLM_KERNELS": kernels}
    )
    assert result.returncode == 0, result.stderr
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    path = built(tmp_path_factory.mktemp("wheel"), "off")
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
    path = built(tmp_path, "required")
    assert "-py3-none-" in path.name and not path.name.endswith("-any.whl")
    assert contents(zipfile.ZipFile(path)) == contents(wheel) | {LIBRARY}


def test_wheel_metadata(wheel: zipfile.ZipFile):
    (folder,) = {name.split("/")[0] for name in wheel.namelist() if ".dist-info/" in name}
    assert "hybridlm = hybridlm.cli.main:main" in wheel.read(f"{folder}/entry_points.txt").decode()
    metadata = wheel.read(f"{folder}/METADATA").decode()
    for line in ("Name: hybridlm", "Requires-Python: >=3.11", "License-Expression: Apache-2.0"):
        assert line in metadata.splitlines()
    assert f"{folder}/licenses/LICENSE" in wheel.namelist()
