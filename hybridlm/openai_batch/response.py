"""Completions and scores as response bodies of OpenAI's API."""

from collections.abc import Sequence
from typing import Any

from hybridlm.openai_batch.logprobs import ChoiceLogprobs, prompt_entries
from hybridlm.openai_batch.prompts import TokenizedPrompt
from hybridlm.openai_batch.request import OpenAIRequest
from hybridlm.requests.results import Completion, Score
from hybridlm.text.tokenizer import Tokenizer


def response_body(
    request: OpenAIRequest,
    completions: Sequence[Completion],
    scores: Sequence[Score],
    tokenizer: Tokenizer | None,
    model: str,
    created: int,
) -> dict[str, Any]:
    """Return the body of a response.

    Args:
        request: the request.
        completions: completions of its engine requests, in order.
        scores: scores of its prompts, in order; empty if their log-probabilities are not asked for.
        tokenizer: None if tokens have no text; `text` is null then.
        model: name for requests without one.
        created: seconds since 1970.
    """
    choices = []
    for i, prompt in enumerate(request.prompts):
        each = len(request.requests) // len(request.prompts)
        # Without completions the echoed prompt is the choice.
        sampled: Sequence[Completion | None] = completions[i * each : (i + 1) * each] or [None]
        for completion in sampled:
            score = scores[i] if scores else None
            choices.append({"index": len(choices), **_choice(request, prompt, score, completion, tokenizer)})
    prompt_tokens = sum(len(prompt.token_ids) for prompt in request.prompts)
    completion_tokens = sum(len(completion.token_ids) for completion in completions)
    usage = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }
    body = {
        "object": "chat.completion" if request.chat else "text_completion",
        "created": created,
        "model": model if request.model is None else request.model,
        "choices": choices,
        "usage": usage,
    }
    if request.chat and completions[0].prompt_logprobs is not None:
        body["prompt_logprobs"] = prompt_entries(completions[0].prompt_logprobs, request.prompt_top, tokenizer)
    return body if request.user is None else {**body, "user": request.user}


def _choice(
    request: OpenAIRequest,
    prompt: TokenizedPrompt,
    score: Score | None,
    completion: Completion | None,
    tokenizer: Tokenizer | None,
) -> dict[str, Any]:
    echoed, text = "", None
    if tokenizer is not None:
        echoed = _written(prompt, tokenizer) if request.echo else ""
        text = echoed + ("" if completion is None else completion.text or "")
    answer = {"message": _message(text, completion)} if request.chat else {"text": text}
    choice: dict[str, Any] = {**answer, "logprobs": None}
    choice["finish_reason"] = "length" if completion is None else completion.finish_reason
    if request.top is not None:
        tokens = ChoiceLogprobs(tokenizer, request.names_are_ids)
        end = len(text or "")
        if score is not None:
            values = [None, *score.logprobs[1:].tolist()]
            tokens.add(
                score.token_ids, values, score.top_logprobs, _offsets(score.token_ids, 0, len(echoed), tokenizer)
            )
        if completion is not None:
            sampled, values = completion.token_ids, completion.logprobs or []
            tokens.add(sampled, values, completion.top_logprobs, _offsets(sampled, len(echoed), end, tokenizer))
        choice["logprobs"] = tokens.of_chat() if request.chat else tokens.of_completions()
    if request.token_ids:
        choice["token_ids"] = [] if completion is None else completion.token_ids
        choice["prompt_token_ids"] = list(prompt.token_ids)
    if completion is not None and completion.prompt_logprobs is not None and not request.chat:
        choice["prompt_logprobs"] = prompt_entries(completion.prompt_logprobs, request.prompt_top, tokenizer)
    return choice


def _message(text: str | None, completion: Completion | None) -> dict[str, Any]:
    """Return the answer of a chat, with its thoughts in vLLM's field `reasoning`."""
    if completion is None or completion.reasoning is None:
        return {"role": "assistant", "content": text}
    return {"role": "assistant", "content": completion.answer, "reasoning": completion.reasoning}


def _written(prompt: TokenizedPrompt, tokenizer: Tokenizer) -> str:
    """Return the original text of a prompt, or its decoded token ids."""
    return tokenizer.decode(prompt.token_ids, skip_special_tokens=False) if prompt.text is None else prompt.text


def _offsets(token_ids: Sequence[int], start: int, end: int, tokenizer: Tokenizer | None) -> list[int]:
    """Return the offsets of tokens; tokens after a stop string have `end`."""
    if tokenizer is None:
        return [0] * len(token_ids)
    stream, place, offsets = tokenizer.stream(), start, []
    for token in token_ids:
        offsets.append(min(place, end))
        place += len(stream.push(token))
    return offsets
