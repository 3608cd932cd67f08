"""What an installation contains: exactly the three packages, typed, with their data."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("hybridlm", "ir_passes", "models")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    (path,) = folder.glob("*.whl")
    assert path.name.endswith("-py3-none-any.whl")
    return zipfile.ZipFile(path)


def test_wheel_holds_every_file_of_the_three_packages_and_nothing_else(wheel: zipfile.ZipFile):
    built = {name for name in wheel.namelist() if not name.split("/")[0].endswith(".dist-info")}
    present = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert built == present
    for package in PACKAGES:
        assert {f"{package}/__init__.py", f"{package}/py.typed"} <= built


def test_wheel_metadata(wheel: zipfile.ZipFile):
    (folder,) = {name.split("/")[0] for name in wheel.namelist() if ".dist-info/" in name}
    assert "hybridlm = hybridlm.cli.main:main" in wheel.read(f"{folder}/entry_points.txt").decode()
    metadata = wheel.read(f"{folder}/METADATA").decode()
    for line in ("Name: hybridlm", "Requires-Python: >=3.11", "License-Expression: Apache-2.0"):
        assert line in metadata.splitlines()
    assert f"{folder}/licenses/LICENSE" in wheel.namelist()
