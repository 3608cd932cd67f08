"""Completions and scores as response bodies of OpenAI's API."""

from collections.abc import Mapping, Sequence
from typing import Any

from hybridlm.files.json_lines import finite
from hybridlm.openai_batch.prompts import TokenizedPrompt
from hybridlm.openai_batch.request import OpenAIRequest
from hybridlm.requests.results import Completion, PromptLogprobs, Score
from hybridlm.text.stream_decoder import REPLACEMENT
from hybridlm.text.tokenizer import Tokenizer


def response_body(
    request: OpenAIRequest,
    completions: Sequence[Completion],
    scores: Sequence[Score],
    tokenizer: Tokenizer | None,
    model: str,
    created: int,
) -> dict[str, Any]:
    """Return the body of a response; without a tokenizer `text` is null.

    Args:
        scores: of its prompts; empty without their log-probabilities.
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
        end, rows = len(text or ""), list[TokenRow]()
        if score is not None:
            values = [None, *score.logprobs[1:].tolist()]
            offsets = _prompt_offsets(score.token_ids, prompt.text, len(echoed), tokenizer)
            rows += token_rows(score.token_ids, values, score.top_logprobs, offsets)
        if completion is not None:
            sampled, values = completion.token_ids, completion.logprobs or []
            params = request.requests[0].params
            flags = params.skip_special_tokens, params.keep_tool_markers
            offsets = _offsets(sampled, len(echoed), end, tokenizer, *flags)
            rows += token_rows(sampled, values, completion.top_logprobs, offsets)
        names = None if request.names_are_ids else tokenizer
        choice["logprobs"] = (chat_logprobs if request.chat else completion_logprobs)(rows, names)
    if request.token_ids:
        choice["token_ids"] = [] if completion is None else completion.token_ids
        choice["prompt_token_ids"] = list(prompt.token_ids)
    if completion is not None and completion.prompt_logprobs is not None and not request.chat:
        choice["prompt_logprobs"] = prompt_entries(completion.prompt_logprobs, request.prompt_top, tokenizer)
    return choice


def _message(text: str | None, completion: Completion | None) -> dict[str, Any]:
    """Return the answer of a chat; thoughts are in vLLM's field `reasoning`."""
    if completion is None or completion.reasoning is None:
        return {"role": "assistant", "content": text}
    return {"role": "assistant", "content": completion.answer, "reasoning": completion.reasoning}


def _written(prompt: TokenizedPrompt, tokenizer: Tokenizer) -> str:
    return tokenizer.decode(prompt.token_ids, skip_special_tokens=False) if prompt.text is None else prompt.text


def _offsets(
    token_ids: Sequence[int], start: int, end: int, tokenizer: Tokenizer | None, skip_special_tokens: bool = False,
    keep_tool_markers: bool = False,
) -> list[int]:  # fmt: skip
    if tokenizer is None:
        return [0] * len(token_ids)
    stream, place, offsets = tokenizer.stream(skip_special_tokens, keep_tool_markers), start, []
    for token in token_ids:
        offsets.append(min(place, end))
        place += len(stream.push(token))
    return offsets


def _prompt_offsets(token_ids: Sequence[int], text: str | None, end: int, tokenizer: Tokenizer | None) -> list[int]:
    """Return the places of an echoed prompt's tokens; added special tokens have no text."""
    if tokenizer is None or text is None:
        return _offsets(token_ids, 0, end, tokenizer)
    plain_ids, ids = tokenizer.encode(text, add_special_tokens=False), list(token_ids)
    added = next((k for k in range(len(ids)) if ids[k : k + len(plain_ids)] == plain_ids), None)
    if added is None:
        return _offsets(ids, 0, end, tokenizer, skip_special_tokens=True)
    last = added + len(plain_ids)
    return [0] * added + _offsets(ids[added:last], 0, end, tokenizer) + [end] * (len(ids) - last)


TokenRow = tuple[int, float | None, Mapping[int, float], int]
"""Token, log-probability or None, most likely tokens, and offset in the choice's text."""


def token_rows(
    token_ids: Sequence[int], logprobs: Sequence[float | None], tops: Sequence[Mapping[int, float]] | None,
    offsets: Sequence[int],
) -> list[TokenRow]:  # fmt: skip
    """Return the rows of tokens; empty most likely tokens without `tops`."""
    return list(zip(token_ids, logprobs, [{}] * len(token_ids) if tops is None else tops, offsets, strict=True))


def completion_logprobs(rows: Sequence[TokenRow], tokenizer: Tokenizer | None) -> dict[str, Any]:
    """Return log-probabilities as in /v1/completions, including the token itself.

    Args:
        tokenizer: names tokens by their text, incomplete characters by U+FFFD; None by "token_id:N".
    """
    return {
        "tokens": [_name(token, tokenizer) for token, _, _, _ in rows],
        "token_logprobs": [finite(logprob) for _, logprob, _, _ in rows],
        "top_logprobs": [
            None if logprob is None else _by_name({**top, token: logprob}, tokenizer) for token, logprob, top, _ in rows
        ],
        "text_offset": [offset for _, _, _, offset in rows],
    }


def chat_logprobs(rows: Sequence[TokenRow], tokenizer: Tokenizer | None) -> dict[str, Any]:
    """Return the log-probabilities format of /v1/chat/completions; see `completion_logprobs`."""

    def entry(token: int, logprob: float | None) -> dict[str, Any]:
        name = _name(token, tokenizer)
        # Without text, bytes are null.
        has_bytes = tokenizer is not None and REPLACEMENT not in name
        return {"token": name, "logprob": finite(logprob), "bytes": list(name.encode()) if has_bytes else None}

    return {
        "content": [
            entry(token, logprob) | {"top_logprobs": [entry(*other) for other in top.items()]}
            for token, logprob, top, _ in rows
        ]
    }


def _by_name(top: Mapping[int, float], tokenizer: Tokenizer | None) -> dict[str, float | None]:
    """Return log-probabilities by name; of equal texts, less likely tokens by id."""
    named: dict[str, float | None] = {}
    for token, logprob in top.items():
        name = _name(token, tokenizer)
        named[f"token_id:{token}" if name in named else name] = finite(logprob)
    return named


def _name(token: int, tokenizer: Tokenizer | None) -> str:
    return f"token_id:{token}" if tokenizer is None else tokenizer.decode([token], skip_special_tokens=False)


def prompt_entries(
    logprobs: PromptLogprobs, top: int | None, tokenizer: Tokenizer | None
) -> list[dict[str, Any] | None]:
    """Return the log-probabilities of a prompt like vLLM's `prompt_logprobs`.

    By token id as text: `logprob`, `rank` from 1 (null outside the most likely tokens), and `decoded_token` (null
    without a tokenizer).
    """

    def row(place: int, token: int, logprob: float) -> dict[str, Any]:
        text = None if tokenizer is None else tokenizer.decode([token], skip_special_tokens=False)
        rank = place + 1 if place < (top or 0) else None
        return {"logprob": finite(logprob), "rank": rank, "decoded_token": text}

    return [
        None if entry is None else {str(token): row(i, token, value) for i, (token, value) in enumerate(entry.items())}
        for entry in logprobs
    ]
