"""Thousands of rows classified by the embedded model under grammars: every answer has its form and ends."""

import itertools
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

import hybridlm
from hybridlm import demo

LABELS = ["positive", "negative", "neutral", 'none of "these"']
SCHEMA = {
    "type": "object",
    "properties": {"label": {"enum": LABELS}, "confidence": {"type": "integer", "minimum": 0, "maximum": 100}},
    "required": ["label", "confidence"],
    "additionalProperties": False,
}
LIST = {"type": "array", "items": {"enum": ["a", "b", 3, None]}, "minItems": 1, "maxItems": 3}
FORMS: list[dict[str, Any]] = [
    {"choice": LABELS},
    {"regex": "(yes|no)(, (because|although) [a-z]{1,6})?"},
    {"json": SCHEMA, "disable_any_whitespace": True},
    {"json": LIST, "disable_any_whitespace": True},
]
ROWS, WINDOW = 5000, 2048
"""Rows, and rows that are submitted together."""


def has_form(text: str, form: int) -> bool:
    """Whether an answer has one of `FORMS`, by its definition; raises ValueError for no JSON."""
    if form == 0:
        return text in LABELS
    if form == 1:
        return re.fullmatch(FORMS[1]["regex"], text) is not None
    value = json.loads(text)
    if form == 2:
        return list(value) == ["label", "confidence"] and value["label"] in LABELS and 0 <= value["confidence"] <= 100
    return 1 <= len(value) <= 3 and all(item in ("a", "b", 3, None) for item in value)


def answers(lm: hybridlm.LM) -> Iterator[tuple[int, hybridlm.Completion]]:
    """Yield (form, completion) of every row, two thirds of them sampled."""
    numbers = iter(range(ROWS))
    while window := list(itertools.islice(numbers, WINDOW)):
        with lm.session() as session:
            for number in window:
                text = demo.story(demo.UNSEEN[number], holders=1).prompt[-60:]
                form: Any = FORMS[number % len(FORMS)]
                sampled = {"temperature": 1.0, "seed": number} if number % 3 else {}
                session.submit(text, structured_outputs=form, max_tokens=60, **sampled)
            while session.busy:
                for event in session.step():
                    if event.completion is not None:
                        yield window[event.index] % len(FORMS), event.completion


@pytest.mark.long
@pytest.mark.parametrize("speculate", [None, "ngram"], ids=["plain", "drafts"])
def test_every_row_has_its_form(speculate: Any) -> None:
    lm = hybridlm.load(demo.path(), lanes=64, context=128, chunk=64, speculate=speculate)
    count = 0
    for form, completion in answers(lm):
        count, text = count + 1, completion.text or ""
        assert completion.finish_reason == "stop", f"form {form}: {text!r}"
        assert has_form(text, form), f"form {form}: {text!r}"
    assert count == ROWS
