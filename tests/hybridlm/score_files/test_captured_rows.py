"""Files of scores with hidden states and states: the numbers of `LM.score`, row by row."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import hybridlm
from hybridlm.score_files import captured_rows

LINES = [
    {"id": "a", "text": "a text of some letters"},
    {"id": "b", "token_ids": [5, 6, 7]},
    {"id": "c", "token_ids": [5, 600]},
    {"id": "d", "prompt": "What? ", "completion": "that."},
    {"id": "e", "prompt": "What? ", "completion": ["one", "two"]},
    {"id": "f", "token_ids": [8]},
]
GOOD = {"a": LINES[0]["text"], "b": LINES[1]["token_ids"], "d": LINES[3], "f": [8]}
READ: dict[str, Any] = {"hidden_states": [0, 2], "states": True}


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    return path


def read_back(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(("ending", "positions"), [("jsonl", "last"), ("parquet", "all")])
def test_rows_have_what_score_returns(
    text_lm: hybridlm.LM, texts: Path, ending: str, positions: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In windows that hold few of them; a row that cannot be scored has an error, and no other notices."""
    monkeypatch.setattr(captured_rows, "MAX_CAPTURED_BYTES", 100_000 if positions == "all" else 20_000)
    output, whole, windows = texts.parent / f"out.{ending}", text_lm._scores, list[int]()

    def counted(ids: Any, **more: Any) -> Any:
        windows.append(len(ids))
        return whole(ids, **more)

    monkeypatch.setattr(text_lm, "_scores", counted)
    report = text_lm.score_file(texts, output, positions=positions, **READ)
    assert max(windows) == (1 if positions == "all" else 2) and sum(windows) == 4
    monkeypatch.setattr(text_lm, "_scores", whole)
    rows = {row["id"]: row for row in read_back(output)}
    assert list(rows) == [line["id"] for line in LINES] and (report.texts, report.errors) == (4, 2)
    assert "600" in rows["c"]["error"] and "one completion" in rows["e"]["error"]
    scored = text_lm.score(list(GOOD.values()), positions=positions, **READ)
    for id, one in zip(GOOD, scored, strict=True):
        row, captured = rows[id], one.captured
        assert captured is not None and row.get("error") is None and row["token_ids"] == list(one.token_ids)
        assert row["positions"] == captured.positions.tolist()
        np.testing.assert_allclose(row["sum_logprob"], one.sum_logprob, atol=1e-3)
        arrays = {f"hidden_states[{i}]": rows for i, rows in captured.hidden_states.items()} | captured.states
        for name, values in arrays.items():
            np.testing.assert_allclose(np.reshape(row[name], values.shape), values, atol=1e-4, err_msg=name)


def test_a_run_goes_on_with_the_same_settings_alone(
    text_lm: hybridlm.LM, texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, runs = texts.parent / "out.jsonl", []
    whole = text_lm._scores

    def stops(*given: Any, **more: Any) -> Any:
        runs.append(given)
        if len(runs) == 2:
            raise KeyboardInterrupt
        return whole(*given, **more)

    monkeypatch.setattr(text_lm, "_scores", stops)
    with pytest.raises(KeyboardInterrupt):
        text_lm.score_file(texts, output, window=3, hidden_states=[1])
    with pytest.raises(ValueError, match="parts"):
        text_lm.score_file(texts, output, window=3, hidden_states=[2])
    assert text_lm.score_file(texts, output, window=3, hidden_states=[1]).kept == 3
    assert len(runs) == 3 and len(read_back(output)) == len(LINES)


def test_what_does_not_fit_is_refused(text_lm: hybridlm.LM, texts: Path) -> None:
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("token_ids, top", {"states": True, "top": 2}),
        ("positions: expected last or all", {"states": True, "positions": [1]}),
        ("hidden_states: expected indices 0..2", {"hidden_states": [3]}),
        ("window", {"hidden_states": [1], "window": 0}),
    ]
    for words, given in wrong:
        with pytest.raises(ValueError, match=words):
            text_lm.score_file(texts, texts.parent / "out.jsonl", **given)
    assert [one.name for one in texts.parent.iterdir()] == ["in.jsonl"]
