"""The task of divergence: distances of two models on each row, and their means."""

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hybridlm.engine.config import option
from hybridlm.files.parts import Parts
from hybridlm.requests.results import require_finite
from hybridlm.requests.validation import to_items
from hybridlm.score_files.formats import ending_of
from hybridlm.score_files.lines import open_lines
from hybridlm.score_files.rows import Columns
from hybridlm.score_files.task import RowResult, RowTask, ScoreFileReport, Task, file_report, row_result, text_task
from hybridlm.scoring.divergence import Divergence, compare
from hybridlm.text_model import TextModel
from ir_passes.files.strict_json import parse_json

MEANS = ("mean_kl", "mean_reverse_kl", "mean_js", "agreement")
DIVERGENCE_COLUMNS: Columns = {
    "token_ids": "ids",
    "kl": "floats",
    "reverse_kl": "floats",
    "js": "floats",
    "same_top": "flags",
    **dict.fromkeys(MEANS, "number"),
}


@dataclass(frozen=True)
class DivergenceFileReport(ScoreFileReport):
    """Result of `LM.divergence_file`.

    Attributes:
        predicted: all tokens but the first of each text.
        mean_kl, mean_reverse_kl, mean_js, agreement: over these, in float64; None without any.
    """

    predicted: int = 0
    mean_kl: float | None = None
    mean_reverse_kl: float | None = None
    mean_js: float | None = None
    agreement: float | None = None


def require_comparable(model: TextModel, other: TextModel) -> None:
    """Raise ValueError unless two models can be compared."""
    if model.config.vocab_size != other.config.vocab_size:
        sizes = f"{model.config.vocab_size} and {other.config.vocab_size}"
        raise ValueError(f"other: expected one vocabulary, these have {sizes} tokens")
    if model.engine.placement.mesh != other.engine.placement.mesh:
        raise ValueError("other: expected both models on the same devices, their meshes differ; load both alike")
    model.engine.placement.require_one_process("divergence")
    model.require_vocabulary_head()
    other.require_vocabulary_head()


def compared_ids(model: TextModel, other: TextModel, item: Any, where: str) -> tuple[int, ...]:
    """Return token ids for both models; raises TypeError or ValueError."""
    tokenizers = {side.tokenizer and side.tokenizer.fingerprint for side in (model, other)}
    if isinstance(item, str) and len(tokenizers) > 1:
        raise ValueError(f"{where}: expected the same tokenizer in both models, theirs differ; give token ids")
    ids = model.inputs.encode(item, where)
    other.inputs.check_length(ids, where)
    return ids


def compare_models(
    model: TextModel, other: TextModel, ids: Sequence[tuple[int, ...]], full_lanes: bool = False
) -> tuple[Divergence, dict[int, int]]:
    return compare([(model.engine, model.structure), (other.engine, other.structure)], ids, full_lanes)


def text_model_of(other: Any) -> TextModel:
    """Return the text model of an `LM`; raises TypeError otherwise."""
    model = getattr(other, "text_model", None)
    if not isinstance(model, TextModel):
        raise TypeError(f"other: expected a model that hybridlm.load returned, got {type(other)}")
    return model


def compare_texts(model: TextModel, other: TextModel, texts: Any) -> Divergence:
    require_comparable(model, other)
    ids = [compared_ids(model, other, item, f"texts[{i}]") for i, item in enumerate(to_items(texts, "texts"))]
    divergence, wrong = compare_models(model, other, ids)
    require_finite(wrong, "texts[{}]".format)
    return divergence


@dataclass(frozen=True)
class DivergenceTask(Task):
    """Distances of two models on each row, as `LM.divergence` computes them.

    Columns: "token_ids", per token "kl", "reverse_kl", "js" and "same_top", and means.

    Attributes:
        other: an `LM` with the same vocabulary.
    """

    other: Any = option(
        MISSING,
        "The model to compare with, given as --model is: Q where that is P. --adapter is not for it.",
        flags=("--other", "-o"),
    )

    def on(self, model: TextModel) -> RowTask:
        """Return the task; raises ValueError if the models cannot be compared."""
        other = text_model_of(self.other)
        require_comparable(model, other)

        def run(ids: Sequence[tuple[int, ...]]) -> list[RowResult]:
            divergence, wrong = compare_models(model, other, ids, full_lanes=True)
            return [row_result(divergence.of(i), len(text), wrong.get(i)) for i, text in enumerate(ids)]

        origin = {f"other {name}": value for name, value in other.origin().items()}
        encode = partial(compared_ids, model, other)
        return text_task(model, DIVERGENCE_COLUMNS, encode, run, origin, report=_report)


def _report(output: Path, parts: Parts, earlier_rows: int) -> DivergenceFileReport:
    report, totals, predicted = file_report(output, parts, earlier_rows), dict.fromkeys(MEANS, 0.0), 0
    for count, means in _rows(output):
        predicted += count
        for name, mean in zip(MEANS, means, strict=True):
            totals[name] += count * mean
    values: dict[str, Any] = dict(vars(report))
    if predicted:
        values |= {name: total / predicted for name, total in totals.items()}
    return DivergenceFileReport(**values, predicted=predicted)


def _rows(output: Path) -> Iterator[tuple[int, Sequence[float]]]:
    if ending_of(output) == ".parquet":
        import pyarrow.parquet as pq

        with pq.ParquetFile(output) as file:
            for batch in file.iter_batches(columns=["token_ids", *MEANS]):
                counts = batch["token_ids"].value_lengths().to_pylist()
                for count, *means in zip(counts, *(batch[name].to_pylist() for name in MEANS), strict=True):
                    if means[0] is not None:
                        yield count - 1, means
        return
    with open_lines(output) as lines:
        objects = map(parse_json, lines)
        if ending_of(output).startswith(".csv"):
            records = csv.DictReader(io.TextIOWrapper(lines, "utf-8", newline=""))
            objects = (
                {name: parse_json(record[name] or "null") for name in ("token_ids", *MEANS)} for record in records
            )
        for row in objects:
            if row.get("mean_kl") is not None:
                yield len(row["token_ids"]) - 1, [row[name] for name in MEANS]
