"""Scores of prompts with completions and of chats equal scores of the whole text."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hybridlm

CHAT = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]
QUESTION = {"prompt": "Who has", "completion": " the kite"}


def parts(lm: hybridlm.LM, prompt: str, completion: str) -> tuple[list[int], list[int]]:
    """Return both parts' ids; characters are tokens, token 2 is an empty prompt."""
    assert lm.tokenizer is not None
    return lm.tokenizer.encode(prompt) or [2], lm.tokenizer.encode(completion)


def check(lm: hybridlm.LM, score: hybridlm.Score, initial: list[int], final: list[int]) -> None:
    """Check that the score equals the whole text's tokens after `before`."""
    full = lm.score([initial + final], top_logprobs=2)[0]
    assert (score.token_ids, score.prefix_tokens) == (final, len(initial))
    np.testing.assert_allclose(score.logprobs, full.logprobs[len(initial) :], rtol=1e-5)
    assert score.sum_logprob == float(np.sum(score.logprobs, dtype=np.float64))
    np.testing.assert_array_equal(score.greedy, full.greedy[len(initial) :])
    if score.top_logprobs is not None and full.top_logprobs is not None:
        assert [list(top) for top in score.top_logprobs] == [list(top) for top in full.top_logprobs[len(initial) :]]


def test_completions(text_lm: hybridlm.LM):
    (score,) = text_lm.score([QUESTION], top_logprobs=2)
    check(text_lm, score, *parts(text_lm, "Who has", " the kite"))
    choice = text_lm.choose("Who has", [" the kite"])
    np.testing.assert_allclose(choice.logprobs[0], score.logprobs, rtol=1e-5)
    (ids,) = text_lm.score([{"prompt": [5, 6, 7], "completion": [8, 9]}])
    check(text_lm, ids, [5, 6, 7], [8, 9])
    (empty,) = text_lm.score([{"prompt": "", "completion": "yo"}])
    check(text_lm, empty, *parts(text_lm, "", "yo"))


def test_arrays_of_tokenizers(text_lm: hybridlm.LM):
    # As of return_tensors="np".
    ids, mask = np.array([5, 6, 7]), np.array([1, 1, 0])
    with pytest.raises(ValueError, match=r"^texts\[0\]: attention_mask: expected 1 for every token, got 0 at 2"):
        text_lm.score([{"input_ids": ids, "attention_mask": mask}])
    whole, same = text_lm.score([{"input_ids": ids, "attention_mask": mask >= 0}, [5, 6, 7]])
    assert whole.token_ids == same.token_ids and whole.sum_logprob == same.sum_logprob
    (score,) = text_lm.score([{"prompt": [5, 6], "completion": list(ids)}])
    check(text_lm, score, [5, 6], [5, 6, 7])


@pytest.mark.slow
def test_several_completions_share_the_prompt(text_lm: hybridlm.LM):
    prompt, options = "Who has it, " * 4, [" Ada", " Ben", " C"]
    initial = text_lm.stats["prefix_tokens_saved"]
    scores = text_lm.score([{"prompt": prompt, "completion": options}, "a text"])
    assert text_lm.stats["prefix_tokens_saved"] - initial >= 2 * 40
    assert len(scores) == 4 and scores[3].prefix_tokens == 0
    for score, option in zip(scores, options, strict=False):
        check(text_lm, score, *parts(text_lm, prompt, option))
    several = text_lm.score([{"prompt": [5, 6], "completion": [[7, 8], [9]]}])
    assert [score.token_ids for score in several] == [[7, 8], [9]]


@pytest.fixture
def with_template(text_lm: hybridlm.LM, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], hybridlm.LM]:
    def model(template: str) -> hybridlm.LM:
        monkeypatch.setattr(text_lm.tokenizer, "chat_templates", {"default": template})
        monkeypatch.setattr(text_lm.tokenizer, "_compiled", {})
        return text_lm

    return model


