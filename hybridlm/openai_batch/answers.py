"""Answers to the lines of a batch file, as rows of the output."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hybridlm.engine.inputs import Inputs
from hybridlm.errors import GrammarError, NumericalError
from hybridlm.openai_batch.request import OpenAIRequest
from hybridlm.openai_batch.response import response_body
from hybridlm.requests.results import Completion, Score
from hybridlm.score_files.rows import InputRow, OutputRow
from hybridlm.session import Session


@dataclass(frozen=True)
class BatchModel:
    """A model as a batch needs it.

    Attributes:
        inputs: its limits.
        session: opens a session.
        score: (token ids, number of most likely tokens) -> scores.
        name: for requests that name no model.
        begin: called before each part, so that a part is independent of earlier parts.
    """

    inputs: Inputs
    session: Callable[[], Session]
    score: Callable[[Sequence[tuple[int, ...]], int], list[Score]]
    name: str
    begin: Callable[[], None] = lambda: None


Answer = dict[str, Any] | NumericalError | GrammarError
"""The body of a response, or the error of the model."""


def answers(model: BatchModel, requests: Sequence[OpenAIRequest], created: int) -> list[Answer]:
    """Return the answers to requests, in order.

    Args:
        model: answers the requests, all of them together.
        requests: of a part.
        created: time of the responses, in seconds since 1970.
    """
    found: list[Answer] = []
    scores, completions = _score(model, requests), _complete(model, requests)
    for request, of_prompts, of_choices in zip(requests, scores, completions, strict=True):
        errors: list[NumericalError | GrammarError] = [
            NumericalError(f"prompt {i}", score.first_wrong)
            for i, score in enumerate(of_prompts)
            if score.first_wrong is not None
        ]
        errors += [one for one in of_choices if isinstance(one, NumericalError | GrammarError)]
        done = [one for one in of_choices if isinstance(one, Completion)]
        body = None if errors else response_body(request, done, of_prompts, model.inputs.tokenizer, model.name, created)
        found.append(errors[0] if body is None else body)
    return found


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


def _complete(
    model: BatchModel, asked: Sequence[OpenAIRequest]
) -> list[list[Completion | NumericalError | GrammarError]]:
    """Return the choices of every request; all share the lanes, and each is sampled as if it were alone."""
    found: dict[int, Completion] = {}
    everything = [request for one in asked for request in one.requests]
    with model.session() as session:
        for index, request in enumerate(everything):
            session.add(replace(request, index=index, sampling_index=request.index))
        while session.busy:
            try:
                events = session.step()
            except (NumericalError, GrammarError):
                continue  # its request has ended without a completion, the others go on
            for event in events:
                if event.completion is not None:
                    found[event.index] = event.completion
    results = iter(
        found[index] if index in found else session.errors[index].of(f"choice {request.index}")
        for index, request in enumerate(everything)
    )
    return [[next(results) for _ in one.requests] for one in asked]


def answer_row(row: InputRow, name: str | None, answer: Answer | str) -> OutputRow:
    """Return the row of the output for a line.

    Args:
        row: line of the input; its id is the custom_id.
        name: of the line in messages.
        answer: to the request, or the fault of the line.
    """
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
