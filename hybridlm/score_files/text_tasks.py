"""Tasks of embeddings, classes and decisions."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from hybridlm.decision_models.prompts import FIELDS, Prompt
from hybridlm.engine.config import option
from hybridlm.score_files.formats import check_file, open_source
from hybridlm.score_files.rows import Columns
from hybridlm.score_files.task import RowResult, RowTask, Task, row_result, text_task
from hybridlm.scoring.pooling import Pooling, check_pooling, classes, pooled
from hybridlm.text_model import TextModel


@dataclass(frozen=True, kw_only=True)
class EmbedTask(Task):
    """A vector for each row, as `LM.embed` computes them: the column "embedding".

    Attributes:
        pooling: "last" or "first" token, or "mean" of all.
        normalised: divide by the length, so that products are cosines.

    Raises:
        ValueError: there is no such pooling.
        TypeError: `normalised` is no bool.
    """

    pooling: Pooling = option("last", "Vector of the last or the first token, or the mean of all: last, first or mean.")
    normalised: bool = option(
        True, "Divide each vector by its length, or leave it as it is.", flags=("--normalised/--as-it-is",)
    )

    def __post_init__(self) -> None:
        check_pooling(self.pooling, self.normalised)

    def on(self, model: TextModel) -> RowTask:
        def run(ids: Sequence[tuple[int, ...]]) -> list[RowResult]:
            size = model.config.hidden_size
            vectors, wrong = pooled(model.engine, ids, size, self.pooling, self.normalised, full_lanes=True)
            return [row_result({"embedding": vectors[i]}, len(text), wrong.get(i)) for i, text in enumerate(ids)]

        kind = f"{self.pooling} token, {'normalised' if self.normalised else 'as it is'}"
        return text_task(model, {"embedding": "floats"}, model.text_inputs.encode, run, {"embedding": kind})


@dataclass(frozen=True, kw_only=True)
class ClassifyTask(Task):
    """Classes or the reward of each row, as `LM.classify` computes them.

    Columns: "logits"; with several labels also "label", the most likely one, and "probabilities".
    """

    def on(self, model: TextModel) -> RowTask:
        classifier = model.require_classifier("classify_file")
        columns: Columns = {"logits": "floats"}
        if len(classifier.labels) > 1:
            columns = {"logits": "floats", "label": "text", "probabilities": "floats"}

        def run(ids: Sequence[tuple[int, ...]]) -> list[RowResult]:
            classification, wrong = classes(model.engine, ids, classifier, full_lanes=True)
            rows: list[dict[str, Any]] = [{"logits": logits} for logits in classification.logits]
            if len(classifier.labels) > 1:
                for row, shares in zip(rows, classification.probabilities, strict=True):
                    row["label"] = classifier.labels[int(np.argmax(row["logits"]))]
                    row["probabilities"] = shares.astype(np.float32)
            return [row_result(rows[i], len(text), wrong.get(i)) for i, text in enumerate(ids)]

        return text_task(model, columns, model.text_inputs.encode, run, {"logits": "score.weight"})


@dataclass(frozen=True, kw_only=True)
class DecideTask(Task):
    """Answers to the typed questions of each row, as `LM.decide` computes them.

    Files are JSON lines with "state" and "questions"; "answers" has `Answer.to_dict` by question.
    """

    check: ClassVar[Any] = staticmethod(partial(check_file, requests=True))

    def on(self, model: TextModel) -> RowTask:
        decider = model.decider(full_lanes=True)

        def run(requests: Sequence[list[Prompt]]) -> list[RowResult]:
            rows: list[RowResult] = []
            for prompts, answers in zip(requests, decider.answers(requests), strict=True):
                tokens = sum(len(prompt.token_ids) for prompt in prompts)
                wrong = answers if isinstance(answers, int) else None
                fields = (
                    {} if isinstance(answers, int) else {name: answer.to_dict() for name, answer in answers.items()}
                )
                rows.append(row_result({"answers": fields}, tokens, wrong))
            return rows

        origin: dict[str, str | int] = {"decisions": decider.prompts.settings.digest}
        columns: Columns = {"answers": "object"}
        source = partial(open_source, request=FIELDS)
        return text_task(model, columns, lambda item, where: decider.encode(item), run, origin, open=source)
