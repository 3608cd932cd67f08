"""Generation settings of an lm_eval task as fields of `SamplingParams`."""

from collections.abc import Mapping
from typing import Any

MAX_TOKENS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
SAMPLING = ("top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
NEUTRAL: Mapping[str, Any] = {"num_beams": 1, "use_cache": True}
"""Settings with the value that has no effect."""


def generation_settings(options: Mapping[str, Any], max_tokens: int, end_token: int) -> dict[str, Any]:
    """Return the settings of one request.

    As in lm_eval, `do_sample: false` ignores the temperature, its absence samples above 0, and `do_sample: true` alone
    means 1.

    Args:
        end_token: besides the task's own.

    Raises:
        ValueError: an unsupported setting.
    """
    unused = dict(options)
    until = unused.pop("until", None) or []
    limits = [unused.pop(name, None) for name in MAX_TOKENS]
    sample = unused.pop("do_sample", None)
    temperature = unused.pop("temperature", None)
    settings: dict[str, Any] = {name: unused.pop(name) for name in SAMPLING if unused.get(name) is not None}
    wrong = sorted(name for name, value in unused.items() if value is not None and NEUTRAL.get(name) != value)
    if wrong:
        raise ValueError(f"generation_kwargs: {', '.join(wrong)}: not supported")
    settings["max_tokens"] = int(next((limit for limit in limits if limit is not None), max_tokens))
    settings["temperature"] = 0.0 if sample is False else float((sample or 0) if temperature is None else temperature)
    # In lm_eval an empty string stops nothing.
    settings["stop"] = [text for text in ([until] if isinstance(until, str) else until) if text] + [end_token]
    return settings
