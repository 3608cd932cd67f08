"""Answers to the lines of a batch file: scores and completions of a window of requests, as rows of the output."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hybridlm.engine.inputs import Inputs
from hybridlm.errors import GrammarError, NumericalError
from hybridlm.openai_batch.request import OpenAIRequest
from hybridlm.openai_batch.response import response_body
from hybridlm.requests.results import Completion, Score
from hybridlm.session import Session


@dataclass(frozen=True)
class BatchLine:
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
        origin: everything that the answers depend on besides the requests.
        saved: tokens so far that were not read because prompts begin alike.
        begin: called before each part, whose bytes depend on nothing that was computed before it.
        computed: tokens so far that were read or generated.
    """

    inputs: Inputs
    session: Callable[[], Session]
    score: Callable[[Sequence[tuple[int, ...]], int], list[Score]]
    name: str
    origin: Mapping[str, str | int] = field(default_factory=dict)
    saved: Callable[[], int] = lambda: 0
    begin: Callable[[], None] = lambda: None
    computed: Callable[[], int] = lambda: 0


Answer = dict[str, Any] | NumericalError | GrammarError | None
"""The body of a response, or the error of the model; None for a line with a fault."""


def answers(model: BatchModel, lines: list[BatchLine], created: int) -> Iterator[tuple[BatchLine, Answer]]:
    """Yield the lines of a window with their answers, in order.

    Args:
        model: answers the requests, all of them together.
        lines: the window.
        created: time of the responses, in seconds since 1970.
    """
    asked = [line.request for line in lines if line.request is not None]
    scores, completions = iter(_score(model, asked)), iter(_complete(model, asked))
    for line in lines:
        if line.request is None:
            yield line, None
            continue
        of_prompts, of_choices = next(scores), next(completions)
        errors: list[NumericalError | GrammarError] = [
            NumericalError(f"prompt {i}", score.first_wrong)
            for i, score in enumerate(of_prompts)
            if score.first_wrong is not None
        ]
        errors += [one for one in of_choices if isinstance(one, NumericalError | GrammarError)]
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


def answer_row(line: BatchLine, answer: Answer) -> dict[str, Any]:
    """Return the row of the output for a line."""
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
        code = "grammar_error" if isinstance(answer, GrammarError) else "numerical_error"
        response["status_code"], error = 500, {"code": code, "message": f"line {line.number}: {answer}"}
    return {"id": f"hybridlm-{unique}", "custom_id": line.custom_id, "response": response, "error": error}
