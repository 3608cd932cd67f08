"""A Parquet file of captures holds the numbers that a call returns."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import hybridlm
from hybridlm import Intervention
from hybridlm.requests import captured_table

RNG = np.random.default_rng(5)
TEXTS = [[int(i) for i in RNG.integers(3, 90, count)] for count in (13, 1, 7, 9)]
READ: dict[str, Any] = {"hidden_states": [0, 2], "states": True}


def check_rows(path: Path, expected: Sequence[Any]) -> None:
    """Asserts a row for each position of each sequence, in the order of its positions."""
    table = pq.read_table(path)
    index, position = (np.asarray(table[name]) for name in ("index", "position"))
    assert len(index) == sum(len(entry.positions) for entry in expected if entry is not None)
    for number, item in enumerate(expected):
        local = np.flatnonzero(index == number)
        assert item is not None and position[local].tolist() == item.positions.tolist()
        arrays = {f"hidden_states[{i}]": rows for i, rows in item.hidden_states.items()} | dict(item.states)
        assert set(table.column_names) == {"index", "position", *arrays}
        for name, values in arrays.items():
            actual = table[name].combine_chunks().to_numpy_ndarray()[local]
            assert actual.dtype == np.float32 and actual.tobytes() == np.asarray(values).tobytes()
            if name in item.dims:
                assert ("position", *table.schema.field(name).type.dim_names) == item.dims[name]


@pytest.mark.parametrize("positions", ["all", "last", [[0, 5], [0], [6], []]], ids=["all", "last", "chosen"])
def test_rows_of_scores(text_lm: hybridlm.LM, tmp_path: Path, positions: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captured_table, "MAX_GROUP_BYTES", 20_000)
    path = tmp_path / "read.parquet"
    memory = text_lm.score(TEXTS, **READ, positions=positions)
    scores = text_lm.score(TEXTS, **READ, positions=positions, capture_to=path)
    assert [score.logprobs.tobytes() for score in scores] == [score.logprobs.tobytes() for score in memory]
    assert all(item.captured is None for item in scores)
    expected = [item.captured for item in memory if item.captured is not None]
    if len(expected) == len(TEXTS):
        check_rows(path, [item.captured for item in memory])
    else:
        check_rows(path, expected)
    assert (pq.ParquetFile(path).num_row_groups > 1) == (positions == "all"), "rows leave memory while it runs"
    assert [path.name for path in tmp_path.iterdir()] == ["read.parquet"]


@pytest.mark.slow
@pytest.mark.parametrize("positions", ["all", "last"])
def test_rows_of_completions(text_lm: hybridlm.LM, tmp_path: Path, positions: str) -> None:
    request: dict[str, Any] = {**READ, "positions": positions, "max_tokens": 4, "n": 2, "temperature": 0.8, "seed": 0}
    memory = text_lm.generate(TEXTS[:2], **request)
    assert text_lm.generate(TEXTS[:2], **request, capture_to=tmp_path / "read.parquet") == memory
    check_rows(tmp_path / "read.parquet", [item.captured for item in memory])


@pytest.mark.slow
def test_a_run_that_fails_leaves_no_file(text_lm: hybridlm.LM, tmp_path: Path) -> None:
    path, nan = tmp_path / "read.parquet", np.full(text_lm.config.hidden_size, np.nan)
    bad = [Intervention.add(nan, hidden_state=1)]
    with pytest.raises(hybridlm.NumericalError):
        text_lm.generate(TEXTS[:2], max_tokens=4, **READ, positions="all", interventions=[bad, []], capture_to=path)
    stream = text_lm.stream(TEXTS, max_tokens=4, **READ, positions="all", capture_to=path)
    next(stream)
    stream.close()
    text_lm.stream(TEXTS, **READ, capture_to=path).close()
    assert list(tmp_path.iterdir()) == []


def test_inconsistent_input_is_refused(text_lm: hybridlm.LM, tmp_path: Path) -> None:
    (tmp_path / "there.parquet").touch()
    with pytest.raises(FileExistsError):
        text_lm.score(TEXTS, **READ, capture_to=tmp_path / "there.parquet")
    with pytest.raises(ValueError, match="capture_to: expected a folder"):
        text_lm.session(capture_to=tmp_path / "read.parquet")
    assert [path.name for path in tmp_path.iterdir()] == ["there.parquet"]
