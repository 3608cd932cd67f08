"""Scores of a file with hidden states and states: the columns, the values of a row, and how many rows fit a window."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from hybridlm.engine.probe_settings import ProbeSettings
from hybridlm.engine.probing import StateArrays
from hybridlm.requests.captured import HIDDEN
from hybridlm.requests.probes import check_capture
from hybridlm.requests.results import Score
from hybridlm.score_files.rows import Columns
from hybridlm.score_files.score_rows import RowValues

MAX_CAPTURED_BYTES = 1 << 28
"""Maximum bytes that the rows of a window read, if they have as many tokens as the context; one row may read more."""


def captured_columns(inside: ProbeSettings, arrays: StateArrays) -> tuple[Columns, int]:
    """Return the columns of scores with what is read, and the maximum number of rows of a window.

    Args:
        inside: what is read.
        arrays: of the model.

    Raises:
        TypeError, ValueError: a setting does not fit the model, or a file.
    """
    capture = check_capture(inside.hidden_states, inside.states, arrays.places)
    if inside.positions not in ("last", "all"):
        raise ValueError(f"positions: expected last or all for the rows of a file, got {inside.positions!r}")
    entries = arrays.entries if capture.states else []
    names = [*(HIDDEN.format(i) for i in capture.hidden_states), *(one.name for one in entries)]
    numbers = len(capture.hidden_states) * arrays.places.hidden + sum(int(np.prod(one.shape)) for one in entries)
    row = 4 * numbers * (arrays.places.context if inside.positions == "all" else 1)
    columns: Any = {"token_ids": "ids", "logprobs": "floats", "sum_logprob": "number", "perplexity": "number"}
    found: Columns = {**columns, "positions": "ids", **dict.fromkeys(names, "floats")}
    return found, max(1, MAX_CAPTURED_BYTES // row)


def captured_values(scores: Sequence[Score]) -> list[RowValues]:
    """Return the values of rows: of each array the numbers of all positions, one after another."""
    found = []
    for one in scores:
        captured = one.captured
        assert captured is not None
        arrays = {HIDDEN.format(i): rows for i, rows in captured.hidden_states.items()} | captured.states
        fields: dict[str, Any] = {
            "token_ids": np.array(one.token_ids, np.int32), "logprobs": one.logprobs, "sum_logprob": one.sum_logprob,
            "perplexity": one.perplexity, "positions": captured.positions,
        }  # fmt: skip
        flat = {name: np.asarray(array, np.float32).reshape(-1) for name, array in arrays.items()}
        found.append(RowValues(fields | flat, len(one.token_ids), one.first_nan))
    return found
