"""Finished texts of an unfinished part survive a kill and change no bit."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from text_checkpoint import SETTINGS
from toy_scorer import kill_after_nine_texts, write_texts

import hybridlm
from hybridlm.files import finished
from hybridlm.files.finished import FinishedTexts, finished_files


def arrays(value: int) -> dict[str, np.ndarray]:
    """Return results of a text."""
    return {"logprobs": np.full(3, value, np.float32), "greedy": np.full(2, value > 1), "none": np.zeros((0, 4))}


def test_results_are_written_every_few_seconds(tmp_path: Path) -> None:
    now = [100.0]
    texts = FinishedTexts(tmp_path, 3, lambda: now[0])
    assert texts.begin_call() == 0
    texts.add(0, 5, arrays(1))
    now[0] += finished.KEPT_EVERY - 1
    texts.add(0, 6, arrays(2))
    assert not finished_files(tmp_path)
    now[0] += 1
    texts.add(0, 7, arrays(3))
    assert len(finished_files(tmp_path, 3)) == 1 and not finished_files(tmp_path, 4)
    texts.add(0, 8, arrays(4))
    assert len(finished_files(tmp_path, 3)) == 1, "the clock begins anew"
    finished_texts = FinishedTexts(tmp_path, 3)
    for number in (5, 6, 7):
        result = {name: np.zeros_like(array) for name, array in arrays(0).items()}
        assert finished_texts.restore(0, number, result)
        assert all((result[name] == array).all() for name, array in arrays(number - 4).items())
    assert not finished_texts.restore(0, 8, arrays(0)) and not finished_texts.restore(1, 5, arrays(0))
    assert finished.KEPT_EVERY < 30


def test_results_of_other_texts_and_damaged_files_are_refused(tmp_path: Path) -> None:
    texts = FinishedTexts(tmp_path, 0)
    texts.add(0, 0, arrays(1))
    texts.flush()
    with pytest.raises(ValueError, match=r"0/0/logprobs: expected float32\(4,\), got float32\(3,\)"):
        FinishedTexts(tmp_path, 0).restore(0, 0, {"logprobs": np.zeros(4, np.float32)})
    (path,) = finished_files(tmp_path)
    written = path.read_bytes()
    changed = written[:-1] + bytes([written[-1] ^ 1])
    for damaged in (written[:-1], changed, written[:5], b""):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"finished-000000-000000\.safetensors: cannot be read.*--restart"):
            FinishedTexts(tmp_path, 0)


class Killed(OSError):
    """Ends a run as a kill does: nothing more is written."""


Task = Callable[[hybridlm.LM, Path, Path], Any]
TASKS: dict[str, Task] = {
    "score": lambda lm, texts, output: lm.score_file(texts, output),
    "distributions": lambda lm, texts, output: lm.score_file(texts, output, top=2, entropy=True, token_ids=[5, 6]),
    "embed": lambda lm, texts, output: lm.embed_file(texts, output, pooling="mean"),
    "divergence": lambda lm, texts, output: lm.divergence_file(lm, texts, output),
}


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    return write_texts(tmp_path / "in.jsonl")


def kill_after(count: int, patch: pytest.MonkeyPatch) -> None:
    """Kill the run after this many finished texts, each written at once."""
    add, calls = FinishedTexts.add, iter(range(1000))

    def killing(self: FinishedTexts, *args: Any) -> None:
        if next(calls) == count:
            raise Killed
        add(self, *args)

    patch.setattr(finished, "KEPT_EVERY", 0.0)
    patch.setattr(FinishedTexts, "add", killing)


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
@pytest.mark.parametrize("task", TASKS)
def test_a_killed_part_continues_with_the_same_bytes(
    text_lm: hybridlm.LM, texts: Path, task: str, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if ending == "parquet":
        pytest.importorskip("pyarrow")
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    path, output = texts.with_name(f"whole.{ending}"), texts.with_name(f"out.{ending}")
    undisturbed = TASKS[task](text_lm, texts, path)
    for count in (7, 11):
        with monkeypatch.context() as patch, pytest.raises(Killed):
            kill_after(count, patch)
            TASKS[task](text_lm, texts, output)
    assert len(finished_files(texts.with_name(f"out.{ending}.parts"))) == 7 + 11
    initial = text_lm.stats["step_tokens"]
    report = TASKS[task](text_lm, texts, output)
    assert output.read_bytes() == path.read_bytes() and report.kept == 0 and report.texts == 40
    computed = text_lm.stats["step_tokens"] - initial
    assert 0 < computed == report.step_tokens < 0.7 * undisturbed.step_tokens
    assert not texts.with_name(f"out.{ending}.parts").exists()


def test_an_interrupt_writes_all_finished_texts(text_lm: hybridlm.LM, texts: Path, monkeypatch: pytest.MonkeyPatch):
    add, calls = FinishedTexts.add, iter(range(1000))

    def interrupted(self: FinishedTexts, *args: Any) -> None:
        add(self, *args)
        if next(calls) == 4:
            raise KeyboardInterrupt

    output = texts.with_name("out.jsonl")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt) as raised:
        patch.setattr(FinishedTexts, "add", interrupted)
        patch.setattr(finished, "KEPT_EVERY", 1e9)  # a step may take long to compile
        text_lm.score_file(texts, output)
    assert raised.value.__notes__ == [f"some rows are kept in {output}.parts: the same command continues"]
    with pytest.raises(ValueError, match="window: 4096 rows, .* there, 5 rows"):
        text_lm.score_file(texts, output, window=5)
    assert len(finished_files(texts.with_name("out.jsonl.parts"))) == 1
    assert text_lm.score_file(texts, output, restart=True).texts == 40


@pytest.mark.slow
def test_a_killed_process_loses_no_finished_text(text_lm: hybridlm.LM, texts: Path) -> None:
    text_lm = hybridlm.load(text_lm.path, **SETTINGS)  # with the weights of the files, which other tests replace
    output, path = texts.with_name("out.jsonl"), texts.with_name("whole.jsonl")
    text_lm.score_file(texts, path)
    kill_after_nine_texts(text_lm.path, texts, output, "score_file")
    report = text_lm.score_file(texts, output)
    assert output.read_bytes() == path.read_bytes() and 0 < report.step_tokens < 0.9 * report.tokens


def test_a_call_of_another_thread_is_no_part_of_the_file(text_lm: hybridlm.LM, tmp_path: Path) -> None:
    """It took results of the file's texts for its own, and left its own to the file."""
    first, other = [5, 9, 14, 3, 20, 7], [8, 4, 31, 6, 40, 11]
    expected = [text_lm.score([text])[0].logprobs[1:].tolist() for text in (first, other)]
    model, earlier = text_lm.text_model, FinishedTexts(tmp_path, 1)
    with model.keeping(earlier):
        text_lm.score([first])
    earlier.flush()
    resumed = FinishedTexts(tmp_path, 1)
    with model.keeping(resumed), ThreadPoolExecutor(1) as thread:
        assert thread.submit(text_lm.score, [other]).result()[0].logprobs[1:].tolist() == expected[1]
        assert text_lm.score([first])[0].logprobs[1:].tolist() == expected[0]
    assert resumed.begin_call() == 1


def test_the_most_likely_tokens_are_kept(text_lm: hybridlm.LM, tmp_path: Path) -> None:
    """The echoed prompts of a continued batch file had lost them."""
    texts = [(5,), (5, 9, 14, 3, 20, 7, 8, 4), (5, 9, 14, 3, 20, 7, 8, 6), (8, 4, 31)]
    model, earlier = text_lm.text_model, FinishedTexts(tmp_path, 0)
    with model.keeping(earlier):
        expected = model.scores(texts, 2)
    earlier.flush()
    steps = text_lm.stats["steps"]
    with model.keeping(FinishedTexts(tmp_path, 0)):
        actual = model.scores(texts, 2)
    assert text_lm.stats["steps"] == steps
    for a, b, text in zip(actual, expected, texts, strict=True):
        assert a.top_logprobs == b.top_logprobs and [len(top) for top in a.top_logprobs or ()] == [0] + [2] * (
            len(text) - 1
        )
        np.testing.assert_array_equal(a.logprobs, b.logprobs)
