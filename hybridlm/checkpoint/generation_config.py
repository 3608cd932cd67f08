"""End tokens of generation_config.json; its other settings are not used."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hybridlm.files.strict_json import MEGABYTE, read_object

NAME = "generation_config.json"
_SAMPLING: Mapping[str, Any] = {
    "temperature": 1, "top_k": 0, "top_p": 1, "min_p": 0, "top_h": 1, "typical_p": 1, "epsilon_cutoff": 0,
    "eta_cutoff": 0,
}  # fmt: skip
"""Field that `do_sample` needs -> value without effect."""
_ALWAYS: Mapping[str, Any] = {
    "do_sample": False, "num_beams": 1, "guidance_scale": 1, "penalty_alpha": 0, "token_healing": False,
    "remove_invalid_values": False, "min_length": 0, "min_new_tokens": 0, "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0, "presence_penalty": 0, "frequency_penalty": 0, "repetition_penalty": 1,
    "encoder_repetition_penalty": 1,
    **dict.fromkeys(
        """bad_words_ids force_words_ids constraints forced_bos_token_id forced_eos_token_id suppress_tokens
        begin_suppress_tokens sequence_bias exponential_decay_length_penalty watermarking_config stop_strings
        dola_layers""".split()
    ),
}  # fmt: skip


def read_generation(directory: Path, default: tuple[int, ...]) -> tuple[tuple[int, ...], list[str]]:
    """Return end tokens, and a warning of unused settings, as transformers.

    Args:
        default: end tokens of config.json.

    Raises:
        ValueError: end tokens are no ids.
    """
    path = directory / NAME
    fields = read_object(path, MEGABYTE) if path.exists() else {}
    field = fields.get("eos_token_id")
    ids = field if isinstance(field, list) else [] if field is None else [field]
    if any(isinstance(token, bool) or not isinstance(token, int) or token < 0 for token in ids):
        raise ValueError(f"{path}: eos_token_id: expected a token id or a list of them, found {ids!r}")
    neutral = {**_ALWAYS, **(_SAMPLING if fields.get("do_sample") else {})}
    settings = {
        name: fields[name]
        for name in neutral
        if name in fields and fields[name] not in (None, [], {}) and fields[name] != neutral[name]
    }
    listed = ", ".join(f"{name} {value!r:.80}" for name, value in settings.items())
    warnings = [f"{path}: not used, pass them to generate: {listed}"] if settings else []
    return tuple(dict.fromkeys(ids or default)), warnings
