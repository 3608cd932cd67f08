"""An unwritable folder: every writer refuses it by name."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from toy_scorer import NO_MODEL, TOY, run_toy, write_lines

import hybridlm


@pytest.fixture
def locked() -> Iterator[Path]:
    """A folder without write permission; root runs as another user meanwhile."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_lines(folder / "in.jsonl", [{"id": 1, "text": "a", "custom_id": "a"}])
        (folder / "locked").mkdir()
        (folder / "locked" / "older.jsonl").write_text("older")
        folder.chmod(0o755)
        (folder / "locked").chmod(0o555)
        root = os.geteuid() == 0
        if root:
            os.seteuid(65534)
        try:
            yield folder / "locked"
        finally:
            if root:
                os.seteuid(0)
        assert [path.name for path in (folder / "locked").iterdir()] == ["older.jsonl"]
        assert (folder / "locked" / "older.jsonl").read_text() == "older"
        (folder / "locked").chmod(0o755)


def test_it_is_refused_before_anything_is_read(text_lm: hybridlm.LM, locked: Path):
    prefix = text_lm.prefix([5])
    absent = locked.parent / "absent.jsonl"
    for name in ("older.jsonl", "new.jsonl"):
        for write in (
            lambda output: run_toy(TOY, absent, output),
            lambda output: prefix.save(output),
            lambda output: run_toy(NO_MODEL, locked.parent / "in.jsonl", output, window=8),
        ):
            with pytest.raises(PermissionError, match="no file can be made in this directory") as raised:
                write(locked / name)
            assert raised.value.filename == str(locked)
