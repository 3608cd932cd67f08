"""Files of how far two models are from one another: their columns, and the means over all of them."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from hybridlm.score_files.rows import Columns
from hybridlm.score_files.score_file import ScoreFileReport
from ir_passes.files.strict_json import parse_json

MEANS = ("mean_kl", "mean_reverse_kl", "mean_js", "agreement")
DIVERGENCE_COLUMNS: Columns = {
    "token_ids": "ids",
    "kl": "floats",
    "reverse_kl": "floats",
    "js": "floats",
    "same_top": "flags",
    "mean_kl": "number",
    "mean_reverse_kl": "number",
    "mean_js": "number",
    "agreement": "number",
}
"""Fields of the output, for each row of the input."""


@dataclass(frozen=True)
class DivergenceFileReport(ScoreFileReport):
    """Result of `LM.divergence_file`.

    Attributes:
        predicted: tokens that are predicted: all but the first of each text.
        mean_kl, mean_reverse_kl, mean_js, agreement: over these, in float64, as in `Divergence`; None without any.
    """

    predicted: int = 0
    mean_kl: float | None = None
    mean_reverse_kl: float | None = None
    mean_js: float | None = None
    agreement: float | None = None


def with_means(report: ScoreFileReport) -> DivergenceFileReport:
    """Return a report with the means over the rows of its output, weighted by their predicted tokens."""
    totals, predicted = dict.fromkeys(MEANS, 0.0), 0
    for count, means in _rows(report.output):
        predicted += count
        for name, mean in zip(MEANS, means, strict=True):
            totals[name] += count * mean
    given: dict[str, Any] = {field.name: getattr(report, field.name) for field in fields(ScoreFileReport)}
    if predicted:
        given |= {name: total / predicted for name, total in totals.items()}
    return DivergenceFileReport(**given, predicted=predicted)


def _rows(output: Path) -> Iterator[tuple[int, list[float]]]:
    """Yield the predicted tokens and the means of every row that has some."""
    if output.suffix.lower() == ".jsonl":
        with output.open("rb") as file:
            for line in file:
                row = parse_json(line)
                if row.get("mean_kl") is not None:
                    yield len(row["token_ids"]) - 1, [row[name] for name in MEANS]
        return
    import pyarrow.parquet as pq

    with pq.ParquetFile(output) as file:
        for batch in file.iter_batches(columns=["token_ids", *MEANS]):
            counts = batch["token_ids"].value_lengths().to_pylist()
            for count, *means in zip(counts, *(batch[name].to_pylist() for name in MEANS), strict=True):
                if means[0] is not None:
                    yield count - 1, means
