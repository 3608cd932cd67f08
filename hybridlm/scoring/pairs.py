"""Tokenize a prompt with its completion and find the boundary.

Both are tokenized together; scored tokens begin at the first token that differs from the prompt's ids. lm_eval and
`hybridlm eval` split at the number of the prompt's tokens, which can lose the beginning of a completion.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from hybridlm.text.tokenizer import Tokenizer


class ScoredIds(NamedTuple):
    """Token ids of a text, with the scored tokens at its end.

    Attributes:
        shift: tokens of the prompt's ids after the boundary, replaced in `token_ids`.
    """

    token_ids: tuple[int, ...]
    prompt: int = 0
    shift: int = 0


def join_ids(prompt: Sequence[int], joined: Sequence[int], prefix: Callable[[], int]) -> ScoredIds:
    """Return joined ids, scored from the first token that differs from the prompt.

    Args:
        prefix: returns the token before them; called if their first token is scored.
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
    """Tokenize a prompt and a completion to be scored.

    Tokens that the tokenizer appends to every text are omitted.

    Args:
        prompt: the prefix replaces an empty prompt.
    """
    add_special_tokens = not _begins_with(prompt or completion, tokenizer, prefix)
    prompt_ids = tokenizer.encode_open(prompt, add_special_tokens)
    joined = tokenizer.encode_open(prompt + completion, add_special_tokens)
    if not prompt and not prompt_ids and joined[:1] == [prefix]:
        prompt_ids = [prefix]  # the completion begins with the prefix
    return join_ids(prompt_ids, joined, lambda: prefix)


def encode_text(text: str, tokenizer: Tokenizer, prefix: int) -> list[int]:
    """Return token ids with special tokens, after the prefix unless the text has it."""
    return tokenizer.encode(text, add_special_tokens=not _begins_with(text, tokenizer, prefix))


def _begins_with(text: str, tokenizer: Tokenizer, prefix: int) -> bool:
    name = tokenizer.decode([prefix], skip_special_tokens=False)
    return bool(name) and text.startswith(name)


def encode_pair(context: str, continuation: str, tokenizer: Tokenizer, prefix: int) -> tuple[list[int], list[int]]:
    """Split a context and a continuation like lm_eval (`lm_eval.api.model.TemplateLM`).

    White space at the end of the context moves to the continuation. With n tokens of the context alone, the first n
    joint tokens are the context, also if a token spans the boundary; the rest, perhaps empty, is the continuation.
    Without context tokens, the prefix precedes a continuation that does not begin with it.
    """
    stripped = context.rstrip()
    context_ids = encode_text(stripped, tokenizer, prefix) if stripped else []
    if context_ids:
        return context_ids, encode_text(context + continuation, tokenizer, prefix)[len(context_ids) :]
    ids = tokenizer.encode(context + continuation, add_special_tokens=False)
    return ([prefix], ids[1:]) if ids[:1] == [prefix] else ([prefix], ids)
