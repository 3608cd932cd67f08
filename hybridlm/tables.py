"""Results as Arrow tables (extra `data`), for pandas or Parquet."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from hybridlm.errors import require_extra
from hybridlm.files.json_lines import finite
from hybridlm.requests.results import Completion, Score, TokenLogprobs
from hybridlm.score_files.score_task import DISTRIBUTIONS, score_fields
from hybridlm.scoring.choice import Choice

if TYPE_CHECKING:
    import pyarrow


def to_table(results: Sequence[Completion] | Sequence[Score] | Sequence[Choice]) -> "pyarrow.Table":
    """Return a table with a row for each result; `.to_pandas()` makes it a pandas frame.

    NaN is null.

    Args:
        results: of `generate` or `score`, or a list of results of `choose`.

    Returns:
        Scores: token_ids, logprobs, greedy, sum_logprob, perplexity, and the columns of `score_file` for distributions
            (docs/scoring.md), which `token_logprobs` reads. Completions: text, token_ids, finish_reason,
            prompt_token_ids, logprobs. Both: top_logprobs, (token_id, logprob) lists, if requested. Choices: options,
            sums, per_token, greedy, best. Scores and choices: boundary_shift, if any.

    Raises:
        TypeError, ValueError: no results, or several kinds.
        MissingExtra: without pyarrow.
    """
    require_extra("to_table", "pyarrow", "data")
    import pyarrow as pa

    from hybridlm.score_files.arrow import column_of

    if not isinstance(results, list | tuple) or not results:
        raise ValueError(f"results: expected a list of at least one result, got {results!r}")
    kind = type(results[0])
    other = next((i for i, result in enumerate(results) if type(result) is not kind), None)
    if kind not in _COLUMNS or other is not None:
        names = ", ".join(result.__name__ for result in _COLUMNS)
        kinds = kind.__name__ if other is None else f"{kind.__name__} and, at {other}, {type(results[other]).__name__}"
        raise TypeError(f"results: expected a list of one of {names}, got {kinds}")
    ids, floats = pa.list_(pa.int32()), pa.list_(pa.float32())
    types = {
        "token_ids": ids, "prompt_token_ids": ids, "logprobs": floats, "sum_logprob": pa.float64(),
        "perplexity": pa.float64(), "text": pa.string(), "finish_reason": pa.string(), "greedy": pa.list_(pa.bool_()),
        "top_logprobs": pa.list_(pa.list_(pa.struct([("token_id", pa.int32()), ("logprob", pa.float32())]))),
        "sums": pa.list_(pa.float64()), "per_token": pa.list_(pa.float64()), "best": pa.int32(),
    }  # fmt: skip
    columns = {name: [getattr(result, name) for result in results] for name in _COLUMNS[kind]}
    for name in columns.keys() & _READERS.keys():
        columns[name] = list(map(_READERS[name], columns[name]))
    if all(value is None for value in columns.get("top_logprobs", [0])):
        del columns["top_logprobs"]
    shifts = [result.boundary_shift for result in results if not isinstance(result, Completion)]
    if any(any(shift) if isinstance(shift, list) else shift for shift in shifts):
        columns["boundary_shift"] = shifts
    table = pa.table({name: pa.array(values, types.get(name)) for name, values in columns.items()})
    fields = [score_fields(result) for result in results if isinstance(result, Score)]
    for name, column in DISTRIBUTIONS.items():
        if fields and name in fields[0]:
            table = table.append_column(name, column_of([result.get(name) for result in fields], column))
    return table


def token_logprobs(table: "pyarrow.Table", kind: Literal["top", "chosen"]) -> list[TokenLogprobs | None]:
    """Return the most likely or chosen ids of each row, as in `LM.score`.

    Args:
        table: of `score_file` or `to_table`.
        kind: "top" or "chosen".

    Returns:
        One for each row; None for a row with an error.

    Raises:
        ValueError: another kind, or no such columns.
        MissingExtra: without pyarrow.
    """
    require_extra("token_logprobs", "pyarrow", "data")
    from hybridlm.score_files.arrow import read_token_logprobs

    return read_token_logprobs(table, kind)


def _numbers(values: Any) -> list[float | None] | None:
    return None if values is None else [finite(value) for value in values]


def _tops(tops: Sequence[Mapping[int, float]] | None) -> list[list[dict[str, Any]]] | None:
    if tops is None:
        return None
    return [[{"token_id": token, "logprob": logprob} for token, logprob in top.items()] for top in tops]


_COLUMNS: Mapping[type, tuple[str, ...]] = {
    Score: ("token_ids", "logprobs", "greedy", "sum_logprob", "perplexity", "top_logprobs"),
    Completion: ("text", "token_ids", "finish_reason", "prompt_token_ids", "logprobs", "top_logprobs"),
    Choice: ("options", "sums", "per_token", "greedy", "best"),
}
"""Columns by kind of result, all of them its attributes."""
_READERS: Mapping[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("logprobs", "sums", "per_token"), _numbers), "greedy": list, "top_logprobs": _tops
}  # fmt: skip
