"""The task of divergence: distances of two models on each row, and the means over all rows."""

from collections.abc import Iterator, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from hybridlm.engine.config import option
from hybridlm.files.parts import Parts
from hybridlm.score_files.report import ScoreFileReport, file_report
from hybridlm.score_files.rows import Columns
from hybridlm.score_files.task import RowTask, RowValues, Task, text_task
from hybridlm.text_model import TextModel
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


class HasTextModel(Protocol):
    """A loaded model, an `LM`."""

    text_model: TextModel


@dataclass(frozen=True)
class DivergenceTask(Task):
    """Distances of two models on each row, as `LM.divergence` computes them.

    Columns are "token_ids", for each token "kl", "reverse_kl", "js" and "same_top", and their means.

    Attributes:
        other: the model to compare with, with the same vocabulary.
    """

    other: HasTextModel = option(
        MISSING,
        "The model to compare with, given as --model is: Q where that is P. --adapter is not for it.",
        flags=("--other", "-o"),
    )

    def on(self, model: TextModel) -> RowTask:
        """Return the task with a model; raises ValueError if the models cannot be compared."""
        other = self.other.text_model
        model.require_comparable(other)

        def run(ids: Sequence[tuple[int, ...]]) -> list[RowValues]:
            divergence, wrong = model.compare(other, ids, full_lanes=True)
            return [RowValues(divergence.of(i), len(text), wrong.get(i)) for i, text in enumerate(ids)]

        origin = {f"other {name}": value for name, value in other.origin().items()}
        encode = partial(model.compared_ids, other)
        return text_task(model, DIVERGENCE_COLUMNS, encode, run, origin, report=_report)


def _report(output: Path, parts: Parts, kept: int) -> DivergenceFileReport:
    """Return a report with the means over the rows of its output, weighted by their predicted tokens."""
    report, totals, predicted = file_report(output, parts, kept), dict.fromkeys(MEANS, 0.0), 0
    for count, means in _rows(output):
        predicted += count
        for name, mean in zip(MEANS, means, strict=True):
            totals[name] += count * mean
    values: dict[str, Any] = {field.name: getattr(report, field.name) for field in fields(ScoreFileReport)}
    if predicted:
        values |= {name: total / predicted for name, total in totals.items()}
    return DivergenceFileReport(**values, predicted=predicted)


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
