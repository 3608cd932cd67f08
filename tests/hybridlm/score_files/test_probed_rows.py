"""Files of scores with captures and interventions equal `LM.score` row by row."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from toy_scorer import interrupted

import hybridlm
from hybridlm import Intervention
from hybridlm.score_files import probed_rows

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
VECTOR = np.linspace(-2, 2, 32, dtype=np.float32)
CHANGES: list[tuple[list[dict[str, Any]] | None, list[Intervention]]] = [
    ([{"kind": "add", "vector": VECTOR.tolist(), "hidden_state": 1}], [Intervention.add(VECTOR, hidden_state=1)]),
    (None, []),
    (
        [
            {"kind": "scale_state", "layer": 0, "factor": 0, "positions": [1, 3]},
            {"kind": "ablate_head", "layer": 1, "head": 2},
        ],
        [Intervention.scale_state(0, 0, positions=[1, 3]), Intervention.ablate_head(1, 2)],
    ),
    ([], []),
]
"""Interventions of each row: as objects in a file, and as arguments of `score`."""
TEXTS = [[5, 6, 7, 8, 9], [9, 8, 7, 6], [11, 12, 13, 14, 15, 16], [5, 6, 7, 8, 9]]


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
def test_rows_have_the_numbers_of_score(
    text_lm: hybridlm.LM, texts: Path, ending: str, positions: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small windows; an unscorable row has an error, and the others are unchanged."""
    monkeypatch.setattr(probed_rows, "MAX_CAPTURED_BYTES", 100_000 if positions == "all" else 20_000)
    output, full, windows = texts.parent / f"out.{ending}", text_lm.text_model.scores, list[int]()

    def counted(ids: Any, **options: Any) -> Any:
        windows.append(len(ids))
        return full(ids, **options)

    monkeypatch.setattr(text_lm.text_model, "scores", counted)
    report = text_lm.score_file(texts, output, positions=positions, **READ)
    assert max(windows) == (1 if positions == "all" else 2) and sum(windows) == 4
    monkeypatch.setattr(text_lm.text_model, "scores", full)
    rows = {row["id"]: row for row in read_back(output)}
    assert list(rows) == [line["id"] for line in LINES] and (report.texts, report.errors) == (4, 2)
    assert "600" in rows["c"]["error"] and "one completion" in rows["e"]["error"]
    scored = text_lm.score(list(GOOD.values()), positions=positions, **READ)
    for id, completion in zip(GOOD, scored, strict=True):
        row, captured = rows[id], completion.captured
        assert captured is not None and row.get("error") is None and row["token_ids"] == list(completion.token_ids)
        assert row["positions"] == captured.positions.tolist()
        np.testing.assert_allclose(row["sum_logprob"], completion.sum_logprob, atol=1e-3)
        arrays = {f"hidden_states[{i}]": rows for i, rows in captured.hidden_states.items()} | dict(captured.states)
        for name, values in arrays.items():
            np.testing.assert_allclose(np.reshape(row[name], values.shape), values, atol=1e-4, err_msg=name)


def test_a_run_continues_only_with_its_settings(text_lm: hybridlm.LM, texts: Path, monkeypatch: pytest.MonkeyPatch):
    output, runs = texts.parent / "out.jsonl", []
    scores = text_lm.text_model.scores

    def stops(*args: Any, **options: Any) -> Any:
        runs.append(args)
        if len(runs) == 2:
            raise KeyboardInterrupt
        return scores(*args, **options)

    monkeypatch.setattr(text_lm.text_model, "scores", stops)
    with pytest.raises(KeyboardInterrupt):
        text_lm.score_file(texts, output, window=3, hidden_states=[1])
    with pytest.raises(ValueError, match="parts"):
        text_lm.score_file(texts, output, window=3, hidden_states=[2])
    assert text_lm.score_file(texts, output, window=3, hidden_states=[1]).kept == 3
    assert len(runs) == 3 and len(read_back(output)) == len(LINES)


