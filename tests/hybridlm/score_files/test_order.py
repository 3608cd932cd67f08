"""Rows with common prefixes share prefill and are written in input order."""

import itertools
import json
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reading_engine import ReadingEngine, read_without_model
from toy_scorer import TOY, interrupted, read_lines, run_toy, score, toy, write_lines

import hybridlm
from hybridlm.score_files import order
from hybridlm.score_files.formats import open_source
from hybridlm.score_files.order import MAX_PART_WINDOWS, beginning, common_length, plan, sorted_parts
from hybridlm.score_files.rows import START, InputRow
from hybridlm.score_files.survey import Limits, RowWindow

CHUNK = 8


def prompts(count: int, length: int) -> list[str]:
    """Texts that part early."""
    rng = random.Random(count)
    return ["".join(rng.choices("abcdefgh ", k=length)) for _ in range(count)]


def shuffled(shots: Sequence[str], each: int, answer: int) -> list[dict[str, Any]]:
    """Rows of every prompt with its own answers, in no order."""
    rng = random.Random(each)
    letters = "".join(map(chr, range(ord("A"), ord("Z") + 1))) + "".join(map(str, range(10)))
    rows = [{"text": shot + "".join(rng.choices(letters, k=answer))} for shot in shots for _ in range(each)]
    rng.shuffle(rows)
    return [{"id": i, **row} for i, row in enumerate(rows)]


def long_ids(item: Any, where: str) -> tuple[int, ...]:
    """Bytes of a text of any length."""
    return tuple(item.encode())


LONG = toy(encode=long_ids)
"""The task of texts of any length."""


class Counting:
    """A scorer that counts the tokens a model would compute, in whole chunks."""

    def __init__(self, chunk: int = CHUNK) -> None:
        self.computed, self.calls, self.chunk = 0, 0, chunk
        self.scorer = toy(self.score, long_ids)

    def score(self, texts: Sequence[tuple[int, ...]]) -> list[hybridlm.Score]:
        self.calls += 1
        engine = ReadingEngine(8, 4, (self.chunk,))
        for _ in read_without_model(engine, dict(enumerate(texts)), 5):
            pass
        self.computed += engine.computed
        return score(texts)


def distinct(rows: Sequence[dict[str, Any]]) -> int:
    """Tokens of all rows, each beginning counted once."""
    texts = sorted(row["text"] for row in rows)
    return sum(len(text) - common_length(initial, text) for initial, text in itertools.pairwise(["", *texts]))


@pytest.mark.slow
def test_many_rows_of_64_prompts_take_little_more_than_distinct_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    rows = shuffled(prompts(64, 200), 40, 20)[:2500]
    texts, counted = write_lines(tmp_path / "in.jsonl", rows), Counting(4)
    report = run_toy(counted.scorer, texts, tmp_path / "out.jsonl", window=250)
    assert report.texts == 2500 and counted.calls >= 10
    assert counted.computed <= 1.3 * distinct(rows)
    assert [row["id"] for row in read_lines(tmp_path / "out.jsonl")] == list(range(2500))


