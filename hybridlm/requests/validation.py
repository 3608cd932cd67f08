"""Validation of user input; messages have the item and the expected value."""

import math
import operator
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from hybridlm.grammars import Grammars, GrammarSource, grammar_text
from hybridlm.requests.sampling_params import PlainSettings, SamplingParams, draw_seed
from hybridlm.requests.sequence import ResolvedParams
from hybridlm.text.reasoning import markers_of
from hybridlm.text.tokenizer import Tokenizer

MAX_LOGPROBS = 1000
LARGEST = 1e12
"""Products and quotients of smaller settings are finite in float32."""
FACTORS, CHANGES = (1 / LARGEST, LARGEST), (-LARGEST, LARGEST)
FACTOR, CHANGE = (f"a number in {low:g}..{high:g}" for low, high in (FACTORS, CHANGES))


def located(error: TypeError | ValueError, where: str) -> TypeError | ValueError:
    """Return an error with a place in its message; Unicode errors become ValueError."""
    plain = type(error).__init__ in (TypeError.__init__, ValueError.__init__)
    kind = type(error) if plain else TypeError if isinstance(error, TypeError) else ValueError
    return kind(f"{where}: {error}")


def to_items(items: Any, name: str) -> list[Any]:
    """Return a list of texts or token-id lists; a bare string is one item.

    Raises:
        TypeError: not a list, or a bare list of token ids, which is ambiguous.
    """
    if isinstance(items, str):
        return [items]
    if not isinstance(items, list | tuple):
        hint = "; give what its tolist() returns" if hasattr(items, "tolist") else ""
        expected = "expected a list whose items are strings or lists of token ids"
        raise TypeError(f"{name}: {expected}, got {type(items)}{hint}")
    if items and all(map(is_whole, items)):
        raise TypeError(f"{name}: got a bare list of token ids; put it in a list: [[{items[0]}, ...]]")
    return list(items)


def to_token_ids(
    item: Any, where: str, tokenizer: Tokenizer | None, vocab_size: int, continues: bool = False
) -> tuple[int, ...]:
    """Return the token ids of one item.

    Args:
        continues: may be empty, and gets no special tokens.

    Raises:
        TypeError: neither a string nor a list of token ids.
        ValueError: empty, a string without a tokenizer or with lone surrogates, or an id outside the vocabulary.
    """
    if isinstance(item, str):
        if tokenizer is None:
            raise ValueError(f"{where}: got text, but the checkpoint has no tokenizer.json; pass a list of token ids")
        try:
            ids = tokenizer.encode(item, add_special_tokens=not continues)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error
    elif isinstance(item, list | tuple) or (isinstance(item, np.ndarray) and item.ndim):
        wrong = [(i, token) for i, token in enumerate(item) if not is_whole(token)]
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


def check_length(ids: Sequence[int], where: str, context: int, cache: int | None = None) -> None:
    """Raise ValueError unless token ids fit the context and a device's KV cache."""
    for size, name, option in ((context, "context", "context"), (cache, "KV cache of a device", "cache")):
        if size is not None and len(ids) > size:
            raise ValueError(
                f"{where}: has {len(ids)} tokens, the {name} holds {size}; shorten it or load with a larger {option}"
            )


def check_settings(params: SamplingParams) -> None:
    """Raise ValueError with all settings that are wrong for every model."""
    if faults := _faults(params, MAX_LOGPROBS):
        raise ValueError("; ".join(faults))


