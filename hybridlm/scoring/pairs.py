"""A context and its continuation as token ids, cut where lm_eval cuts them."""

from hybridlm.text.tokenizer import Tokenizer


def encode_text(text: str, tokenizer: Tokenizer, prefix: int) -> list[int]:
    """Token ids with what the tokenizer puts around every text, unless the text begins with the prefix itself.

    Args:
        text: what a template wrote has its first token already.
        tokenizer: of the checkpoint.
        prefix: the token that stands before a text.
    """
    first = tokenizer.decode([prefix], skip_special_tokens=False)
    return tokenizer.encode(text, add_special_tokens=not (first and text.startswith(first)))


def encode_pair(context: str, continuation: str, tokenizer: Tokenizer, prefix: int) -> tuple[list[int], list[int]]:
    """Token ids of both, as lm_eval's `TemplateLM` has them.

    White space at the end of the context is moved to the continuation, because most vocabularies have words that begin
    with a space. Both are then tokenized together, and the continuation is what follows as many tokens as the context
    has alone; that holds too where a token reaches over the boundary. Without a context the prefix stands before the
    continuation, unless that begins with it.

    Args:
        context: may be empty.
        continuation: follows it.
        tokenizer: of the checkpoint.
        prefix: the token that stands before a text.
    """
    kept = context.rstrip()
    if kept:
        before = encode_text(kept, tokenizer, prefix)
        return before, encode_text(context + continuation, tokenizer, prefix)[len(before) :]
    ids = tokenizer.encode(context + continuation, add_special_tokens=False)
    return ([prefix], ids[1:]) if ids[:1] == [prefix] else ([prefix], ids)
