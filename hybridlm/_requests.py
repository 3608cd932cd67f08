"""Checking what users pass in: every fault names the item and says what was expected."""

import operator
import sys
from collections.abc import Sequence
from typing import Any, TypedDict

import numpy as np

from hybridlm._sequence import SamplingParams
from hybridlm._tokenizer import Tokenizer

MOST_LOGPROBS = 1000
"""Of the most likely tokens of a position, as many as can be asked for in any vocabulary."""


class Settings(TypedDict, total=False):
    """How the tokens of a request are drawn and when it ends; see `LM.generate`."""

    max_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    stop: str | int | Sequence[str | int] | None
    ignore_eos: bool
    logprobs: int | None


def to_items(items: Any, what: str) -> list[Any]:
    """A list of texts or token-id lists from what the user passed; a bare string is one item.

    Raises:
        TypeError: not a list, or a bare list of token ids, which could as well mean many items.
    """
    if isinstance(items, str):
        return [items]
    if not isinstance(items, list | tuple):
        raise TypeError(f"{what}: expected a list whose items are strings or lists of token ids, got {type(items)}")
    if items and all(_is_token(item) for item in items):
        raise TypeError(f"{what}: got a bare list of token ids; put it in a list: [[{items[0]}, ...]]")
    return list(items)


def to_token_ids(
    item: Any, where: str, tokenizer: Tokenizer | None, vocab_size: int, continues: bool = False
) -> tuple[int, ...]:
    """The token ids of one item.

    Args:
        item: a string or a list of token ids.
        where: what to call it.
        tokenizer: None where only token ids can be taken.
        vocab_size: token ids are below it.
        continues: it stands behind other tokens: it may be empty, and text gets no special tokens.

    Raises:
        TypeError: neither a string nor a list of token ids.
        ValueError: empty, a string without a tokenizer, or an id outside the vocabulary.
    """
    if isinstance(item, str):
        if tokenizer is None:
            raise ValueError(f"{where}: got text, but the checkpoint has no tokenizer.json; pass a list of token ids")
        ids = tokenizer.encode(item, add_special_tokens=not continues)
    elif isinstance(item, list | tuple) or (isinstance(item, np.ndarray) and item.ndim):
        wrong = [(i, token) for i, token in enumerate(item) if not _is_token(token)]
        if wrong:
            i, token = wrong[0]
            raise TypeError(f"{where}: expected token ids, got {token!r} at index {i}")
        ids = [operator.index(token) for token in item]
    else:
        raise TypeError(f"{where}: expected a string or a list of token ids, got {type(item)}")
    if not ids and not continues:
        raise ValueError(f"{where}: is empty; at least one token is needed")
    for i, token in enumerate(ids):
        if not 0 <= token < vocab_size:
            raise ValueError(f"{where}: token id {token} at index {i} is outside the vocabulary [0, {vocab_size})")
    return tuple(ids)


def check_length(ids: Sequence[int], where: str, context: int) -> None:
    """Refuse what the context cannot hold.

    Raises:
        ValueError: more tokens than the context; nothing is cut off.
    """
    if len(ids) > context:
        raise ValueError(
            f"{where}: has {len(ids)} tokens, the context holds {context}; shorten it or load with a larger context"
        )


def to_sampling_params(
    *,
    end_token_ids: Sequence[int],
    tokenizer: Tokenizer | None,
    vocab_size: int,
    max_tokens: int = 64,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    seed: int = 0,
    stop: Any = None,
    logprobs: int | None = None,
) -> SamplingParams:
    """Check the settings of `LM.generate`.

    Raises:
        ValueError: all settings that are wrong.
    """
    faults = []

    def need(name: str, value: Any, good: bool, expected: str) -> None:
        if not good:
            faults.append(f"{name}: expected {expected}, got {value!r}")

    def number(value: Any) -> bool:
        if isinstance(value, np.integer | np.floating):
            value = value.item()
        plain = isinstance(value, int | float) and not isinstance(value, bool)
        return plain and -sys.float_info.max <= value <= sys.float_info.max

    need("max_tokens", max_tokens, _is_token(max_tokens) and max_tokens >= 1, "a whole number of at least 1")
    need("temperature", temperature, number(temperature) and temperature >= 0, "a number of at least 0 (0 is greedy)")
    need("top_k", top_k, _is_token(top_k) and 0 <= top_k < 2**31, "a whole number of at least 0 (0 keeps all)")
    need("top_p", top_p, number(top_p) and 0 < top_p <= 1, "a number in (0, 1]")
    need("min_p", min_p, number(min_p) and 0 <= min_p <= 1, "a number in [0, 1]")
    need("seed", seed, _is_token(seed) and 0 <= seed < 2**64, "a whole number in [0, 2**64)")
    most = min(vocab_size, MOST_LOGPROBS)
    need(
        "logprobs", logprobs, logprobs is None or (_is_token(logprobs) and 0 <= logprobs <= most), f"0..{most} or None"
    )
    stops = [] if stop is None else [stop] if isinstance(stop, str) or _is_token(stop) else stop
    strings, ids = [], list(end_token_ids)
    if not isinstance(stops, list | tuple):
        need("stop", stop, False, "a string, a token id, or a list of them")
        stops = []
    for item in stops:
        if isinstance(item, str):
            need("stop", item, item != "", "strings that are not empty")
            need("stop", item, tokenizer is not None, "token ids, because the checkpoint has no tokenizer.json")
            strings.append(item)
        else:
            need("stop", item, _is_token(item) and 0 <= item < vocab_size, f"strings or token ids below {vocab_size}")
            ids.append(item)
    if faults:
        raise ValueError("; ".join(faults))
    return SamplingParams(
        int(max_tokens),
        float(temperature),
        int(top_k),
        float(top_p),
        float(min_p),
        int(seed),
        frozenset(int(token) for token in ids),
        tuple(strings),
        None if logprobs is None else int(logprobs),
    )


def _is_token(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
