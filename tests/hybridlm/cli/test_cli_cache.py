"""`hybridlm cache`: listing, deletion, and refusal of foreign folders."""

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from hybridlm.cli.main import app

NAMES = ("a", "b", "c")


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["cache", *map(str, arguments)])


@pytest.fixture
def steps(tmp_path: Path) -> Path:
    """Three files of 1000 bytes, no entry among them; "c" was used last."""
    folder = tmp_path / "steps"
    folder.mkdir(mode=0o700)
    for number, name in enumerate(NAMES):
        path = folder / f"{name * 64}.step"
        path.write_bytes(bytes(1000))
        os.utime(path, (1000 + number, 1000 + number))
    return folder


def test_files_are_listed_and_the_oldest_deleted(steps: Path, tmp_path: Path) -> None:
    listed = run("list", "--folder", tmp_path)
    assert listed.exit_code == 0 and listed.output.count("damaged") == 3 and "3 steps" in listed.output
    assert run("clear", "--folder", tmp_path, "--max-size", "1kB").exit_code == 0
    assert [path.name[0] for path in steps.iterdir()] == ["c"]
    assert run("clear", "--folder", tmp_path).exit_code == 0
    assert not list(steps.iterdir())


def test_folder_that_is_not_there_is_empty(tmp_path: Path) -> None:
    for command in ("list", "clear"):
        result = run(command, "--folder", tmp_path / "none")
        assert result.exit_code == 0 and "0 steps" in result.output
    assert not (tmp_path / "none").exists()


def test_wrong_sizes_and_folders_of_others_are_refused(steps: Path, tmp_path: Path) -> None:
    assert run("clear", "--folder", tmp_path, "--max-size", "much").exit_code == 1
    steps.chmod(0o777)
    for command in ("list", "clear"):
        result = run(command, "--folder", tmp_path)
        assert result.exit_code == 1 and "may be written by others" in result.output
    assert len(list(steps.iterdir())) == 3
