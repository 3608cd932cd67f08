"""Results in notebooks: everything is escaped, long texts are truncated, nothing is loaded from outside."""

import math
import pickle
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

import hybridlm
from hybridlm import Completion, Score
from hybridlm.requests.result_html import MAX_TOKENS_SHOWN

MARKUP = "<script>alert('&')</script>\n\"quoted\""


class Reader(HTMLParser):
    """The tags of a page, balanced, and its text."""

    def __init__(self, page: str):
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.text = ""
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def score(length: int) -> Score:
    logprobs = np.linspace(0, -15, length, dtype=np.float32)
    logprobs[0] = math.nan
    return Score(list(range(length)), logprobs, np.arange(length) % 2 == 0, None)


def test_a_completion_is_escaped():
    page = Completion(MARKUP, [7, 8], [-0.5, -9.0], None, "stop", [1, 2, 3])._repr_html_()
    read = Reader(page)
    assert "script" not in read.tags and MARKUP in read.text and "http" not in page
    assert "3 tokens of prompt, 2 sampled" in read.text and 'title="token 1: id 8, -9.000"' in page


def test_the_strip_marks_unlikely_tokens():
    page = score(5)._repr_html_()
    shades = [float(item) for item in re.findall(r"rgba\(217,48,37,([\d.]+)\)[^>]*title=", page)]
    assert shades == sorted(shades) and shades[0] == 0.0 and shades[-1] == 0.75
    cells = re.findall(r"<span style=\"([^\"]*)\" title=\"token (\d): id \d, ([^\"]*)\"", page)
    assert [int(place) for style, place, _ in cells if "underline" in style] == [1, 3]
    assert cells[0][2] == "nothing predicts it" and "dashed" in cells[0][0]
    assert "perplexity" in Reader(page).text


@pytest.mark.parametrize("length", [1, MAX_TOKENS_SHOWN, MAX_TOKENS_SHOWN + 5])
def test_a_long_text_is_cut_short(length: int):
    page = score(length)._repr_html_()
    assert page.count("title=") == min(length, MAX_TOKENS_SHOWN)
    assert ("5 more tokens are left out" in page) == (length > MAX_TOKENS_SHOWN)
    Reader(page)


class Markup:
    """A tokenizer with HTML texts."""

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        assert not skip_special_tokens
        return {7: "<b>&", 8: " two\n", 9: "9"}[ids[0]]


def test_tokens_are_shown_as_text_where_there_is_a_tokenizer():
    tokenizer: Any = Markup()
    completion = Completion("x", [7, 8], [-0.5, -9.0], None, "stop", [1], tokenizer=tokenizer)
    scored = Score([7, 8], np.array([math.nan, -1], np.float32), np.array([False, True]), None, tokenizer=tokenizer)
    for result in (completion, scored):
        read = Reader(result._repr_html_())
        assert "b" not in read.tags and "<b>& two\N{DOWNWARDS ARROW WITH CORNER LEFTWARDS}log-" in read.text
        assert "tokenizer" not in repr(result)
        copy = pickle.loads(pickle.dumps(result))
        assert copy.tokenizer is None and "78log-" in Reader(copy._repr_html_()).text
    assert completion == replace(completion, tokenizer=None)


@pytest.mark.slow
def test_results_have_the_tokenizer_of_the_model(text_lm: hybridlm.LM):
    (scored,) = text_lm.score(["Who has"])
    (completion,) = text_lm.generate(["Who has"], max_tokens=2, logprobs=0)
    assert scored.tokenizer is completion.tokenizer is text_lm.tokenizer is not None
    assert "Who has" in Reader(scored._repr_html_()).text
