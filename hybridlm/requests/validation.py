"""Validation of user input; messages have the item and the expected value."""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeGuard

import numpy as np

from hybridlm.requests.sampling_params import SamplingParams, Settings
from hybridlm.text.tokenizer import Tokenizer

MAX_LOGPROBS = 1000
LARGEST = 1e12
"""Products and quotients of smaller settings are finite in float32."""
FACTORS, CHANGES = (1 / LARGEST, LARGEST), (-LARGEST, LARGEST)
FACTOR, CHANGE = (f"a number in {low:g}..{high:g}" for low, high in (FACTORS, CHANGES))


def is_number(value: Any, low: float = -math.inf, high: float = math.inf, kinds: Any = int | float) -> bool:
    """Whether a value is a number of Python or NumPy within bounds, but no bool."""
    if isinstance(value, np.integer | np.floating):
        value = value.item()
    return isinstance(value, kinds) and not isinstance(value, bool) and low <= value <= high


def is_whole(value: Any, low: float = -math.inf, high: float = math.inf) -> TypeGuard[int]:
    """Whether a value is an integer of Python or NumPy within bounds, but no bool."""
    return is_number(value, low, high, int)


def without_numpy(options: Any) -> None:
    """Replace NumPy's scalars in a frozen dataclass by Python's, for JSON and equal texts."""
    for name, value in vars(options).items():
        if isinstance(value, np.generic):
            object.__setattr__(options, name, value.item())


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


def with_settings(params: SamplingParams | None, settings: Settings) -> SamplingParams:
    """Return sampling parameters with replaced fields; raises TypeError for another type."""
    if params is not None and not isinstance(params, SamplingParams):
        raise TypeError(f"sampling_params: expected a hybridlm.SamplingParams, got {params!r:.200}")
    return replace(SamplingParams() if params is None else params, **settings)


def settings_of_prompts(
    params: SamplingParams | Sequence[SamplingParams] | None, settings: Settings, count: int
) -> SamplingParams | list[SamplingParams]:
    """Return sampling parameters for all prompts, or a list if an argument is one.

    Raises:
        TypeError: an item of `params` is no `SamplingParams`.
        ValueError: lists of other lengths than the prompts, by name.
    """
    options: Any = settings
    lists: dict[str, Sequence[Any]] = {
        name: value for name, value in options.items() if isinstance(value, list | tuple) and _is_for_each(name, value)
    }
    items: Any = params
    if isinstance(params, list | tuple):
        lists["sampling_params"] = params
    elif lists:
        items = [params] * count
    else:
        return with_settings(items, settings)
    if faults := [f"{name}: got {len(values):,} values" for name, values in lists.items() if len(values) != count]:
        raise ValueError(f"{'; '.join(faults)}; expected {count:,}, one for each prompt")
    for i, item in enumerate(items):
        if "sampling_params" in lists and not isinstance(item, SamplingParams):
            raise TypeError(f"sampling_params[{i}]: expected a hybridlm.SamplingParams, got {item!r:.200}")
    lists.pop("sampling_params", None)
    rows: list[Any] = [settings | {name: values[i] for name, values in lists.items()} for i in range(count)]
    return [with_settings(item, row) for item, row in zip(items, rows, strict=True)]


def _is_for_each(name: str, value: Sequence[Any]) -> bool:
    if name in ("stop", "stop_token_ids", "allowed_token_ids"):
        return any(item is None or isinstance(item, list | tuple) for item in value)
    if name == "bad_words":
        # A word is a string or a list of token ids.
        words = (item for item in value if isinstance(item, list | tuple))
        return any(isinstance(part, str | list | tuple) for word in words for part in word)
    return True


def check_settings(params: SamplingParams) -> None:
    """Raise ValueError with all settings that are wrong for every model."""
    if faults := faults_of(params, MAX_LOGPROBS):
        raise ValueError("; ".join(faults))


def faults_of(params: SamplingParams, limit_logprobs: int) -> list[str]:
    """Return the faults of settings that do not depend on a tokenizer."""
    p, stops = params, stops_of(params.stop)
    limit = p.max_tokens if is_whole(p.max_tokens, 1) else sys.maxsize
    count, top = "a whole number of at least", f"0..{limit_logprobs} or None"
    checks = (
        ("max_tokens", is_whole(p.max_tokens, 1), f"{count} 1"),
        (
            "temperature",
            is_number(p.temperature, 0, 0) or is_number(p.temperature, *FACTORS),
            f"0 (greedy), or {FACTOR}",
        ),
        ("top_k", is_whole(p.top_k, 0, 2**31 - 1), f"{count} 0 (0 keeps all)"),
        ("top_p", is_number(p.top_p, 0, 1) and p.top_p > 0, "a number in (0, 1]"),
        ("min_p", is_number(p.min_p, 0, 1), "a number in [0, 1]"),
        ("seed", p.seed is None or is_whole(p.seed, 0, 2**64 - 1), "a whole number in [0, 2**64), or None"),
        ("ignore_eos", isinstance(p.ignore_eos, bool | np.bool_), "True or False"),
        ("logprobs", p.logprobs is None or is_whole(p.logprobs, 0, limit_logprobs), top),
        ("prompt_logprobs", p.prompt_logprobs is None or is_whole(p.prompt_logprobs, 0, limit_logprobs), top),
        (
            "stop",
            bool(stops) or p.stop is None or isinstance(p.stop, list | tuple),
            "a string, a token id, or a list of them",
        ),
        ("repetition_penalty", is_number(p.repetition_penalty, *FACTORS), f"{FACTOR} (1 for none)"),
        ("presence_penalty", is_number(p.presence_penalty, *CHANGES), CHANGE),
        ("frequency_penalty", is_number(p.frequency_penalty, *CHANGES), CHANGE),
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


def read_logit_bias(bias: Any, vocab_size: int) -> tuple[tuple[int, float], ...] | str:
    """Return token ids and biases, or the fault; keys may be decimal texts (JSON)."""
    if not isinstance(bias, Mapping):
        return repr(bias)
    biases: dict[int, float] = {}  # the lowest ones are bans
    for key, value in bias.items():
        token: Any = int(key) if isinstance(key, str) and key.isdecimal() else key
        if not is_whole(token, 0, vocab_size - 1) or not is_number(value, -3e38, LARGEST) or int(token) in biases:
            return f"{key!r}: {value!r}"
        biases[int(token)] = float(value)
    return tuple(biases.items())


def read_bad_words(words: Any, tokenizer: Tokenizer | None, vocab_size: int) -> tuple[tuple[int, ...], ...] | str:
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
        elif are_ids(word, vocab_size) and word:
            sequences.append(tuple(int(token) for token in word))
        else:
            return repr(word)
    return tuple(dict.fromkeys(sequences))


def are_ids(items: Any, vocab_size: int) -> bool:
    return isinstance(items, list | tuple) and all(is_whole(token, 0, vocab_size - 1) for token in items)


def stops_of(stop: Any) -> list[Any]:
    if isinstance(stop, list | tuple):
        return list(stop)
    return [stop] if isinstance(stop, str) or is_whole(stop) else []


def check_count(value: Any, name: str) -> None:
    if not is_whole(value, 1):
        raise ValueError(f"{name}: expected a whole number of at least 1, got {value!r}")
