"""Token ids of a prompt with its completion, and the boundary between them.

A prompt and its completion are tokenized together. The scored tokens begin at the first token that differs from the ids
of the prompt alone. They hold the whole completion, and the end of the prompt if a token spans both. lm_eval cuts at
the number of the prompt's tokens and can lose the first characters of a completion; only `hybridlm eval` does so.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from hybridlm.text.tokenizer import Tokenizer


class ScoredIds(NamedTuple):
    """Token ids of a text, with the scored tokens at its end.

    Attributes:
        token_ids: all token ids.
        prompt: number of tokens before the scored ones; 0 for a text without a prompt.
        shift: number of tokens by which the boundary moved into the prompt: `token_ids` does not begin with the last
            `shift` tokens of the prompt alone.
    """

    token_ids: tuple[int, ...]
    prompt: int = 0
    shift: int = 0


def join_ids(prompt: Sequence[int], joined: Sequence[int], prefix: Callable[[], int]) -> ScoredIds:
    """Return joined ids, scored from the first token that differs from the prompt's.

    Args:
        prompt: ids of the prompt alone.
        joined: ids of the prompt and its completion together.
        prefix: returns the token that is put before the joined ids if their first token is scored.
    """
    pairs = zip(prompt, joined, strict=False)
    boundary = next((i for i, (left, right) in enumerate(pairs) if left != right), min(len(prompt), len(joined)))
    shift = len(prompt) - boundary
    if boundary:
        return ScoredIds(tuple(joined), boundary, shift)
    return ScoredIds((prefix(), *joined), 1, shift)


def join_texts(prompt: str, completion: str, tokenizer: Tokenizer, prefix: int) -> ScoredIds:
    """Return the token ids of a prompt with its completion, which is scored.

    Tokens that the tokenizer adds behind every text are left out: they belong to neither.

    Args:
        prompt: may be empty; the prefix is read in its place.
        completion: follows it.
        tokenizer: of the checkpoint.
        prefix: the token that is put before a text.
    """
    add_special_tokens = not _begins_with(prompt or completion, tokenizer, prefix)
    prompt_ids = tokenizer.encode_open(prompt, add_special_tokens)
    joined = tokenizer.encode_open(prompt + completion, add_special_tokens)
    if not prompt and not prompt_ids and joined[:1] == [prefix]:
        prompt_ids = [prefix]  # the completion writes the prefix itself
    return join_ids(prompt_ids, joined, lambda: prefix)


def encode_text(text: str, tokenizer: Tokenizer, prefix: int) -> list[int]:
    """Return token ids with the tokenizer's special tokens, unless the text begins with the prefix itself.

    Args:
        text: may come from a chat template, which writes the first token itself.
        tokenizer: of the checkpoint.
        prefix: the token that is put before a text.
    """
    return tokenizer.encode(text, add_special_tokens=not _begins_with(text, tokenizer, prefix))


def _begins_with(text: str, tokenizer: Tokenizer, prefix: int) -> bool:
    """Return True if a text begins with the name of the prefix."""
    name = tokenizer.decode([prefix], skip_special_tokens=False)
    return bool(name) and text.startswith(name)


def encode_pair(context: str, continuation: str, tokenizer: Tokenizer, prefix: int) -> tuple[list[int], list[int]]:
    """Return the token ids of both, as lm_eval's `TemplateLM` has them; `hybridlm eval` alone uses it.

    White space at the end of the context is moved to the continuation, because most vocabularies have words that begin
    with a space. Both are then tokenized together. The context has as many of the tokens as it has alone, also if a
    token spans the boundary; the rest is the continuation, which may be empty. Without tokens of a context the prefix
    is put before the continuation, unless that begins with it.

    Args:
        context: may be empty.
        continuation: follows it.
        tokenizer: of the checkpoint.
        prefix: the token that is put before a text.
    """
    stripped = context.rstrip()
    context_ids = encode_text(stripped, tokenizer, prefix) if stripped else []
    if context_ids:
        return context_ids, encode_text(context + continuation, tokenizer, prefix)[len(context_ids) :]
    ids = tokenizer.encode(context + continuation, add_special_tokens=False)
    return ([prefix], ids[1:]) if ids[:1] == [prefix] else ([prefix], ids)
