"""Answered lines of an unfinished part survive a kill and are not recomputed."""

import json
from pathlib import Path
from typing import Any

import pytest
from model_inputs import model_inputs
from text_checkpoint import SETTINGS
from toy_scorer import kill_after_nine_texts, toy_model, write_lines

import hybridlm
from hybridlm import Event
from hybridlm.files import finished
from hybridlm.files.finished import FinishedTexts, finished_files
from hybridlm.openai_batch.answers import answers
from hybridlm.openai_batch.request import read_request

INPUTS = model_inputs()


def line(name: str, prompt: list[int], **body: Any) -> dict[str, Any]:
    body |= {"prompt": prompt, "max_tokens": 3}
    return {"custom_id": name, "method": "POST", "url": "/v1/completions", "body": body}


class SlowSession:
    """Completes one request per ten-second step, the last request first."""

    def __init__(self, now: list[float]):
        self._now, self._waiting, self.errors = now, list[Any](), dict[int, Any]()
        self.added = list[tuple[int, ...]]()

    def __enter__(self) -> "SlowSession":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def add(self, request: Any) -> None:
        self.added.append(request.prompt)
        self._waiting.append(request)

    @property
    def busy(self) -> bool:
        return bool(self._waiting)

    def step(self) -> list[Event]:
        self._now[0] += 10
        request = self._waiting.pop()
        if request.prompt == (9,):
            self.errors[request.index] = hybridlm.NumericalError("x", 0)
            raise hybridlm.NumericalError("x", 0)
        completion = hybridlm.Completion(None, [request.prompt[0]], None, None, "length", list(request.prompt))
        return [Event(request.index, None, "", completion)]


def answered(folder: Path, now: list[float], lines: list[dict[str, Any]]) -> tuple[list[Any], list[tuple[int, ...]]]:
    """Return the answers, and the prompts that were completed for them."""
    session: Any = SlowSession(now)
    requests = [read_request(line, INPUTS) for line in lines]
    with FinishedTexts(folder, 0, lambda: now[0], begun=5) as texts:
        result = answers(toy_model(INPUTS, lambda: session, lambda texts, top: [], "toy"), requests, texts)
    return result, session.added


def test_answers_are_on_disk_within_thirty_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After thirty seconds three of seven lines are on disk; error lines are not."""
    now = [100.0]
    lines = [line(str(i), [i + 3], n=1 + (i == 2)) for i in range(7)]  # prompt 9 is of the last line
    written, flush = list[float](), FinishedTexts.flush

    def recorded(self: FinishedTexts) -> None:
        written.append(now[0])
        flush(self)

    monkeypatch.setattr(FinishedTexts, "flush", recorded)
    full, added = answered(tmp_path, now, lines)
    assert len(added) == 8 and [isinstance(answer, dict) for answer in full] == [True] * 6 + [False]
    assert full[2]["created"] == 5 and [choice["index"] for choice in full[2]["choices"]] == [0, 1]
    assert max(second - first for first, second in zip([100.0, *written], written, strict=False)) <= 30
    assert finished.KEPT_EVERY < 30

    repeat, added = answered(tmp_path, now, lines)
    # The eighth step ended line 0; its file, of 20 seconds after the last one, has every line but the failed one.
    assert added == [(9,)] and repeat[:6] == full[:6]


def test_a_line_that_is_alone_is_written_while_others_run(tmp_path: Path) -> None:
    """The clock is read in each step, not only when a line ends."""
    now = [0.0]

    class LongSession(SlowSession):
        def step(self) -> list[Event]:
            if len(self._waiting) == 1 and self._now[0] < 60:
                self._now[0] += 10
                assert self._now[0] <= 40 or finished_files(tmp_path)
                return []
            return super().step()

    session: Any = LongSession(now)
    requests = [read_request(line(str(i), [i + 3]), INPUTS) for i in range(2)]
    model = toy_model(INPUTS, lambda: session, lambda texts, top: [], "toy")
    with FinishedTexts(tmp_path, 0, lambda: now[0]) as texts:
        assert len(answers(model, requests, texts)) == 2
    assert len(finished_files(tmp_path)) >= 1 and now[0] >= 60


@pytest.mark.slow
def test_a_killed_process_continues_with_its_answers(text_lm: hybridlm.LM, tmp_path: Path) -> None:
    """Lines with scores, choices and bad fields; an answer on disk is not changed."""
    text_lm = hybridlm.load(text_lm.path, **SETTINGS)  # with the weights of the files, which other tests replace
    lines = [line(str(i), [5 + i, 7, 8], **({"echo": True, "logprobs": 1} if i % 4 == 0 else {})) for i in range(16)]
    lines[3]["body"]["n"] = 0
    source = write_lines(tmp_path / "in.jsonl", lines)
    output, full = tmp_path / "out.jsonl", tmp_path / "whole.jsonl"
    undisturbed = text_lm.batch_file(source, full)
    kill_after_nine_texts(text_lm.path, source, output, "batch_file")
    initial = text_lm.stats["generated_tokens"]
    report = text_lm.batch_file(source, output)
    assert 0 < text_lm.stats["generated_tokens"] - initial < undisturbed.completion_tokens
    assert report.completion_tokens == undisturbed.completion_tokens and not list(tmp_path.glob("*.parts"))
    rows = [[json.loads(row) for row in path.read_text().splitlines()] for path in (full, output)]
    assert [[row["custom_id"] for row in result] for result in rows] == [[str(i) for i in range(16)]] * 2
    texts = [
        [row["response"]["body"] and row["response"]["body"]["choices"][0]["text"] for row in result] for result in rows
    ]
    assert texts[0] == texts[1]
