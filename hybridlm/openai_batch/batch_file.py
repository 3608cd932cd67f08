"""Answers to an OpenAI Batch file: one response per request, as JSON lines in the same order."""

import hashlib
import os
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hybridlm.engine.inputs import Inputs
from hybridlm.errors import NumericalError
from hybridlm.files.atomic import replacing
from hybridlm.files.json_lines import dump, numbered_lines, parse_object, windows
from hybridlm.openai_batch.request import OpenAIRequest, read_request
from hybridlm.openai_batch.response import response_body
from hybridlm.progress import file_progress
from hybridlm.requests.results import Completion, Score
from hybridlm.session import Session


@dataclass(frozen=True)
class BatchFileReport:
    """Result of `LM.batch_file`.

    Attributes:
        responses: lines that were answered.
        bad_lines: lines that have an error instead.
        prompt_tokens, completion_tokens: of the responses.
    """

    responses: int
    bad_lines: int
    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True)
class _Line:
    """A line of the input: its request or its fault."""

    number: int
    custom_id: str | None
    request: OpenAIRequest | None = None
    fault: str = ""


@dataclass(frozen=True)
class BatchModel:
    """A model as a batch needs it.

    Attributes:
        inputs: its limits.
        session: opens a session.
        score: (token ids, number of most likely tokens) -> scores.
        name: for requests that name no model.
    """

    inputs: Inputs
    session: Callable[[], Session]
    score: Callable[[Sequence[tuple[int, ...]], int], list[Score]]
    name: str


def batch_file(
    model: BatchModel,
    input: str | os.PathLike[str],
    output: str | os.PathLike[str],
    window: int,
    progress: bool | None = None,
) -> BatchFileReport:
    """Answer every line of a file; see `LM.batch_file`.

    Args:
        model: answers the requests.
        input, output: the files.
        window: lines that share one queue over the lanes; fewer if they are long.
        progress: None shows a bar where standard error is a terminal.
    """
    created = int(time.time())
    responses = bad_lines = prompt_tokens = completion_tokens = 0
    with (
        open(input, "rb") as source,
        replacing(Path(output), Path(input)) as target,
        file_progress(progress, "answering") as bar,
        _custom_ids() as first_use,
    ):
        done, total = 0, os.fstat(source.fileno()).st_size
        # As in vLLM, blank lines are skipped.
        lines = ((number, line) for number, line in numbered_lines(source) if line.strip())
        for numbered in windows(lines, window):
            for line, answer in _answers(model, [_read(*one, model.inputs, first_use) for one in numbered], created):
                target.write(dump(_row(line, answer)) + "\n")
                if isinstance(answer, dict):
                    responses += 1
                    prompt_tokens += answer["usage"]["prompt_tokens"]
                    completion_tokens += answer["usage"]["completion_tokens"]
                else:
                    bad_lines += 1
            done += sum(len(line) + 1 for _, line in numbered)
            bar(done, total)
        if not responses + bad_lines:
            raise ValueError(f"{os.fspath(input)}: holds no requests; expected at least one line that is not blank")
    return BatchFileReport(responses, bad_lines, prompt_tokens, completion_tokens)


@contextmanager
def _custom_ids() -> Iterator[Callable[[str, int], int]]:
    """Provide (custom_id, line) -> the line that used it first, in bounded memory by a temporary file."""
    with closing(sqlite3.connect("")) as database:
        database.execute("CREATE TABLE used (custom_id BLOB PRIMARY KEY, line INTEGER) WITHOUT ROWID")

        def first_use(custom_id: str, line: int) -> int:
            key = custom_id.encode("utf-8", "surrogatepass")
            try:
                database.execute("INSERT OR IGNORE INTO used VALUES (?, ?)", (key, line))
                return database.execute("SELECT line FROM used WHERE custom_id = ?", (key,)).fetchone()[0]
            except sqlite3.OperationalError as error:
                message = f"temporary file of custom_ids: {error}; let SQLITE_TMPDIR name a folder with room"
                raise OSError(message) from error

        yield first_use