def _faults(params: SamplingParams, limit_logprobs: int) -> list[str]:
    p, stops = params, _stops(params.stop)
    limit = p.max_tokens if is_whole(p.max_tokens, 1) else sys.maxsize
    count, top = "a whole number of at least", f"0..{limit_logprobs} or None"
    checks = (
        ("max_tokens", is_whole(p.max_tokens, 1), f"{count} 1"),
        (
            "temperature",
            _is_number(p.temperature, 0, 0) or _is_number(p.temperature, *FACTORS),
            f"0 (greedy), or {FACTOR}",
        ),
        ("top_k", is_whole(p.top_k, 0, 2**31 - 1), f"{count} 0 (0 keeps all)"),
        ("top_p", _is_number(p.top_p, 0, 1) and p.top_p > 0, "a number in (0, 1]"),
        ("min_p", _is_number(p.min_p, 0, 1), "a number in [0, 1]"),
        ("seed", p.seed is None or is_whole(p.seed, 0, 2**64 - 1), "a whole number in [0, 2**64), or None"),
        ("ignore_eos", isinstance(p.ignore_eos, bool | np.bool_), "True or False"),
        ("logprobs", p.logprobs is None or is_whole(p.logprobs, 0, limit_logprobs), top),
        ("prompt_logprobs", p.prompt_logprobs is None or is_whole(p.prompt_logprobs, 0, limit_logprobs), top),
        (
            "stop",
            bool(stops) or p.stop is None or isinstance(p.stop, list | tuple),
            "a string, a token id, or a list of them",
        ),
        ("repetition_penalty", _is_number(p.repetition_penalty, *FACTORS), f"{FACTOR} (1 for none)"),
        ("presence_penalty", _is_number(p.presence_penalty, *CHANGES), CHANGE),
        ("frequency_penalty", _is_number(p.frequency_penalty, *CHANGES), CHANGE),
        ("min_tokens", is_whole(p.min_tokens, 0, limit), "a whole number in 0..max_tokens"),
        ("skip_special_tokens", isinstance(p.skip_special_tokens, bool), "True or False"),
        ("keep_tool_markers", isinstance(p.keep_tool_markers, bool), "True or False"),
        ("thinking_budget", p.thinking_budget is None or is_whole(p.thinking_budget, 1), f"{count} 1, or None"),
        ("think_end", p.think_end is None or (isinstance(p.think_end, str) and p.think_end != ""), "a string, or None"),
    )
    faults = [f"{name}: expected {text}, got {getattr(p, name)!r}" for name, valid, text in checks if not valid]
    if "" in [stop for stop in stops if isinstance(stop, str)]:
        faults.append("stop: expected strings that are not empty, got ''")
    return faults


def resolve(
    params: SamplingParams, *, end_token_ids: Sequence[int], tokenizer: Tokenizer | None, vocab_size: int
) -> ResolvedParams:
    """Check sampling parameters against a model, and draw a missing seed.

    Raises:
        ValueError: all wrong settings.
        MissingExtra: structured outputs without llguidance.
    """
    faults = _faults(params, min(vocab_size, MAX_LOGPROBS))
    strings: list[str] = []
    ids = [] if params.ignore_eos else list(end_token_ids)
    for item in _stops(params.stop):
        if not isinstance(item, str):
            if is_whole(item, 0, vocab_size - 1):
                ids.append(item)
            else:
                faults.append(f"stop: expected strings or token ids below {vocab_size}, got {item!r}")
        elif tokenizer is None:
            faults.append(f"stop: expected token ids, because the checkpoint has no tokenizer.json, got {item!r}")
        else:
            strings.append(item)
    if not _are_ids(params.stop_token_ids, vocab_size):
        faults.append(f"stop_token_ids: expected a list of token ids below {vocab_size}, got {params.stop_token_ids!r}")
    allowed = params.allowed_token_ids
    if allowed is not None and not (_are_ids(allowed, vocab_size) and allowed):
        faults.append(f"allowed_token_ids: expected at least one token id below {vocab_size}, or None, got {allowed!r}")
    if allowed is not None and params.structured_outputs is not None:
        faults.append("allowed_token_ids: expected None with structured_outputs, which decide the tokens")
    bias = () if params.logit_bias is None else _logit_bias(params.logit_bias, vocab_size)
    words = _bad_words(params.bad_words, tokenizer, vocab_size)
    if isinstance(bias, str):
        faults.append(f"logit_bias: expected token ids below {vocab_size} -> numbers in -3e38..{LARGEST:g}, got {bias}")
    if isinstance(words, str):
        faults.append(f"bad_words: expected strings or lists of token ids below {vocab_size}, got {words}")
    if params.thinking_budget is not None and tokenizer is None:
        faults.append("thinking_budget: needs a tokenizer, the checkpoint has no tokenizer.json")
    elif (
        params.thinking_budget is not None and tokenizer is not None and markers_of(tokenizer, params.think_end) is None
    ):
        faults.append("thinking_budget: the tokenizer has no known end marker of thoughts; give think_end")
    grammar = None
    if params.structured_outputs is not None:
        grammar = _grammar(params, tuple(end_token_ids), tokenizer, vocab_size)
        if isinstance(grammar, str):
            faults.append(f"structured_outputs: {grammar}")
    if faults:
        raise ValueError("; ".join(faults))
    assert not isinstance(grammar, str) and not isinstance(bias, str) and not isinstance(words, str)
    ids += params.stop_token_ids
    plain = {field.name: getattr(params, field.name) for field in fields(PlainSettings)}
    for name, value in plain.items():
        if isinstance(value, np.generic):
            plain[name] = value.item()
        if isinstance(getattr(PlainSettings, name), float):
            plain[name] = float(value)
    if params.seed is None:
        plain["seed"] = draw_seed() if params.temperature > 0 else ResolvedParams.seed
    return ResolvedParams(
        **plain,
        stop_token_ids=frozenset(int(token) for token in ids),
        stop_strings=tuple(strings),
        logit_bias=bias,
        bad_words=words,
        allowed_token_ids=None if allowed is None else tuple(sorted({int(token) for token in allowed})),
        grammar=grammar,
    )


