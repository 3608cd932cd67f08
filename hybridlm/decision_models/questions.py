"""Typed questions, "choice", "score" and "noul", and their answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Kind = Literal["noul", "choice", "score"]
KINDS: tuple[Kind, ...] = ("noul", "choice", "score")
LETTERS = tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
YES_NO = ("Yes", "No")
FIELDS = ("type", "instructions", "criteria")
EXAMPLES = {
    "noul": '{"type": "noul", "instructions": "Is it spam?", "criteria": {"true": "an advertisement", "false": null}}',
    "choice": '{"type": "choice", "instructions": "Which tone?", "criteria": {"calm": "polite", "angry": null}}',
    "score": '{"type": "score", "instructions": "How urgent?", "criteria": ["can wait", "this week", "today"]}',
}


@dataclass(frozen=True)
class DecisionQuestion:
    """A question with its options in the order of the prompt.

    Attributes:
        options: names of a choice, "0", "1", ... of a score, "true" and "false" of a "noul".
        labels: option names in the prompt.
        descriptions: JSON per option.
    """

    name: str
    type: Kind
    instructions: Any
    options: tuple[str, ...]
    labels: tuple[str, ...]
    descriptions: tuple[Any, ...]

    def fields(self) -> dict[str, Any]:
        """Return the question as templates read it: JSON, with lists for tuples."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in vars(self).items()}


@dataclass(frozen=True)
class Answer:
    """An answer with a probability for every option.

    Attributes:
        probabilities: option -> probability, in prompt order.
        legend: level of a score -> description; None for other types.
    """

    type: Kind
    probabilities: Mapping[str, float]
    legend: Mapping[str, Any] | None = None

    @property
    def best(self) -> str:
        """The first most likely option."""
        return max(self.probabilities, key=self.probabilities.__getitem__)

    @property
    def value(self) -> float | str:
        """Probability of "true", most likely option, or expected score level."""
        if self.type == "noul":
            return self.probabilities["true"]
        if self.type == "choice":
            return self.best
        return sum(level * probability for level, probability in enumerate(self.probabilities.values()))

    @property
    def confidence(self) -> float | None:
        """From 0, equally likely options, to 1; None for "noul".

        Choice: `(p - 1/n) / (1 - 1/n)`, p of the best of n options. Score: `1 - d / u`, mean distance d from the most
        likely level, u for equal probabilities.
        """
        count, probabilities = len(self.probabilities), list(self.probabilities.values())
        if self.type == "noul":
            return None
        if count == 1:
            return 1.0
        if self.type == "choice":
            return max(0.0, (max(probabilities) - 1 / count) / (1 - 1 / count))
        best = int(self.best)
        distance = sum(probability * abs(level - best) for level, probability in enumerate(probabilities))
        uniform = sum(abs(level - (count - 1) / 2) for level in range(count)) / count
        return max(0.0, 1 - distance / uniform)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields of transformers' decision pipeline."""
        fields: dict[str, Any] = {"type": self.type, self.type: self.value}
        if self.type == "noul":
            return fields
        if self.legend is not None:
            fields["legend"] = dict(self.legend)
        return fields | {"confidence": self.confidence, "probabilities": dict(self.probabilities)}


def answer_of(question: DecisionQuestion, scores: np.ndarray, temperature: float) -> Answer:
    """Return the softmax of scores, float64 [options], over a temperature."""
    divided = scores.astype(np.float64) / temperature
    powers = np.exp(divided - divided.max())
    shares = (powers / powers.sum()).tolist()
    legend = dict(zip(question.options, question.descriptions, strict=True)) if question.type == "score" else None
    return Answer(question.type, dict(zip(question.options, shares, strict=True)), legend)


def read_questions(
    questions: Any, labels: Mapping[str, Sequence[str]], noul_options: Sequence[str]
) -> list[DecisionQuestion]:
    """Return the questions of a request, by name.

    Args:
        labels: of options by type; default Yes and No, or A, B, C, ....
        noul_options: order of "true" and "false".

    Raises:
        ValueError: with every wrong question.
    """
    if not isinstance(questions, Mapping) or not questions:
        raise ValueError(f"questions: expected an object of at least one name -> question, got {questions!r}"[:500])
    accepted: list[DecisionQuestion] = []
    faults: list[str] = []
    for name, question in questions.items():
        if not isinstance(name, str):
            faults.append(f"questions: expected names that are strings, got {name!r}")
            continue
        kind = question.get("type") if isinstance(question, Mapping) else None
        if kind not in KINDS:
            got = repr(question if not isinstance(question, Mapping) else kind)[:200]
            faults.append(f"questions[{name!r}]: type: expected one of {', '.join(KINDS)}, got {got}")
            continue
        wrong = _faults(kind, question)
        if wrong:
            faults.append(f"questions[{name!r}]: {'; '.join(wrong)}; such as {EXAMPLES[kind]}")
            continue
        options, descriptions = _options(kind, question.get("criteria"), noul_options)
        names = tuple(labels.get(kind) or (YES_NO if kind == "noul" else LETTERS))
        if len(names) < len(options):
            faults.append(
                f"questions[{name!r}]: expected at most {len(names)} options of a {kind} question, this model has no "
                f"label for more, got {len(options)}"
            )
            continue
        accepted.append(
            DecisionQuestion(name, kind, question.get("instructions"), options, names[: len(options)], descriptions)
        )
    if faults:
        raise ValueError("; ".join(faults))
    return accepted


def _faults(kind: str, question: Mapping[str, Any]) -> list[str]:
    faults = [f"{name}: is no field of a question" for name in question if name not in FIELDS]
    if not _content(question.get("instructions")):
        faults.append(f"instructions: expected text, an object or a list, got {question['instructions']!r}")
    criteria = question.get("criteria")
    if kind == "noul" and criteria is None:
        return faults
    if kind == "score":
        if not isinstance(criteria, list | tuple) or not criteria:
            faults.append(f"criteria: expected a list of levels, the lowest first, got {criteria!r}")
        elif not all(level is not None and _content(level) for level in criteria):
            faults.append(f"criteria: expected levels that are texts, objects or lists, got {criteria!r}")
        return faults
    if not isinstance(criteria, Mapping) or (kind == "choice" and not criteria):
        faults.append(f"criteria: expected an object of option -> description or null, got {criteria!r}")
    elif not all(isinstance(name, str) and _content(description) for name, description in criteria.items()):
        faults.append(f"criteria: expected descriptions that are texts, objects, lists or null, got {criteria!r}")
    elif kind == "noul" and (other_options := criteria.keys() - {"true", "false"}):
        faults.append(f"criteria: expected true and false, got {', '.join(sorted(other_options))}")
    return faults


def _content(value: Any) -> bool:
    return value is None or isinstance(value, str | Mapping | list | tuple)


def _options(kind: str, criteria: Any, noul_options: Sequence[str]) -> tuple[tuple[str, ...], tuple[Any, ...]]:
    if kind == "noul":
        return tuple(noul_options), tuple((criteria or {}).get(option) for option in noul_options)
    if kind == "score":
        return tuple(map(str, range(len(criteria)))), tuple(criteria)
    return tuple(criteria), tuple(criteria.values())