@pytest.mark.parametrize("output", ["out.jsonl", "out.parquet"])
@pytest.mark.parametrize("parts", [1, 3, 5])
def test_continues_with_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str, parts: int):
    """Two sort windows; the second has its own rows and faults."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    rows: list[Any] = shuffled(prompts(4, 200), 5, 9) + [{"id": 20 + i, "text": f"{i} alone"} for i in range(20)]
    rows[7] = {"id": 3, "text": rows[7]["text"]}
    rows[9] = b"no JSON"
    texts = write_lines(tmp_path / "in.jsonl", rows)
    request: dict[str, Any] = {"window": 4, "sort_window": 5000}
    run_toy(LONG, texts, tmp_path / f"whole-{output}", **request)
    run_toy(LONG, texts, tmp_path / f"plain-{output}", window=4, sort_window=0)
    with pytest.raises(KeyboardInterrupt):
        run_toy(toy(interrupted(score, parts), long_ids), texts, tmp_path / output, **request)
    with pytest.raises(ValueError, match="sort window: 5000 bytes there, 0 bytes now"):
        run_toy(LONG, texts, tmp_path / output, window=4, sort_window=0)
    report = run_toy(LONG, texts, tmp_path / output, **request)
    assert (report.kept, report.texts, report.errors) == (4 * parts, 38, 2)
    assert (tmp_path / output).read_bytes() == (tmp_path / f"whole-{output}").read_bytes()
    if output == "out.jsonl":
        assert (tmp_path / output).read_bytes() == (tmp_path / f"plain-{output}").read_bytes()
    else:
        assert pq.read_table(tmp_path / output) == pq.read_table(tmp_path / f"plain-{output}")


def test_scores_have_the_same_bits_and_saved_tokens_are_reported(text_lm: hybridlm.LM, tmp_path: Path) -> None:
    rows = shuffled(prompts(6, 100), 7, 12)
    texts = write_lines(tmp_path / "in.jsonl", rows)
    settings = dict(text_lm.stats)
    plain = text_lm.score_file(texts, tmp_path / "plain.jsonl", window=6, sort_window=0)
    between = dict(text_lm.stats)
    report = text_lm.score_file(texts, tmp_path / "out.jsonl", window=6)
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "plain.jsonl").read_bytes()
    computed = [
        text_lm.stats["scored_tokens"] - between["scored_tokens"],
        between["scored_tokens"] - settings["scored_tokens"],
    ]
    total = sum(len(row["text"]) - 1 for row in rows)
    assert (computed[0] + report.prefix_tokens_saved, computed[1] + plain.prefix_tokens_saved) == (total, total)
    # Of each prompt 20 chunks of 5 tokens, twice where a part ends within its rows.
    assert computed[0] < 0.5 * computed[1]


def test_saved_tokens_of_earlier_runs_count(text_lm: hybridlm.LM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    texts = write_lines(tmp_path / "in.jsonl", shuffled(prompts(3, 100), 6, 12))
    full = text_lm.score_file(texts, tmp_path / "whole.parquet", window=6)
    with monkeypatch.context() as patch:
        patch.setattr(text_lm.text_model, "scores", interrupted(text_lm.text_model.scores, 2))
        with pytest.raises(KeyboardInterrupt):
            text_lm.score_file(texts, tmp_path / "out.parquet", window=6)
    report = text_lm.score_file(texts, tmp_path / "out.parquet", window=6)
    assert report.kept == 12 and report.prefix_tokens_saved == full.prefix_tokens_saved > 0
    assert (tmp_path / "out.parquet").read_bytes() == (tmp_path / "whole.parquet").read_bytes()
    assert pq.read_schema(tmp_path / "out.parquet").metadata is None, "nothing that depends on where a run was cut"


def row(number: int, text: str) -> InputRow:
    return InputRow(number, None, "text", text, len(text))


@given(st.lists(st.text("ab", max_size=12), min_size=1, max_size=30), st.integers(1, 6), st.integers(1, 20))
def test_parts_have_every_row_once_and_end_in_time(texts: list[str], limit: int, size: int) -> None:
    rows = [row(i, text) for i, text in enumerate(texts)]
    parts = sorted_parts(rows, Limits(limit, size, 1 << 20))
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(texts)))
    assert [texts[place] for part in parts for place in part] == sorted(texts)
    for number, part in enumerate(parts):
        chosen = [texts[place] for place in part]
        shared = [common_length(a, b) for a, b in itertools.pairwise(["", *chosen])]
        counted = list(itertools.accumulate(max(len(t) - s, 1) for t, s in zip(chosen, shared, strict=True)))
        assert len(part) <= limit and (len(part) == 1 or counted[-2] < size)
        assert sum(map(len, chosen[:-1])) < MAX_PART_WINDOWS * size
        full = len(part) == limit or counted[-1] >= size or sum(map(len, chosen)) >= MAX_PART_WINDOWS * size
        assert full or number == len(parts) - 1


@given(st.text("ab"), st.text("ab"))
def test_common_length(a: str, b: str) -> None:
    assert common_length(a, b) == len(os.path.commonprefix([a, b]))


@pytest.mark.parametrize("kind", ["text", "token_ids", "prompt", "messages"])
def test_rows_of_every_kind_are_sorted(tmp_path: Path, kind: str) -> None:
    shots = prompts(3, 200)

    def made(shot: int, i: int) -> dict[str, Any]:
        if kind == "token_ids":
            return {"token_ids": [*shots[shot].encode(), i]}
        if kind == "messages":
            return {
                "messages": [{"role": "user", "content": f"{shots[shot]}{i}"}, {"role": "assistant", "content": "x"}]
            }
        return {"prompt": shots[shot], "completion": f" {i}"} if kind == "prompt" else {"text": f"{shots[shot]}{i}"}

    texts = write_lines(tmp_path / "in.jsonl", [made(i % 3, i) for i in range(12)])
    source = open_source(texts)
    ((window, parts),) = plan(source, [RowWindow(START, 12, texts.stat().st_size)], Limits(4, 1 << 20, 1 << 20))
    results = [[item.number for item in part] for part in parts]
    assert window[0] == 3 and sorted(map(sorted, results)) == [list(range(1 + i, 13, 3)) for i in range(3)]
    assert window[1] is not None and (window[1] + 1).tolist() == sum(results, [])


def test_rows_with_little_in_common_stay_and_are_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = write_lines(tmp_path / "in.jsonl", [{"text": prompt} for prompt in prompts(12, 200)])
    source, windows = open_source(texts), [RowWindow(START, 7, 1500), RowWindow(START._replace(row=7), 5, 1100)]
    monkeypatch.setattr(order, "sorted_parts", None)
    for window, parts in plan(source, windows, Limits(7, 1 << 20, 1 << 20)):
        assert window == (2, None)
        assert [[item.number for item in part] for part in parts] == [list(range(1, 8)), list(range(8, 13))]
    # One that is skipped leaves the next one in its place.
    skipped = plan(source, windows, Limits(7, 1 << 20, 2000))
    next(skipped)
    assert [item.number for item in next(next(skipped)[1])] == list(range(8, 13))
    assert [len(list(parts)) for _, parts in plan(source, windows, Limits(7, 1 << 20, 2000))] == [1, 1]


def test_beginnings_of_rows_that_cannot_be_read() -> None:
    assert beginning(InputRow(3, None, "", None, 9, "blank")) == ""
    assert beginning(InputRow(3, None, "request", {"state": "s", "questions": []}, 9)).startswith('{"state": "s"')
    assert beginning(InputRow(3, None, "token_ids", [1, "x"], 9)) == json.dumps([1, "x"])


def test_sort_window_is_checked(tmp_path: Path) -> None:
    texts = write_lines(tmp_path / "in.jsonl", [{"text": "a"}])
    for wrong in (-1, True, "64MB"):
        with pytest.raises(ValueError, match="sort_window: expected a whole number of bytes"):
            run_toy(TOY, texts, tmp_path / "out.jsonl", sort_window=wrong)  # type: ignore[arg-type]
