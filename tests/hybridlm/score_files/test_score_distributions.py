"""Chosen ids, likely ids, ranks and entropy in Parquet and JSON lines, as `score` returns."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hybridlm
from hybridlm import TokenLogprobs
from hybridlm.score_files.formats import open_source
from hybridlm.score_files.rows import START, RowFields
from hybridlm.text_model import TextModel

ROWS = [
    {"id": "a", "text": "a text over several chunks", "wanted": [5, 6, 7]},
    {"id": "b", "text": "", "wanted": [5]},
    {"id": "c", "text": "abc", "wanted": [[5], [8, 9]]},
    {"id": "d", "text": "abcd", "wanted": [[5], [8, 9]]},
    {"id": "e", "prompt": "a text over several ", "completion": "lines", "wanted": None},
    {"id": "f", "text": "abcd", "wanted": [1 << 20]},
]
ASKED: dict[str, Any] = {"top": 70, "entropy": True, "temperature": 1.5}


def check_same(actual: TokenLogprobs | None, expected: TokenLogprobs | None) -> None:
    assert actual is not None and expected is not None
    for name in ("token_ids", "logprobs", "ranks", "offsets"):
        array, wanted = getattr(actual, name), getattr(expected, name)
        assert array.dtype == wanted.dtype and array.tobytes() == wanted.tobytes(), name


@pytest.fixture(scope="module")
def parquet(text_lm: hybridlm.LM, tmp_path_factory: pytest.TempPathFactory) -> pa.Table:
    folder = tmp_path_factory.mktemp("distributions")
    (folder / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    text_lm.score_file(folder / "in.jsonl", folder / "out.parquet", token_ids="wanted", **ASKED)
    return pq.read_table(folder / "out.parquet")


@pytest.mark.slow
def test_parquet_and_back(text_lm: hybridlm.LM, parquet: pa.Table) -> None:
    good = [0, 2, 4]
    assert [error is None for error in parquet["error"].to_pylist()] == [i in good for i in range(6)]
    errors = parquet["error"].to_pylist()
    assert errors[3].startswith("line 4: wanted: ") and errors[5].startswith("line 6: wanted: ")
    items = [{name: row[name] for name in ("text", "prompt", "completion") if name in row} for row in ROWS]
    chosen = [ROWS[i]["wanted"] or [] for i in good]
    expected = text_lm.score([items[i] for i in good], token_ids=chosen, **ASKED)
    top, read = hybridlm.token_logprobs(parquet, "top"), hybridlm.token_logprobs(parquet, "chosen")
    assert top[1] is None and read[3] is None
    for i, score in zip(good, expected, strict=True):
        check_same(top[i], score.top)
        check_same(read[i], score.chosen)
        assert score.ranks is not None and score.entropy is not None
        assert [rank or 0 for rank in parquet["ranks"][i].as_py()] == score.ranks.tolist()
        entropy = np.array([np.nan if item is None else item for item in parquet["entropy"][i].as_py()], np.float32)
        assert entropy.tobytes() == score.entropy.tobytes()
    repeat = hybridlm.to_table(expected)
    for i, local in zip(good, hybridlm.token_logprobs(repeat, "chosen"), strict=True):
        check_same(local, read[i])
    assert repeat["ranks"].to_pylist() == [parquet["ranks"][i].as_py() for i in good]
    with pytest.raises(ValueError, match="^kind: "):
        hybridlm.token_logprobs(repeat.drop_columns(["top_logprobs"]), "top")


def test_a_line_without_the_field_of_ids_is_refused(tmp_path: Path) -> None:
    """A wrong name would compute nothing silently; null means that a row asks for none."""
    (tmp_path / "in.jsonl").write_text('{"text": "a", "wanted": null}\n{"text": "a"}\n')
    rows = open_source(tmp_path / "in.jsonl", RowFields("wanted")).rows(START)
    faults = [row.fault for row, _ in rows]
    assert faults == [None, "wanted: expected token ids, a list or null; found no field"]


def test_json_lines_and_columns_of_parquet_say_the_same(text_lm: hybridlm.LM, parquet: pa.Table, tmp_path: Path):
    rows = [ROWS[0], ROWS[4] | {"wanted": []}]
    columns = {name: [row.get(name) for row in rows] for name in ("id", "text", "prompt", "completion", "wanted")}
    pq.write_table(pa.table(columns), tmp_path / "in.parquet")
    text_lm.score_file(tmp_path / "in.parquet", tmp_path / "out.jsonl", token_ids="wanted", **ASKED)
    results = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    for row, i in zip(results, (0, 4), strict=True):
        for name in ("ranks", "top_token_ids", "chosen_token_ids", "chosen_ranks"):
            assert row[name] == parquet[name][i].as_py(), name
        for name in ("top_logprobs", "chosen_logprobs"):
            actual, other = row[name], parquet[name][i].as_py()
            np.testing.assert_allclose(sum(actual, []), sum(other, []), atol=1e-4)


def test_ids_for_all_rows_and_common_beginnings(text_lm: hybridlm.LM, tmp_path: Path) -> None:
    path, out = tmp_path / "in.jsonl", tmp_path / "out.parquet"
    texts = ["a text over several lines " + end for end in ("one", "two", "three")]
    path.write_text("".join(json.dumps({"text": item}) + "\n" for item in [*texts, "b"]))
    report = text_lm.score_file(path, out, token_ids=[5, 6], start=2)
    assert report.prefix_tokens_saved == 2 * 25 and report.errors == 1
    assert pq.read_table(out)["error"].to_pylist()[3].startswith("line 4: start: ")
    read = hybridlm.token_logprobs(pq.read_table(out), "chosen")
    for completion, text in zip(read, texts, strict=False):
        assert completion is not None and completion.token_ids.tolist() == [5, 6] * (len(text) - 2)


def test_a_run_continues_with_the_same_questions_only(
    text_lm: hybridlm.LM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, out, scored = tmp_path / "in.jsonl", tmp_path / "out.parquet", TextModel.scores
    path.write_text("".join(json.dumps({"text": item}) + "\n" for item in ["abc", "full", "stop"]))

    def interrupted(model: TextModel, ids: Any, *args: Any, **options: Any) -> list[hybridlm.Score]:
        if len(ids[0]) > 3:
            raise KeyboardInterrupt
        return scored(model, ids, *args, **options)

    monkeypatch.setattr(TextModel, "scores", interrupted)
    with pytest.raises(KeyboardInterrupt):
        text_lm.score_file(path, out, window=1, top=2)
    monkeypatch.undo()
    with pytest.raises(ValueError, match="distributions"):
        text_lm.score_file(path, out, window=1, top=3)
    assert text_lm.score_file(path, out, window=1, top=2).kept == 1
    report = text_lm.score_file(path, tmp_path / "whole.parquet", window=1, top=2)
    assert report.output.read_bytes() == out.read_bytes()