@pytest.fixture
def chat_lm(with_template: Callable[[str], hybridlm.LM]) -> hybridlm.LM:
    return with_template(
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>!{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )


def test_the_last_answer_of_a_chat(chat_lm: hybridlm.LM):
    assert chat_lm.tokenizer is not None
    (score,) = chat_lm.score([{"messages": CHAT}])
    # Up to the end token: the template's "!" after it is no part of an answer.
    check(chat_lm, score, chat_lm.tokenizer.encode("<user>hi<end>!<assistant>"), [*chat_lm.tokenizer.encode("yo"), 2])


def test_a_template_that_changes_the_answer_is_refused(with_template: Callable[[str], hybridlm.LM]):
    lm = with_template("{{ messages[-1].content }}{% if add_generation_prompt %}<think>{% endif %}")
    with pytest.raises(ValueError, match="writes the last answer otherwise"):
        lm.score([{"messages": CHAT}])


WRONG: list[tuple[Any, str]] = [
    ({}, "expected exactly one of text, token_ids, input_ids, prompt, messages, got none of them"),
    ({"text": "a", **QUESTION}, "expected exactly one of .*, got text, prompt"),
    ({"prompt": "a"}, "expected prompt and completion together"),
    ({"completion": "a"}, "got none of them"),
    ({"text": "a", "completion": "b"}, "expected prompt and completion together"),
    ({"prompt": "a", "completion": [5]}, r"completion: expected text like the prompt, got \[5\]"),
    ({"prompt": "a", "completion": []}, r"completion: expected text like the prompt, got \[\]"),
    ({"prompt": [5], "completion": "a"}, "completion: expected token ids like the prompt, got 'a'"),
    ({"prompt": "a", "completion": ""}, "completion: '' adds no token"),
    ({"prompt": [5], "completion": []}, "completion: "),
    ({"prompt": "a", "completion": ["b", ""]}, r"completion\[1\]: '' adds no token"),
    ({"prompt": "a" * 300, "completion": "b"}, "has 301 tokens"),
    ({"messages": CHAT[:1]}, "expected the last one to be the assistant's"),
    ({"messages": []}, "messages: expected a list"),
    ({"messages": CHAT, "chat_template_kwargs": "x"}, "chat_template_kwargs: expected an object"),
    ({"messages": CHAT, "chat_template_kwargs": {"x": 1}}, "x: the chat template does not read this; it reads"),
]


@pytest.mark.parametrize(("item", "message"), WRONG)
def test_wrong_items(text_lm: hybridlm.LM, item: Any, message: str):
    """The message has the number of the item, too."""
    with pytest.raises((TypeError, ValueError), match=rf"^texts\[1\].*{message}"):
        text_lm.score(["a", item])


ROWS: list[dict[str, Any]] = [
    {"id": "pair", **QUESTION},
    {"id": "text", "text": "Who has", "prompt": None},
    {"id": "several", "prompt": "Who has", "completion": [" Ada", " Ben"]},
    {"id": "ids", "prompt": [5, 6], "completion": [7]},
    {"id": "chat", "messages": [CHAT[0], {"role": "assistant", "content": "yo"}]},
    {"id": "half", "prompt": "Who"},
]


def test_lines_of_a_file(chat_lm: hybridlm.LM, tmp_path: Path):
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    report = chat_lm.score_file(tmp_path / "in.jsonl", tmp_path / "out.jsonl")
    result = {row["id"]: row for row in map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())}
    assert (report.texts, report.errors) == (5, 1) and list(result) == [row["id"] for row in ROWS]
    items = [{name: value for name, value in row.items() if name != "id"} for row in ROWS[:5]]
    pair, text, ada, ben, ids, chat = chat_lm.score([items[0], "Who has", *items[2:]])
    for row, score in (
        (result["pair"], pair),
        (result["text"], text),
        *zip(result["several"]["completions"], (ada, ben), strict=True),
        (result["ids"], ids),
        (result["chat"], chat),
    ):
        first = score.first_predicted
        assert row["token_ids"] == score.token_ids and row["logprobs"][:first] == [None] * first
        np.testing.assert_allclose(row["logprobs"][first:], score.logprobs[first:], rtol=1e-5)
        assert row["sum_logprob"] == pytest.approx(score.sum_logprob)
    assert result["several"]["prompt_tokens"] == ada.prefix_tokens and "prompt_tokens" not in result["text"]
    assert result["half"]["error"] == "line 6: expected prompt and completion together, got one of them"


def test_columns_of_a_table(chat_lm: hybridlm.LM, tmp_path: Path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = {
        "prompt": ["Who has", None, "a"],
        "completion": [" the kite", None, None],
        "messages": [None, CHAT, None],
    }
    pq.write_table(pa.table(table), tmp_path / "in.parquet")
    report = chat_lm.score_file(tmp_path / "in.parquet", tmp_path / "out.parquet")
    assert (report.texts, report.errors) == (2, 1)
    rows = pq.read_table(tmp_path / "out.parquet").to_pylist()
    for row, score in zip(rows, chat_lm.score([QUESTION, {"messages": CHAT}]), strict=False):
        assert row["token_ids"] == score.token_ids
        np.testing.assert_allclose(row["logprobs"], score.logprobs, rtol=1e-5)
    assert rows[2]["error"].startswith("row 2: expected prompt and completion together")
    pq.write_table(pa.table({"prompt": ["a"], "completion": [["b", "c"]]}), tmp_path / "lists.parquet")
    with pytest.raises(ValueError, match="several completions are several rows"):
        chat_lm.score_file(tmp_path / "lists.parquet", tmp_path / "out.parquet")
