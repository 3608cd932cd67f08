"""Token ids of a context and its continuation, with the boundary where lm_eval has it."""

from hybridlm.text.tokenizer import Tokenizer


def encode_text(text: str, tokenizer: Tokenizer, prefix: int) -> list[int]:
    """Return token ids with the tokenizer's special tokens, unless the text begins with the prefix itself.

    Args:
        text: may come from a chat template, which writes the first token itself.
        tokenizer: of the checkpoint.
        prefix: the token that is put before a text.
    """
    first = tokenizer.decode([prefix], skip_special_tokens=False)
    return tokenizer.encode(text, add_special_tokens=not (first and text.startswith(first)))


def encode_pair(context: str, continuation: str, tokenizer: Tokenizer, prefix: int) -> tuple[list[int], list[int]]:
    """Return the token ids of both, as lm_eval's `TemplateLM` has them.

    White space at the end of the context is moved to the continuation, because most vocabularies have words that begin
    with a space. Both are then tokenized together. The context has as many of the tokens as it has alone, also if a
    token spans the boundary; the rest is the continuation. Without a context the prefix is put before the continuation,
    unless that begins with it.

    Args:
        context: may be empty.
        continuation: follows it.
        tokenizer: of the checkpoint.
        prefix: the token that is put before a text.
    """
    kept = context.rstrip()
    if kept:
        before = encode_text(kept, tokenizer, prefix)
        return before, encode_text(context + continuation, tokenizer, prefix)[len(before) :]
    ids = tokenizer.encode(context + continuation, add_special_tokens=False)
    return ([prefix], ids[1:]) if ids[:1] == [prefix] else ([prefix], ids)
