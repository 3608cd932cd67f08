"""Prompts of requests as token ids that fit the context."""

from dataclasses import dataclass
from typing import Any

from hybridlm.engine.inputs import Inputs
from hybridlm.openai_batch.fields import Fields, among, whole

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


@dataclass(frozen=True)
class TokenizedPrompt:
    """Token ids within the context, and the text of a whole prompt."""

    token_ids: tuple[int, ...]
    text: str | None = None


def take_truncation(body: Fields, max_tokens: int, context: int) -> slice | None:
    """Take vLLM's truncation of prompts; return the slice of tokens that stay.

    The last tokens stay by default; -1 leaves room for the answer.

    Args:
        max_tokens: of the answer; `context` for a chat without a limit.
    """
    count = body.take("truncate_prompt_tokens", whole(-1, 2**31 - 1))
    side = body.take("truncation_side", among("left", "right"), "left")
    if count is None:
        return None
    room = context - (1 if max_tokens == context else max_tokens)
    if count == 0 or count > room or room < 1:
        message = f"expected -1 or 1..{room} (the context of {context} tokens less max_tokens)"
        body.fault(f"truncate_prompt_tokens: {message}, got {count}")
    count = room if count == -1 else count
    return slice(-count, None) if side == "left" else slice(count)


def completion_prompts(prompt: Any, inputs: Inputs, truncation: slice | None) -> list[TokenizedPrompt]:
    items = prompt if isinstance(prompt, list) and not all(isinstance(item, int) for item in prompt) else [prompt]
    if prompt == [] or not (
        all(isinstance(item, str) for item in items) or all(isinstance(item, list) for item in items)
    ):
        raise ValueError("prompt: expected a string, a list of strings, a list of token ids or a list of such lists")
    return [
        _tokenized(item, f"prompt[{i}]" if items is prompt else "prompt", inputs, truncation)
        for i, item in enumerate(items)
    ]


def chat_prompt(
    messages: list[Any],
    variables: dict[str, Any],
    effort: str | None,
    tools: list[Any],
    inputs: Inputs,
    truncation: slice | None,
) -> TokenizedPrompt:
    """Encode a conversation.

    Args:
        effort: `reasoning_effort`; None for the template's default.
        truncation: None refuses a long prompt.
    """
    tokenizer = inputs.tokenizer
    if tokenizer is None:
        raise ValueError(f"messages: the checkpoint has no tokenizer.json; send token ids to {COMPLETIONS}")
    if effort is not None:
        variables = tokenizer.effort_variables(effort, variables.get("chat_template"), tools or None) | variables
    return _tokenized(tokenizer.encode_with_tools(messages, tools, **variables), "messages", inputs, truncation)


def _tokenized(item: str | list[int], where: str, inputs: Inputs, truncation: slice | None) -> TokenizedPrompt:
    ids = inputs.token_ids(item, where)
    text = item if isinstance(item, str) else None
    if truncation is not None and len(kept_ids := ids[truncation]) < len(ids):
        ids, text = kept_ids, None
    inputs.check_length(ids, where)
    return TokenizedPrompt(ids, text)
