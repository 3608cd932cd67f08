"""Answered lines of an unfinished part survive a kill and are not recomputed."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from model_inputs import model_inputs
from text_checkpoint import SETTINGS
from toy_scorer import answers_kept_in, kill_after_nine_texts, toy_model, write_lines

import hybridlm
from hybridlm import Event
from hybridlm.openai_batch.request import read_request

INPUTS = model_inputs()


def line(name: str, prompt: list[int], **body: Any) -> dict[str, Any]:
    body |= {"prompt": prompt, "max_tokens": 3}
    return {"custom_id": name, "method": "POST", "url": "/v1/completions", "body": body}


class SlowSession:
    """Completes one request per ten-second step, the last request first."""

    def __init__(self, now: list[float], folder: Path):
        self._now, self._waiting, self.errors = now, list[Any](), dict[int, Any]()
        self.added, self._folder, self.written = list[tuple[int, ...]](), folder, [now[0]]

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

    @property
    def files(self) -> int:
        return len(list(self._folder.glob("finished-*")))

    def step(self) -> list[Event]:
        self.written.extend([self._now[0]] * (self.files - len(self.written) + 1))  # since the last step
        self._now[0] += 10
        request = self._waiting.pop()
        if request.prompt == (9,):
            self.errors[request.index] = hybridlm.NumericalError("x", 0)
            raise hybridlm.NumericalError("x", 0)
        completion = hybridlm.Completion(None, [request.prompt[0]], None, None, "length", list(request.prompt))
        return [Event(request.index, None, "", completion)]


def answered(folder: Path, session: Any, lines: list[dict[str, Any]]) -> list[Any]:
    """Return the answers of a session, which began at second 5."""
    model = toy_model(INPUTS, lambda: session, lambda texts, top: [], "toy")
    return answers_kept_in(folder, model, [read_request(line, INPUTS) for line in lines], lambda: session._now[0], 5)


def test_answers_are_on_disk_within_thirty_seconds(tmp_path: Path) -> None:
    """After thirty seconds three of seven lines are on disk; error lines are not."""
    now = [100.0]
    lines = [line(str(i), [i + 3], n=1 + (i == 2)) for i in range(7)]  # prompt 9 is of the last line
    session = SlowSession(now, tmp_path)
    full = answered(tmp_path, session, lines)
    assert len(session.added) == 8 and [isinstance(answer, dict) for answer in full] == [True] * 6 + [False]
    assert full[2]["created"] == 5 and [choice["index"] for choice in full[2]["choices"]] == [0, 1]
    written = [*session.written, *[now[0]] * (session.files - len(session.written) + 1)]
    assert len(written) > 3 and max(second - first for first, second in pairwise(written)) <= 30

    session = SlowSession(now, tmp_path)
    repeat = answered(tmp_path, session, lines)
    # The eighth step ended line 0; its file, of 20 seconds after the last one, has every line but the failed one.
    assert session.added == [(9,)] and repeat[:6] == full[:6]


def test_a_line_that_is_alone_is_written_while_others_run(tmp_path: Path) -> None:
    """The clock is read in each step, not only when a line ends."""
    now = [0.0]

    class LongSession(SlowSession):
        def step(self) -> list[Event]:
            if len(self._waiting) == 1 and self._now[0] < 60:
                self._now[0] += 10
                assert self._now[0] <= 40 or self.files
                return []
            return super().step()

    session = LongSession(now, tmp_path)
    assert len(answered(tmp_path, session, [line(str(i), [i + 3]) for i in range(2)])) == 2
    assert session.files >= 1 and now[0] >= 60


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
