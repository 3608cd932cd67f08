"""Scores of a question's options from the residual stream of one token."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from hybridlm.decision_models.questions import DecisionQuestion
from hybridlm.decision_models.slot_head import SlotHead
from hybridlm.text.tokenizer import Tokenizer


class OptionHead(Protocol):
    """A head that scores options. Scores are summed in float64, for each question by itself."""

    def check(self, question: DecisionQuestion) -> None:
        """Raise ValueError if the options of a question cannot be scored."""
        ...

    def scores(self, vector: np.ndarray, question: DecisionQuestion) -> np.ndarray:
        """Return the scores of the options, float64 [options].

        Args:
            vector: float32 [hidden], of the final residual stream.
            question: one that was checked.
        """
        ...


@dataclass(frozen=True)
class LabelHead:
    """The logits of the options' labels; the labels are distinct tokens.

    Attributes:
        tokenizer: tokenizer of the model.
        rows: token ids -> rows of the vocabulary head, float64 [ids, hidden], with every factor on logits.
        dtype: dtype of the residual stream in the product with the vocabulary head.
    """

    tokenizer: Tokenizer
    rows: Callable[[Sequence[int]], np.ndarray]
    dtype: np.dtype
    _label_rows: dict[tuple[str, ...], np.ndarray] = field(default_factory=dict)

    def check(self, question: DecisionQuestion) -> None:
        """Read the rows of the labels; raises ValueError if they are not distinct single tokens."""
        if question.labels not in self._label_rows:
            self._label_rows[question.labels] = self.rows(self._ids(question))

    def scores(self, vector: np.ndarray, question: DecisionQuestion) -> np.ndarray:
        """Return the logit of each option's label, float64 [option]."""
        rounded = vector.astype(self.dtype).astype(np.float64)
        return (self._label_rows[question.labels] * rounded).sum(axis=1)

    def _ids(self, question: DecisionQuestion) -> list[int]:
        encoded = {label: self.tokenizer.encode(label, add_special_tokens=False) for label in question.labels}
        unk_token = self.tokenizer.special_tokens.get("unk_token")
        nothing = None if unk_token is None else self.tokenizer.token_to_id(unk_token)
        wrong = [repr(label) for label, ids in encoded.items() if len(ids) != 1 or ids[0] == nothing]
        wrong += [
            f"{label!r} again"
            for label in {label_text for label_text in question.labels if question.labels.count(label_text) > 1}
        ]
        ids = [label_ids[0] for label_ids in encoded.values() if label_ids]
        if wrong or len(set(ids)) != len(question.labels):
            raise ValueError(
                f"questions[{question.name!r}]: expected labels that are distinct single tokens of this model, "
                f"{', '.join(wrong) or 'two of them'} {'are' if len(wrong) > 1 else 'is'} not; choose others in "
                f"decision.json (labels.{question.type})"
            )
        return ids


@dataclass(frozen=True)
class RowsHead:
    """A separate linear head: one row per option, from the offset of the question's type.

    Attributes:
        slots: its parameters.
    """

    slots: SlotHead

    def check(self, question: DecisionQuestion) -> None:
        """Raise ValueError for a type without rows, or more options than it has."""
        if question.type not in self.slots.offsets:
            raise ValueError(f"questions[{question.name!r}]: this model has no rows for {question.type} questions")
        limit = len(self.slots.weight) - self.slots.offsets[question.type]
        if len(question.options) > limit:
            raise ValueError(
                f"questions[{question.name!r}]: expected at most {limit} options, as many as this model has rows for "
                f"{question.type} questions, got {len(question.options)}"
            )

    def scores(self, vector: np.ndarray, question: DecisionQuestion) -> np.ndarray:
        """Return the score of each option, float64 [option], soft-capped if the model caps scores."""
        first = self.slots.offsets[question.type]
        rows = slice(first, first + len(question.options))
        weight = self.slots.weight[rows].astype(np.float64)
        scores = (weight * vector.astype(np.float64)).sum(axis=1) + self.slots.bias[rows]
        cap = self.slots.softcap
        return scores if cap is None else cap * np.tanh(scores / cap)