def _grammar(
    params: SamplingParams, end_token_ids: tuple[int, ...], tokenizer: Tokenizer | None, vocab_size: int
) -> GrammarSource | str:
    if tokenizer is None:
        return "needs a tokenizer, the checkpoint has no tokenizer.json"
    if params.ignore_eos:
        return "expected ignore_eos=False, because completions end with their grammar"
    try:
        text = grammar_text(params.structured_outputs)
        Grammars.of(tokenizer, vocab_size, end_token_ids).check(text)
    except ValueError as error:
        return str(error)
    return GrammarSource(text, end_token_ids)


def _logit_bias(bias: Any, vocab_size: int) -> tuple[tuple[int, float], ...] | str:
    """Return token ids and biases, or the fault; keys may be decimal texts (JSON)."""
    if not isinstance(bias, Mapping):
        return repr(bias)
    biases: dict[int, float] = {}  # the lowest ones are bans
    for key, value in bias.items():
        token: Any = int(key) if isinstance(key, str) and key.isdecimal() else key
        if not is_whole(token, 0, vocab_size - 1) or not _is_number(value, -3e38, LARGEST) or int(token) in biases:
            return f"{key!r}: {value!r}"
        biases[int(token)] = float(value)
    return tuple(biases.items())


def _bad_words(words: Any, tokenizer: Tokenizer | None, vocab_size: int) -> tuple[tuple[int, ...], ...] | str:
    if not isinstance(words, list | tuple):
        return repr(words)
    sequences: list[tuple[int, ...]] = []
    for word in words:
        if isinstance(word, str) and tokenizer is not None and word.strip():
            word_ids = tokenizer.encode(word, add_special_tokens=False)
            spaced_ids = tokenizer.encode(" " + word.lstrip(), add_special_tokens=False)
            if not word_ids:
                return f"{word!r}, of which the vocabulary has no character"
            sequences.append(tuple(word_ids))
            # Behind a space, if that is another first token of as many tokens, as in vLLM.
            if spaced_ids[0] != word_ids[0] and len(spaced_ids) == len(word_ids):
                sequences.append(tuple(spaced_ids))
        elif _are_ids(word, vocab_size) and word:
            sequences.append(tuple(int(token) for token in word))
        else:
            return repr(word)
    return tuple(dict.fromkeys(sequences))


def _are_ids(items: Any, vocab_size: int) -> bool:
    return isinstance(items, list | tuple) and all(is_whole(token, 0, vocab_size - 1) for token in items)


def _stops(stop: Any) -> list[Any]:
    if isinstance(stop, list | tuple):
        return list(stop)
    return [stop] if isinstance(stop, str) or is_whole(stop) else []


def _is_number(value: Any, low: float, high: float) -> bool:
    if isinstance(value, np.integer | np.floating):
        value = value.item()
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high


def is_whole(value: Any, low: float = -math.inf, high: float = math.inf) -> bool:
    """Whether a value is an integer of Python or NumPy within bounds, but no bool."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(low <= value <= high)


def check_count(value: Any, name: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name}: expected a whole number of at least 1, got {value!r}")
