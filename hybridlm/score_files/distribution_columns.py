"""Columns of what scores report about the distributions: ranks, entropy, most likely and chosen ids. Needs pyarrow."""

from collections.abc import Container, Sequence
from typing import Literal

import numpy as np
import pyarrow as pa

from hybridlm.requests.results import Score
from hybridlm.requests.token_logprobs import TokenLogprobs
from hybridlm.scoring.distributions import DistributionSettings

_PER_PLACE = {"token_ids": pa.int32(), "logprobs": pa.float32(), "ranks": pa.int32()}


def distribution_types(settings: DistributionSettings) -> dict[str, pa.DataType]:
    """Return the columns for what was asked, and their types.

    `ranks` and `entropy` are a list for each row; `top_token_ids`, `top_logprobs`, `chosen_token_ids`,
    `chosen_logprobs` and `chosen_ranks` a list for each token of it. The ranks of the most likely ids are 1, 2, 3, ...
    """
    if not settings.given:
        return {}
    names = ["top_token_ids", "top_logprobs"] if settings.top else []
    names += ["chosen_token_ids", "chosen_logprobs", "chosen_ranks"] if settings.token_ids is not None else []
    found: dict[str, pa.DataType] = {"ranks": pa.list_(pa.int32())}
    if settings.entropy:
        found["entropy"] = pa.list_(pa.float32())
    return found | {name: pa.list_(pa.list_(_PER_PLACE[name.partition("_")[2]])) for name in names}


def distribution_columns(scores: Sequence[Score | None], names: Container[str]) -> dict[str, pa.Array]:
    """Return these columns of `distribution_types` for scores; rows without one are null.

    A token without a prediction, or before `start`, has a null rank and entropy and an empty list of ids.
    """
    missing = pa.array([one is None for one in scores])
    found: dict[str, pa.Array] = {}
    for name in ("ranks", "entropy"):
        if name in names:
            arrays = [getattr(one, name) for one in scores if one is not None]
            flat = np.concatenate([np.zeros(0, np.int32 if name == "ranks" else np.float32), *arrays])
            unknown = flat == 0 if name == "ranks" else np.isnan(flat)
            values = pa.array(flat, mask=unknown)
            counts = [0 if one is None else len(one.token_ids) for one in scores]
            found[name] = pa.ListArray.from_arrays(_offsets(counts), values, mask=missing)
    for kind in ("top", "chosen"):
        parts = [None if one is None else getattr(one, kind) for one in scores]
        for name in _PER_PLACE:
            if f"{kind}_{name}" in names:
                found[f"{kind}_{name}"] = _of_places(parts, name, missing)
    return found


def _of_places(parts: Sequence[TokenLogprobs | None], name: str, missing: pa.Array) -> pa.Array:
    there = [one for one in parts if one is not None]
    empty = np.zeros(0, np.float32 if name == "logprobs" else np.int32)
    values = pa.array(np.concatenate([empty, *(getattr(one, name) for one in there)]))
    counts = np.concatenate([np.zeros(0, np.int64), *(np.diff(one.offsets) for one in there)])
    places = pa.ListArray.from_arrays(_offsets(counts), values)
    return pa.ListArray.from_arrays(_offsets([0 if one is None else len(one) for one in parts]), places, mask=missing)


def _offsets(counts: Sequence[int] | np.ndarray) -> pa.Array:
    total = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])
    if total[-1] > np.iinfo(np.int32).max:
        raise ValueError(f"scores: expected at most 2^31 - 1 numbers in a column, got {total[-1]:,}; use fewer rows")
    return pa.array(total.astype(np.int32))


def read_token_logprobs(table: pa.Table, kind: Literal["top", "chosen"]) -> list[TokenLogprobs | None]:
    """Return the ids of each row of a table; see `hybridlm.token_logprobs`."""
    wanted = [f"{kind}_{name}" for name in _PER_PLACE if (kind, name) != ("top", "ranks")]
    if kind not in ("top", "chosen") or any(name not in table.column_names for name in wanted):
        raise ValueError(f"kind: expected columns {', '.join(wanted)}, found {', '.join(table.column_names)}")
    rows: list[TokenLogprobs | None] = []
    for values in zip(*(table.column(name) for name in wanted), strict=True):
        if not values[0].is_valid:
            rows.append(None)
            continue
        offsets = np.concatenate([[0], np.cumsum(values[0].values.value_lengths().to_numpy(zero_copy_only=False))])
        ids, logprobs, *ranks = (value.values.flatten().to_numpy(zero_copy_only=False) for value in values)
        places = np.repeat(offsets[:-1], np.diff(offsets))
        ranked = ranks[0] if ranks else np.arange(1, len(ids) + 1, dtype=np.int32) - places.astype(np.int32)
        rows.append(TokenLogprobs(ids, logprobs, ranked, offsets.astype(np.int64)))
    return rows
