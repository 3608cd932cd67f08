"""Answers to the lines of a batch file, as rows of the output."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hybridlm.errors import GrammarError, NumericalError
from hybridlm.files.finished import FinishedTexts
from hybridlm.files.json_lines import dump
from hybridlm.openai_batch.request import OpenAIRequest
from hybridlm.openai_batch.response import response_body
from hybridlm.requests.results import Completion, Score
from hybridlm.score_files.rows import InputRow, OutputRow
from hybridlm.text_model import TextModel
from ir_passes.files.strict_json import parse_json

Answer = dict[str, Any] | NumericalError | GrammarError
"""The body of a response, or the error of the model."""
Outcome = Completion | NumericalError | GrammarError
"""The end of one choice."""


def answers(model: TextModel, requests: Sequence[OpenAIRequest], finished: FinishedTexts) -> list[Answer]:
    """Return a part's answers, in order; reuse bodies of an earlier run."""
    call, results, waiting = finished.begin_call(), dict[int, Answer](), dict[int, OpenAIRequest]()
    with model.keeping(finished):
        scores = _score(model, requests)

    def answer(i: int, choices: Sequence[Outcome]) -> None:
        errors = [
            NumericalError(f"prompt {j}", score.first_wrong)
            for j, score in enumerate(scores[i])
            if score.first_wrong is not None
        ]
        errors += [choice for choice in choices if not isinstance(choice, Completion)]
        if errors:
            results[i] = errors[0]
            return
        completions = [choice for choice in choices if isinstance(choice, Completion)]
        tokenizer, name = model.inputs.tokenizer, model.path.name
        body = response_body(requests[i], completions, scores[i], tokenizer, name, finished.begun)
        finished.add(call, i, {"body": np.frombuffer(dump(body).encode(), np.uint8)})
        results[i] = body

    for i, request in enumerate(requests):
        body = finished.take(call, i, "body")
        if body is not None:
            results[i] = parse_json(body.tobytes())
        elif request.requests:
            waiting[i] = request
        else:
            answer(i, [])
    for i, choices in _complete(model, waiting, finished):
        answer(i, choices)
    return [results[i] for i in range(len(requests))]


def _score(model: TextModel, requests: Sequence[OpenAIRequest]) -> list[list[Score]]:
    """Return scores of each request's prompts; empty without echoed log-probabilities."""
    scores: list[list[Score]] = [[] for _ in requests]
    for top in sorted({request.top for request in requests if request.scored and request.top is not None}):
        places = [i for i, request in enumerate(requests) if request.scored and request.top == top]
        results = iter(model.scores([prompt.token_ids for i in places for prompt in requests[i].prompts], top))
        for i in places:
            scores[i] = [next(results) for _ in requests[i].prompts]
    return scores


def _complete(
    model: TextModel, requests: Mapping[int, OpenAIRequest], finished: FinishedTexts
) -> Iterator[tuple[int, list[Outcome]]]:
    """Yield number and choices of each finished request; requests share lanes."""
    owners = [(i, choice) for i, request in requests.items() for choice in request.requests]
    outcomes = {i: dict[int, Outcome]() for i in requests}
    failed = set[int]()
    if not owners:
        return
    with model.session() as session:
        for index, (_, choice) in enumerate(owners):
            session.add(replace(choice, index=index, sampling_index=choice.index))
        while session.busy:
            ended = dict[int, Outcome]()
            try:
                ended |= {event.index: event.completion for event in session.step() if event.completion is not None}
            except (NumericalError, GrammarError):
                pass  # its request has ended without a completion
            for index in session.errors.keys() - failed:
                ended[index] = session.errors[index].of(f"choice {owners[index][1].index}")
                failed.add(index)
            for index, outcome in ended.items():
                i, choice = owners[index]
                outcomes[i][choice.index] = outcome
                if len(outcomes[i]) == len(requests[i].requests):
                    yield i, [outcome for _, outcome in sorted(outcomes[i].items(), key=lambda item: item[0])]
            finished.write_if_due()


def answer_row(row: InputRow, name: str | None, answer: Answer | str) -> OutputRow:
    unique = f"{'' if row.id is None else row.id}/{row.number}".encode("utf-8", "surrogatepass")
    unique = hashlib.sha256(unique).hexdigest()[:32]
    response: dict[str, Any] = {"status_code": 200, "request_id": f"hybridlm-batch-{unique}", "body": None}
    error, usage = None, {"prompt_tokens": 0, "completion_tokens": 0}
    if isinstance(answer, dict):
        kind = "chatcmpl" if answer["object"] == "chat.completion" else "cmpl"
        response["body"], usage = {"id": f"{kind}-{unique}", **answer}, answer["usage"]
    elif isinstance(answer, str):
        response["status_code"], error = 400, {"code": "invalid_request", "message": answer}
    else:
        code = "grammar_error" if isinstance(answer, GrammarError) else "numerical_error"
        response["status_code"], error = 500, {"code": code, "message": f"{name}: {answer}"}
    fields = {"custom_id": row.id, "response": response, "error": error}
    message = None if error is None else error["message"]
    tokens, generated = usage["prompt_tokens"], usage["completion_tokens"]
    return OutputRow(f"hybridlm-{unique}", fields, message, tokens, generated=generated)
