"""Batch files as input: pipes, files without requests, repeated names."""

import json
import os
from pathlib import Path

import pytest
from toy_scorer import NO_MODEL, run_toy

from hybridlm import FileOptions
from hybridlm.openai_batch.batch_task import check_batch_file


def write_bad_lines(path: Path, count: int) -> Path:
    path.write_text("".join(json.dumps({"custom_id": str(i)}) + "\n" for i in range(count)))
    return path


def test_a_pipe_is_read_once(tmp_path: Path):
    source = write_bad_lines(tmp_path / "in.jsonl", 5)
    run_toy(NO_MODEL, source, tmp_path / "file.jsonl", window=2)
    read, write = os.pipe()
    os.write(write, source.read_bytes())
    os.close(write)
    report = run_toy(NO_MODEL, f"/dev/fd/{read}", tmp_path / "pipe.jsonl", window=2)
    os.close(read)
    assert report.bad_lines == 5 and len(report.first_errors) == 3
    assert (tmp_path / "pipe.jsonl").read_bytes() == (tmp_path / "file.jsonl").read_bytes()


@pytest.mark.parametrize("name", ["in.parquet", "in.tsv", "in.jsonl.ZST"])
def test_a_file_without_lines_of_json_is_refused(tmp_path: Path, name: str):
    (tmp_path / name).write_bytes(b"PAR1")
    with pytest.raises(ValueError, match=rf"{name}: expected lines of JSON"):
        check_batch_file(tmp_path / name, tmp_path / "out.jsonl", FileOptions())


def test_a_repeated_custom_id_names_both_lines(tmp_path: Path):
    source = write_bad_lines(tmp_path / "in.jsonl", 5)
    with pytest.raises(ValueError, match=r"in\.jsonl: line 1: method: is missing"):
        run_toy(NO_MODEL, source, tmp_path / "strict.jsonl", window=2, strict=True)
    source.write_text(source.read_text() + source.read_text())
    with pytest.raises(ValueError, match=r"line 6: custom_id: is used twice, first in line 1"):
        run_toy(NO_MODEL, source, tmp_path / "strict.jsonl", window=2, strict=True)
