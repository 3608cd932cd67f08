"""`hybridlm cache`: listing, deletion, and refusal of foreign folders."""

import os
from pathlib import Path

import pytest
from command_line import run_command

NAMES = ("a", "b", "c")


def run(*arguments: str | Path, code: int = 0) -> str:
    return run_command("cache", *arguments, code=code).output


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
    assert listed.count("damaged") == 3 and "3 steps" in listed
    run("clear", "--folder", tmp_path, "--max-size", "1kB")
    assert [path.name[0] for path in steps.iterdir()] == ["c"]
    run("clear", "--folder", tmp_path)
    assert not list(steps.iterdir())


def test_folder_that_is_not_there_is_empty(tmp_path: Path) -> None:
    for command in ("list", "clear"):
        assert "0 steps" in run(command, "--folder", tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_wrong_sizes_and_folders_of_others_are_refused(steps: Path, tmp_path: Path) -> None:
    run("clear", "--folder", tmp_path, "--max-size", "much", code=1)
    steps.chmod(0o777)
    for command in ("list", "clear"):
        assert "may be written by others" in run(command, "--folder", tmp_path, code=1)
    assert len(list(steps.iterdir())) == 3
