"""All wrong questions are named; answers follow the definitions, recomputed in fractions."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import hybridlm
from hybridlm.decision_models.questions import KINDS, DecisionQuestion, answer_of, read_questions

ORDER = ("true", "false")


def test_questions_in_the_order_of_the_prompt() -> None:
    settings = {
        "a": {"type": "noul", "criteria": {"false": "no", "true": {"x": 1}}},
        "b": {"type": "choice", "instructions": ["x"], "criteria": {"z": None, "y": "why"}},
        "c": {"type": "score", "criteria": ["low", ["high"]]},
    }
    a, b, c = read_questions(settings, {"score": ["0", "1", "2"]}, ("false", "true"))
    assert (a.options, a.labels, a.descriptions) == (("false", "true"), ("Yes", "No"), ("no", {"x": 1}))
    assert (b.options, b.labels, b.descriptions) == (("z", "y"), ("A", "B"), (None, "why"))
    assert (c.options, c.labels, c.descriptions) == (("0", "1"), ("0", "1"), ("low", ["high"]))
    assert b.fields()["instructions"] == ["x"] and b.fields()["options"] == ["z", "y"]


WRONG: dict[str, Any] = {
    "no object": 5, "no type": {"criteria": ["a"]}, "unknown type": {"type": "rank", "criteria": ["a"]},
    "unknown field": {"type": "noul", "criterion": {}}, "number": {"type": "noul", "instructions": 3},
    "list of a noul": {"type": "noul", "criteria": ["true", "false"]},
    "other keys": {"type": "noul", "criteria": {"yes": "a"}}, "no options": {"type": "choice", "criteria": {}},
    "options in a list": {"type": "choice", "criteria": ["a"]},
    "number as description": {"type": "choice", "criteria": {"a": 1.5}}, "no levels": {"type": "score", "criteria": []},
    "levels by name": {"type": "score", "criteria": {"a": None}},
    "null level": {"type": "score", "criteria": ["a", None]}, "many": {"type": "score", "criteria": ["a"] * 27},
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_wrong_questions(case: str) -> None:
    with pytest.raises(ValueError, match=rf"questions\['{case}'\]: .*(expected|is no field)"):
        read_questions({"good": {"type": "noul"}, case: WRONG[case]}, {}, ORDER)


def test_every_wrong_question_is_named() -> None:
    with pytest.raises(ValueError) as raised:
        read_questions(WRONG, {}, ORDER)
    assert all(f"questions[{case!r}]" in str(raised.value) for case in WRONG)
    for nothing in ({}, [], None):
        with pytest.raises(ValueError, match="^questions: "):
            read_questions(nothing, {}, ORDER)


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("kind", KINDS)
def test_answers(kind: Any, count: int) -> None:
    names = ("true", "false") if kind == "noul" else tuple(map(str, range(count)))
    logs = np.log(np.arange(1, len(names) + 1)) * 2
    question = DecisionQuestion("q", kind, None, names, names, tuple(f"d{name}" for name in names))
    answer = answer_of(question, logs, temperature=2.0)
    total = sum(range(1, len(names) + 1))
    shares = [Fraction(i, total) for i in range(1, len(names) + 1)]
    assert list(answer.probabilities) == list(names)
    assert list(answer.probabilities.values()) == pytest.approx([float(share) for share in shares], rel=1e-12)
    assert answer.best == names[-1]
    settings = answer.to_dict()
    if kind == "noul":
        assert settings == {"type": "noul", "noul": answer.value} and answer.value == pytest.approx(1 / 3)
        assert answer.confidence is None and answer.legend is None
        return
    chance = Fraction(1, count)
    if kind == "choice":
        expected = 1 if count == 1 else (shares[-1] - chance) / (1 - chance)
        assert settings["choice"] == names[-1] and "legend" not in settings
    else:
        distance = sum(share * (count - 1 - level) for level, share in enumerate(shares))
        middle = sum(abs(level - Fraction(count - 1, 2)) for level in range(count)) / count
        expected = 1 if count == 1 else max(0, 1 - distance / middle)
        assert settings["score"] == pytest.approx(float(sum(level * share for level, share in enumerate(shares))))
        assert settings["legend"] == {name: f"d{name}" for name in names}
    assert settings["confidence"] == answer.confidence == pytest.approx(float(expected), abs=1e-12)
    assert settings["probabilities"] == answer.probabilities


def test_of_equally_likely_options_the_first_is_best() -> None:
    answer = hybridlm.Answer("choice", {"b": 0.4, "a": 0.4, "c": 0.2})
    assert (answer.best, answer.value) == ("b", "b")