def _read(number: int, line: bytes, inputs: Inputs, first_use: Callable[[str, int], int]) -> _Line:
    custom_id = None
    try:
        value = parse_object(line)
        found = value.get("custom_id")
        custom_id = found if isinstance(found, str) else None
        if custom_id is not None and (first := first_use(custom_id, number)) != number:
            raise ValueError(f"custom_id: {custom_id!r} is that of line {first}, too")
        return _Line(number, custom_id, read_request(value, inputs))
    except (ValueError, TypeError) as error:
        return _Line(number, custom_id, fault=f"line {number}: {error}")


Answer = dict[str, Any] | NumericalError | None
"""The body of a response, or the error of the model; None for a line with a fault."""


def _answers(model: BatchModel, lines: list[_Line], created: int) -> Iterator[tuple[_Line, Answer]]:
    asked = [line.request for line in lines if line.request is not None]
    scores, completions = iter(_score(model, asked)), iter(_complete(model, asked))
    for line in lines:
        if line.request is None:
            yield line, None
            continue
        of_prompts, of_choices = next(scores), next(completions)
        errors = [
            NumericalError(f"prompt {i}", score.first_nan)
            for i, score in enumerate(of_prompts)
            if score.first_nan is not None
        ]
        errors += [one for one in of_choices if isinstance(one, NumericalError)]
        if errors:
            yield line, errors[0]
        else:
            done = [one for one in of_choices if isinstance(one, Completion)]
            yield line, response_body(line.request, done, of_prompts, model.inputs.tokenizer, model.name, created)


def _score(model: BatchModel, asked: Sequence[OpenAIRequest]) -> list[list[Score]]:
    """Return the prompts' scores for every request that asks for their log-probabilities, none for the others."""
    found: list[list[Score]] = [[] for _ in asked]
    for top in {request.top for request in asked if request.scored and request.top is not None}:
        places = [i for i, request in enumerate(asked) if request.scored and request.top == top]
        prompts = [prompt.token_ids for i in places for prompt in asked[i].prompts]
        scores = iter(model.score(prompts, top))
        for i in places:
            found[i] = [next(scores) for _ in asked[i].prompts]
    return found


def _complete(model: BatchModel, asked: Sequence[OpenAIRequest]) -> list[list[Completion | NumericalError]]:
    """Return the choices of every request; all share the lanes, and each is sampled as if it were alone."""
    found: dict[int, Completion] = {}
    sampled: Counter[int] = Counter()
    everything = [request for one in asked for request in one.requests]
    with model.session() as session:
        for index, request in enumerate(everything):
            session.add(replace(request, index=index, sampling_index=request.index))
        while session.busy:
            try:
                events = session.step()
            except NumericalError:
                continue  # its request has ended without a completion, the others go on
            for event in events:
                sampled[event.index] += event.token is not None
                if event.completion is not None:
                    found[event.index] = event.completion
    results = iter(
        found.get(index, NumericalError(f"choice {request.index}", len(request.prompt) + sampled[index]))
        for index, request in enumerate(everything)
    )
    return [[next(results) for _ in one.requests] for one in asked]


def _row(line: _Line, answer: Answer) -> dict[str, Any]:
    name = f"{'' if line.custom_id is None else line.custom_id}/{line.number}"
    unique = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    response: dict[str, Any] = {"status_code": 200, "request_id": f"hybridlm-batch-{unique}", "body": None}
    error = None
    if isinstance(answer, dict):
        kind = "chatcmpl" if answer["object"] == "chat.completion" else "cmpl"
        response["body"] = {"id": f"{kind}-{unique}", **answer}
    elif answer is None:
        response["status_code"], error = 400, {"code": "invalid_request", "message": line.fault}
    else:
        response["status_code"], error = 500, {"code": "numerical_error", "message": f"line {line.number}: {answer}"}
    return {"id": f"hybridlm-{unique}", "custom_id": line.custom_id, "response": response, "error": error}
