"""Progress over text files: bytes of rows, and computed tokens within a part."""

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from toy_scorer import write_lines, write_texts

import hybridlm
from hybridlm.score_files import run_file
from hybridlm.score_files.row_progress import RowProgress, progress_line
from hybridlm.score_files.task import run_rows


def test_line_of_progress():
    assert progress_line("answering", 0, 100, 0.2) == "answering: 0% after 0 s"
    assert progress_line("answering", 25, 100, 1000.0) == "answering: 25% after 1,000 s, 0:50:00 left"
    assert progress_line("answering", 75, 100, 10.0, stored=75) == "answering: 75% after 10 s"
    assert progress_line("answering", 80, 100, 10.0, stored=75) == "answering: 80% after 10 s, 0:00:40 left"


def test_long_rows_count_more_and_tokens_within_a_part() -> None:
    tokens = [0]
    progress = RowProgress(None, True, lambda: tokens[0])
    progress.begin(30, 1000, 0, 0)
    progress.begin_part(20, 100)
    tokens[0] = 40
    assert progress.done == 0, "without a finished part the tokens of a byte are not known"
    tokens[0] = 50
    progress.end_part()
    assert progress.done == 100, "two thirds of the rows, a tenth of the bytes"
    progress.begin_part(10, 900)
    tokens[0] = 50 + 225
    assert progress.done == 100 + 450
    tokens[0] = 50 + 900
    assert progress.done == 999, "a part that has not ended is not done"
    progress.end_part()
    assert progress.done == 1000


def test_the_first_part_follows_its_own_tokens() -> None:
    tokens, total = [30], [0]
    progress = RowProgress(None, True, lambda: tokens[0])
    progress.begin(30, 1000, 0, 0)
    progress.begin_part(20, 600, lambda: total[0])
    assert progress.done == 0
    total[0], tokens[0] = 200, 30 + 50
    assert progress.done == 150, "a quarter of the tokens"
    tokens[0] = 30 + 200
    assert progress.done == 599
    progress.end_part()
    assert progress.done == 600


def test_the_time_left_follows_the_tokens_of_a_part(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens, now = [0], [0.0]
    monkeypatch.setattr("hybridlm.score_files.row_progress.time.monotonic", lambda: now[0])
    progress = RowProgress(None, True, lambda: tokens[0])
    progress.begin(20, 1000, 5, 200)
    progress.begin_part(10, 100)
    now[0], tokens[0] = 100.0, 200
    progress.end_part()
    progress.begin_part(5, 700)
    now[0], tokens[0] = 400.0, 800
    progress.tick()
    (line,) = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"scoring: 60% after 400 s, 800 tokens, 0:06:40 left", line), line


def test_the_report_has_the_share_of_tokens(tmp_path: Path, text_lm: hybridlm.LM) -> None:
    """Chunks of 5, 3 lanes: 3 tokens fill 2 of 5 places, 11 all."""
    shares = []
    for length in (3, 11):
        path = write_lines(tmp_path / f"{length}.jsonl", [{"token_ids": [5 + i] * length} for i in range(6)])
        report = text_lm.score_file(path, tmp_path / f"{length}.out.jsonl")
        shares.append(report.token_share)
        assert report.step_tokens == 6 * (length - 1)
    assert shares == [2 / 5, 1.0]
    path = write_lines(tmp_path / "one.jsonl", [{"token_ids": [5]}])
    assert text_lm.score_file(path, tmp_path / "one.out.jsonl").token_share is None


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    return write_texts(tmp_path / "in.jsonl")


def test_the_report_counts_no_call_of_another_thread(
    text_lm: hybridlm.LM, texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = text_lm.score_file(texts, texts.with_name("alone.jsonl"))
    shared = [[5, 9, 14, 3, 20, 7, last, 8] for last in (1, 2, 3)]

    def disturbed(*arguments: Any) -> Any:
        with ThreadPoolExecutor(1) as thread:
            thread.submit(text_lm.score, shared).result()
        return run_rows(*arguments)

    monkeypatch.setattr(run_file, "run_rows", disturbed)
    saved = text_lm.stats["prefix_tokens_saved"]
    report = text_lm.score_file(texts, texts.with_name("disturbed.jsonl"))
    assert text_lm.stats["prefix_tokens_saved"] - saved > expected.prefix_tokens_saved
    for name in ("prefix_tokens_saved", "step_tokens", "step_places"):
        assert getattr(report, name) == getattr(expected, name), name
