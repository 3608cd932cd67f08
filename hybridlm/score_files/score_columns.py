"""Columns of scores: log-probabilities and answers about the distributions."""

from typing import Any

import numpy as np

from hybridlm.requests.captured import HIDDEN
from hybridlm.requests.results import Score
from hybridlm.score_files.rows import Columns, Kind, Lists
from hybridlm.scoring.distributions import DistributionSettings

SCORES: dict[str, Kind] = {"token_ids": "ids", "logprobs": "floats", "sum_logprob": "number", "perplexity": "number"}
PROMPTS: dict[str, Kind] = {"boundary_shift": "count"}
"""Further columns of a file with prompts or messages; null for a text."""
DISTRIBUTIONS: dict[str, Kind] = {
    "ranks": "ranks",
    "entropy": "floats",
    "top_token_ids": "id lists",
    "top_logprobs": "float lists",
    "chosen_token_ids": "id lists",
    "chosen_logprobs": "float lists",
    "chosen_ranks": "id lists",
}
"""A token without a prediction, or before `start`, has a null rank and entropy and empty lists. The ranks of the most
likely ids are 1, 2, 3, ..."""


def score_columns(settings: DistributionSettings) -> Columns:
    """Return the columns of scores and of answers about the distributions."""
    if not settings.given:
        return SCORES
    groups = {"entropy": bool(settings.entropy), "top": bool(settings.top), "chosen": settings.token_ids is not None}
    names = [name for name in DISTRIBUTIONS if groups.get(name.partition("_")[0], True)]
    return {**SCORES, **{name: DISTRIBUTIONS[name] for name in names}}


def score_fields(score: Score) -> dict[str, Any]:
    """Return the columns of a score with a value; reads inside the model are flat."""
    fields: dict[str, Any] = {}
    if score.prefix_tokens:
        fields = {"prompt_tokens": score.prefix_tokens, "boundary_shift": score.boundary_shift}
    fields |= {name: getattr(score, name) for name in ("ranks", "entropy")}
    for name, part in (("top", score.top), ("chosen", score.chosen)):
        if part is not None:
            fields[f"{name}_token_ids"] = Lists(part.token_ids, part.offsets)
            fields[f"{name}_logprobs"] = Lists(part.logprobs, part.offsets)
            fields[f"{name}_ranks"] = Lists(part.ranks, part.offsets)
    columns = {name: value for name, value in fields.items() if value is not None and name != "top_ranks"}
    fields = {name: getattr(score, name) for name in SCORES} | columns  # a perplexity may be None
    if score.captured is not None:
        hidden = {HIDDEN.format(i): rows for i, rows in score.captured.hidden_states.items()}
        arrays = {**hidden, **score.captured.states}
        fields |= {"positions": score.captured.positions}
        fields |= {name: np.asarray(array, np.float32).reshape(-1) for name, array in arrays.items()}
    return fields
