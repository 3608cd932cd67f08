"""Classify rows with the embedded model under grammars, and check the form of every answer.

    python scripts/demo/structured_rows.py 100000

Rows have one of four forms (a choice, a regular expression, two JSON schemas), greedy or sampled, with drafts. The exit
status is 1 if an answer has another form, by `json` and `re`, or did not end.
"""

import argparse
import itertools
import json
import re
from collections.abc import Iterator
from typing import Any

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
WINDOW = 2048
"""Rows that are submitted together."""


def has_form(text: str, form: int) -> bool:
    """Whether an answer has one of `FORMS`, by its definition."""
    if form == 0:
        return text in LABELS
    if form == 1:
        return re.fullmatch(FORMS[1]["regex"], text) is not None
    value = json.loads(text)
    if form == 2:
        return list(value) == ["label", "confidence"] and value["label"] in LABELS and 0 <= value["confidence"] <= 100
    return 1 <= len(value) <= 3 and all(item in ("a", "b", 3, None) for item in value)


def answers(lm: hybridlm.LM, rows: int) -> Iterator[tuple[int, hybridlm.Completion]]:
    """Yield (form, completion) of every row."""
    numbers = iter(range(rows))
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=int)
    parser.add_argument("--lanes", type=int, default=64)
    parser.add_argument("--speculate", choices=["ngram"])
    options = parser.parse_args()
    lm = hybridlm.load(demo.path(), lanes=options.lanes, context=128, chunk=64, speculate=options.speculate)
    count = wrong = tokens = 0
    for form, completion in answers(lm, options.rows):
        text = completion.text or ""
        good = completion.finish_reason == "stop"
        try:
            good = good and has_form(text, form)
        except ValueError:
            good = False
        if not good:
            print(f"form {form}, finish reason {completion.finish_reason}: {text!r}", flush=True)
        count, wrong, tokens = count + 1, wrong + (not good), tokens + len(completion.token_ids)
        if count % 10_000 == 0:
            print(f"{count:,} rows, {tokens:,} tokens, {wrong} without their form", flush=True)
    print(f"{count:,} rows, {tokens:,} tokens, {wrong} without their form")
    return int(wrong > 0 or count != options.rows)


if __name__ == "__main__":
    raise SystemExit(main())