def test_inconsistent_input_is_refused(text_lm: hybridlm.LM, texts: Path) -> None:
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("positions: expected last or all", {"states": True, "positions": [1]}),
        ("hidden_states: expected indices 0..2", {"hidden_states": [3]}),
        ("window", {"hidden_states": [1], "window": 0}),
        ("interventions.0.: layer: expected 0..1", {"interventions": [Intervention.scale_state(2, 0)]}),
    ]
    for words, settings in wrong:
        with pytest.raises(ValueError, match=words):
            text_lm.score_file(texts, texts.parent / "out.jsonl", **settings)
    assert [path.name for path in texts.parent.iterdir()] == ["in.jsonl"]


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_rows_with_different_interventions(text_lm: hybridlm.LM, tmp_path: Path, ending: str) -> None:
    """The bits of `score`, next to questions about distributions; nothing is recompiled."""
    entries = [{"token_ids": ids, "wanted": own_value} for ids, (own_value, _) in zip(TEXTS, CHANGES, strict=True)]
    path, request = write_rows(tmp_path / f"in.{ending}", entries), dict[str, Any](top=2)
    report = text_lm.score_file(path, tmp_path / f"out.{ending}", interventions="wanted", **request)
    assert (report.texts, report.errors) == (4, 0)
    expected = text_lm.score(TEXTS, interventions=[own_value for _, own_value in CHANGES], **request)
    plain = text_lm.score(TEXTS, **request)
    rows = read_back(tmp_path / f"out.{ending}")
    for row, score, initial, (_, local) in zip(rows, expected, plain, CHANGES, strict=True):
        assert row["logprobs"][0] is None and row["logprobs"][1:] == score.logprobs[1:].tolist()
        assert (row["logprobs"][1:] == initial.logprobs[1:].tolist()) == (not local)
    entries[0]["wanted"], entries[2]["wanted"] = CHANGES[2][0], CHANGES[0][0]
    compiled = text_lm.stats["compiled"]
    text_lm.score_file(write_rows(path, entries), tmp_path / f"again.{ending}", interventions="wanted", **request)
    assert text_lm.stats["compiled"] == compiled


@pytest.mark.slow
def test_interventions_of_all_rows_with_reads(text_lm: hybridlm.LM, texts: Path) -> None:
    changes, output = [Intervention.add(VECTOR, hidden_state=1, positions=[0])], texts.parent / "out.jsonl"
    report = text_lm.score_file(texts, output, interventions=changes, hidden_states=[2], entropy=True)
    rows = {row["id"]: row for row in read_back(output)}
    assert (report.texts, report.errors) == (4, 2)
    scored = text_lm.score(list(GOOD.values()), interventions=changes, hidden_states=[2], entropy=True)
    for id, score in zip(GOOD, scored, strict=True):
        assert score.captured is not None
        np.testing.assert_allclose(rows[id]["hidden_states[2]"], score.captured.hidden_states[2][0], atol=1e-4)
        np.testing.assert_allclose(rows[id]["logprobs"][1:], score.logprobs[1:], atol=1e-4)
        assert score.entropy is not None
        np.testing.assert_allclose(rows[id]["entropy"][1:], score.entropy[1:], atol=1e-4)
    with pytest.raises(ValueError, match="parts"):  # of a run with another vector
        _interrupted(text_lm, texts, changes, [Intervention.add(VECTOR + 1, hidden_state=1, positions=[0])])


def _interrupted(lm: hybridlm.LM, texts: Path, first: list[Intervention], then: list[Intervention]) -> None:
    output = texts.parent / "parts.jsonl"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lm.text_model, "scores", interrupted(lm.text_model.scores, 1))
        with pytest.raises(KeyboardInterrupt):
            lm.score_file(texts, output, window=3, interventions=first)
    lm.score_file(texts, output, window=3, interventions=then)


def test_a_row_whose_interventions_are_wrong_has_an_error(text_lm: hybridlm.LM, tmp_path: Path) -> None:
    wrong: list[tuple[str, Any]] = [
        ("how[0]: expected an object whose kind is one of add", [{"kind": "patch"}]),
        ("how[1]: expected fields of scale_state", [*(CHANGES[0][0] or []), {"kind": "scale_state", "heads": 1}]),
        ("how[0]: ablate_head expects head", [{"kind": "ablate_head", "layer": 1}]),
        ("how[0]: expected positions below 3, got 5", [{"kind": "ablate_head", "layer": 1, "head": 0, "positions": 5}]),
        ("how[0]: vector: expected [32], got [2]", [{"kind": "add", "hidden_state": 1, "vector": [1, 2]}]),
        ("how[0]: vector: expected numbers", [{"kind": "add", "hidden_state": 1, "vector": [[1], [2, 3]]}]),
        ("how: expected a list of objects", "all"),
    ]
    rows = [{"token_ids": [5, 6, 7], "how": settings} for _, settings in wrong] + [{"token_ids": [5, 6, 7]}]
    path = write_rows(tmp_path / "in.jsonl", [*rows, {"token_ids": [5, 6, 7], "how": None}])
    report = text_lm.score_file(path, tmp_path / "out.jsonl", interventions="how")
    assert (report.texts, report.errors) == (1, len(wrong) + 1)
    result = read_back(tmp_path / "out.jsonl")
    for row, (words, _) in zip(result, wrong, strict=False):
        assert words in row["error"], row
    assert "how: expected interventions" in result[len(wrong)]["error"], "a field that is missing is not one of nothing"
    assert result[-1]["logprobs"][1:] == text_lm.score([[5, 6, 7]])[0].logprobs[1:].tolist()
