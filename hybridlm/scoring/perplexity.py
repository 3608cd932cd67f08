"""Perplexity of texts or text files, by named conventions."""

import os
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from hybridlm.requests.results import Score, perplexity
from hybridlm.scoring.scorer import checked
from hybridlm.text.tokenizer import Tokenizer

CONVENTIONS = ("rolling", "strided", "llama.cpp")


TextWindow = tuple[tuple[int, ...], int]
"""Consecutive tokens of a text, and how many of the last ones count."""


def prefix_token(tokenizer: Tokenizer | None, eos_token_ids: Sequence[int]) -> int:
    """Return the token before a text: the tokenizer's BOS or EOS, or the model's."""
    special = [] if tokenizer is None else [tokenizer.bos_token_id, tokenizer.eos_token_id]
    token = next((token for token in (*special, *eos_token_ids) if token is not None), None)
    if token is None:
        raise ValueError("the model names no BOS or EOS token that could be put before a text")
    return token


def first_token(tokenizer: Tokenizer | None) -> int | None:
    if tokenizer is None or tokenizer.bos_token_id is None:
        return None
    return tokenizer.bos_token_id if tokenizer.encode("")[:1] == [tokenizer.bos_token_id] else None


def rolling_windows(tokens: Sequence[int], prefix: int, size: int) -> list[TextWindow]:
    """Return windows that predict every token once: lm_eval's `loglikelihood_rolling`.

    A window predicts the tokens that fit after the last token of the previous one; the last window begins with earlier
    tokens.

    Args:
        size: at least 2; lm_eval's `max_length` is one less.
    """
    text = (prefix, *tokens)
    starts = range(0, len(tokens), size - 1)
    ends = [min(start + size, len(text)) for start in starts]
    return [(text[max(0, end - size) : end], end - start - 1) for start, end in zip(starts, ends, strict=True)]


def strided_windows(tokens: Sequence[int], size: int, stride: int) -> list[TextWindow]:
    """Return windows `stride` tokens apart for transformers' recipe: new tokens count.

    A text's first token has no prediction, nor a window's first token at the end of the previous window.

    Args:
        size: at least 2.
        stride: 1 to `size`; a shorter one gives each token more context.
    """
    windows, last_end = [], 0
    for start in range(0, len(tokens), stride):
        end = min(start + size, len(tokens))
        counted = min(end - last_end, end - start - 1)
        if counted:
            windows.append((tuple(tokens[start:end]), counted))
        last_end = end
        if end == len(tokens):
            break
    return windows


def second_half_windows(tokens: Sequence[int], size: int, first: int | None) -> list[TextWindow]:
    """Return adjacent windows of llama.cpp's `llama-perplexity`: second halves count.

    Args:
        tokens: an incomplete window is left out.
        size: its `--ctx-size`, at least 2; token `size // 2 + 1` is the first that counts.
        first: replaces each window's first token, if the tokenizer adds one.
    """
    windows = []
    for start in range(0, len(tokens) - size + 1, size):
        part = tuple(tokens[start : start + size])
        windows.append((part if first is None else (first, *part[1:]), size - size // 2 - 1))
    return [window for window in windows if window[1]]


def windows_of(
    convention: str,
    context: int,
    window: int | None,
    stride: int | None,
    tokenizer: Tokenizer | None,
    eos_token_ids: Sequence[int],
) -> Callable[[Sequence[int]], list[TextWindow]]:
    """Return the function from a text to its windows; see `LM.perplexity`.

    Raises:
        ValueError: an unknown convention, impossible windows, or no token before a text.
    """
    if convention not in CONVENTIONS:
        raise ValueError(f"convention: expected one of {', '.join(CONVENTIONS)}, got {convention!r}")
    size = context if window is None else window
    if not 2 <= size <= context:
        fault = "needs a context of at least 2 tokens" if window is None else f"window: expected 2..{context}"
        raise ValueError(f"perplexity: {fault}, got {size}; load with a larger context")
    if stride is not None and convention != "strided":
        raise ValueError(f'stride: is an argument of convention="strided", got {stride} with {convention!r}')
    step = size // 2 if stride is None else stride
    if not 1 <= step <= size:
        raise ValueError(f"stride: expected 1..{size}, the window, got {step}")
    if convention == "rolling":
        prefix = prefix_token(tokenizer, eos_token_ids)
        return lambda text: rolling_windows(text, prefix, size)
    if convention == "strided":
        return lambda text: strided_windows(text, size, step)
    first = first_token(tokenizer)
    return lambda text: second_half_windows(text, size, first)


def corpus_perplexity(
    windows: Iterable[tuple[int, TextWindow]], score: Callable[[list[tuple[int, ...]]], list[Score]], batch_size: int
) -> float:
    """Return exp of the mean negative log-probability of counted tokens, in float64.

    Raises:
        ValueError: no token counts, or the result overflows.
    """
    iterator, total, count = iter(windows), 0.0, 0
    while part := list(islice(iterator, batch_size)):
        scores = score([tokens for _, (tokens, _) in part])
        names = [f"texts[{text}], a window of {len(tokens)} tokens" for text, (tokens, _) in part]
        for (_, (_, predicted)), result in zip(part, checked(scores, names.__getitem__), strict=True):
            total += float(np.sum(result.logprobs[-predicted:], dtype=np.float64))
            count += predicted
    if not count:
        raise ValueError("perplexity: the texts are too short; no token of them counts")
    result = perplexity(total, count)
    if result is None:
        raise ValueError(
            f"perplexity: exp of {-total / count:.6g} nats for each of {count:,} tokens is beyond the range of a "
            "float; the texts are impossible for this model, check that it was trained on such texts"
        )
    return result


def read_files(texts: Any) -> Any:
    """Return texts, read from UTF-8 files for paths.

    Raises:
        OSError, ValueError: a file cannot be read, or a bare string is the name of a file.
    """
    if isinstance(texts, os.PathLike):
        return [_read(texts)]
    if isinstance(texts, list | tuple):
        return [_read(item) if isinstance(item, os.PathLike) else item for item in texts]
    if isinstance(texts, str) and os.path.isfile(texts):
        raise ValueError(f"texts: {texts!r} is the name of a file; give Path({texts!r}), or the text in a list")
    return texts


def _read(path: os.PathLike[str]) -> str:
    # Line ends are part of the text.
    data = Path(path).read_bytes()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{os.fspath(path)}: expected a text file in UTF-8: {error}") from error
