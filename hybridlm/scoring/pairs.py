"""Tokenize a prompt with its completion and find the boundary.

A prompt and its completion are tokenized together. The scored tokens begin at the first token that differs from the ids
of the prompt alone. They contain the whole completion, and the end of the prompt if one token spans both. lm_eval
splits at the number of the prompt's tokens and can lose the first characters of a completion; only `hybridlm eval`
splits in the same way.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from hybridlm.text.tokenizer import Tokenizer


class ScoredIds(NamedTuple):
    """Token ids of a text, with the scored tokens at its end.

    Attributes:
        prompt: number of tokens before the scored tokens; 0 for a text without a prompt.
        shift: number of tokens of the prompt alone after the boundary. `token_ids` has other tokens in their place.
    """

    token_ids: tuple[int, ...]
    prompt: int = 0
    shift: int = 0


def join_ids(prompt: Sequence[int], joined: Sequence[int], prefix: Callable[[], int]) -> ScoredIds:
    """Return joined ids, scored from the first token that differs from the prompt.

    Args:
        prompt: token ids of the prompt alone.
        joined: token ids of the prompt and its completion together.
        prefix: returns the token before the joined ids; called only if their first token is scored.
    """
    pairs = zip(prompt, joined, strict=False)
    boundary = next(
        (i for i, (prompt_id, joined_id) in enumerate(pairs) if prompt_id != joined_id), min(len(prompt), len(joined))
    )
    shift = len(prompt) - boundary
    if boundary:
        return ScoredIds(tuple(joined), boundary, shift)
    return ScoredIds((prefix(), *joined), 1, shift)


def join_texts(prompt: str, completion: str, tokenizer: Tokenizer, prefix: int) -> ScoredIds:
    """Return the token ids of a prompt and a completion; the completion is scored.

    Tokens that the tokenizer appends to every text are omitted: they belong neither to the prompt nor to the
        completion.

    Args:
        prompt: text of the prompt; the prefix replaces an empty prompt.
        completion: text after the prompt.
        tokenizer: tokenizer of the checkpoint.
        prefix: id of the token before a text.
    """
    add_special_tokens = not _begins_with(prompt or completion, tokenizer, prefix)
    prompt_ids = tokenizer.encode_open(prompt, add_special_tokens)
    joined = tokenizer.encode_open(prompt + completion, add_special_tokens)
    if not prompt and not prompt_ids and joined[:1] == [prefix]:
        prompt_ids = [prefix]  # the completion begins with the prefix
    return join_ids(prompt_ids, joined, lambda: prefix)


def encode_text(text: str, tokenizer: Tokenizer, prefix: int) -> list[int]:
    """Return token ids with special tokens, unless the text begins with the prefix.

    Args:
        text: any text. A chat template, for example, writes the first token as text.
        tokenizer: tokenizer of the checkpoint.
        prefix: id of the token before a text.
    """
    return tokenizer.encode(text, add_special_tokens=not _begins_with(text, tokenizer, prefix))


def _begins_with(text: str, tokenizer: Tokenizer, prefix: int) -> bool:
    """Return True if a text begins with the prefix, decoded as text."""
    name = tokenizer.decode([prefix], skip_special_tokens=False)
    return bool(name) and text.startswith(name)


def encode_pair(context: str, continuation: str, tokenizer: Tokenizer, prefix: int) -> tuple[list[int], list[int]]:
    """Return the token ids of a context and a continuation, split like lm_eval.

    Source: `lm_eval.api.model.TemplateLM`. Only `hybridlm eval` uses this function.

    White space at the end of the context moves to the continuation, because most vocabularies have words that begin
    with a space. Context and continuation are then tokenized together. With n tokens of the context alone, the first n
    joined tokens are the context, also if a token spans the boundary. The other tokens are the continuation, which may
    be empty. Without tokens of a context, the prefix precedes the continuation, unless the continuation begins with the
    prefix.

    Args:
        context: text of the context; may be empty.
        continuation: text after the context.
        tokenizer: tokenizer of the checkpoint.
        prefix: id of the token before a text.
    """
    stripped = context.rstrip()
    context_ids = encode_text(stripped, tokenizer, prefix) if stripped else []
    if context_ids:
        return context_ids, encode_text(context + continuation, tokenizer, prefix)[len(context_ids) :]
    ids = tokenizer.encode(context + continuation, add_special_tokens=False)
    return ([prefix], ids[1:]) if ids[:1] == [prefix] else ([prefix], ids)
