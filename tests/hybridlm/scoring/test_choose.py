"""Multiple choice: the tokens that lm_eval would score, and three measures of them."""

import numpy as np
import pytest
import tokenizers
from tokenizers import models, pre_tokenizers

import hybridlm
from hybridlm.scoring.pairs import encode_pair, encode_text
from hybridlm.text import Tokenizer

PREFIX = 0


@pytest.fixture
def merging() -> Tokenizer:
    """Characters, and the words " b" and "ab"; token 0 is "<s>"."""
    backend = tokenizers.Tokenizer(
        models.BPE({"<s>": 0, "a": 1, "b": 2, "Ġ": 3, "Ġb": 4, "ab": 5}, [("Ġ", "b"), ("a", "b")])
    )
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.add_special_tokens(["<s>"])
    return Tokenizer(backend)


@pytest.mark.parametrize(
    ("context", "continuation", "initial", "final"),
    [
        ("a", " b", [1], [4]),
        ("a ", "b", [1], [4]),
        ("a", "ba", [1], [1]),  # "ab" reaches over the boundary
        ("", "a", [0], [1]),
        (" ", "b", [0], [4]),
        ("", "<s>a", [0], [1]),
        ("<s>a", "b", [0, 1], []),
    ],
)
def test_texts_are_cut_as_lm_eval_cuts_them(
    merging: Tokenizer, context: str, continuation: str, initial: list[int], final: list[int]
):
    assert encode_pair(context, continuation, merging, PREFIX) == (initial, final)


def test_a_first_token_is_not_there_twice(merging: Tokenizer):
    merging._backend.post_processor = tokenizers.processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 0)])
    assert encode_text("a", merging, PREFIX) == encode_text("<s>a", merging, PREFIX) == [0, 1]


def test_options_are_scored_behind_the_context(text_lm: hybridlm.LM):
    choice = text_lm.choose("Who has", [" Ada", " Ben has it", "?"])
    assert text_lm.tokenizer is not None
    full = [text_lm.tokenizer.encode("Who has" + option) for option in choice.options]
    scores = text_lm.score(full)
    for i, (ids, score) in enumerate(zip(full, scores, strict=True)):
        count = len(ids) - len("Who has")
        assert choice.token_ids[i] == ids[-count:]
        assert choice.logprobs[i].tobytes() == score.logprobs[-count:].tobytes()
        assert choice.greedy[i] == score.greedy[-count:].all()
        assert choice.sums[i] == pytest.approx(float(np.sum(score.logprobs[-count:], dtype=np.float64)))
    assert choice.per_byte[1] == choice.sums[1] / 11 and choice.per_token[1] == choice.sums[1] / 11
    assert choice.best == choice.ranking()[0] == int(np.argmax(choice.sums))


def test_measures_differ():
    choice = hybridlm.Choice(
        options=["a", "ééé", "abcdefgh"],
        token_ids=[[1], [2, 3, 4], [5, 6]],
        logprobs=[np.array(item, np.float32) for item in ([-2.0], [-1.0, -1.0, -1.0], [-1.5, -1.5])],
        greedy=[False] * 3,
    )
    assert (choice.sums, choice.per_token) == ([-2.0, -3.0, -3.0], [-2.0, -1.0, -1.5])
    assert choice.per_byte == [-2.0, -0.5, -0.375]
    assert (choice.ranking("sum"), choice.ranking("token"), choice.ranking("byte")) == ([0, 1, 2], [1, 2, 0], [2, 1, 0])
    with pytest.raises(ValueError, match="by: expected one of sum, token, byte, got 'char'"):
        choice.ranking("char")  # type: ignore[arg-type]  # wrong on purpose


def test_token_ids(text_lm: hybridlm.LM):
    choice = text_lm.choose([5, 6], [[7, 8], [9], [7]])
    assert choice.token_ids == [[7, 8], [9], [7]] and choice.logprobs[0][0] == choice.logprobs[2][0]
    with pytest.raises(ValueError, match="token ids, which have no bytes"):
        _ = choice.per_byte


@pytest.mark.parametrize(("context", "options", "error", "message"), [
    ("a", [], TypeError, "options: expected a list of at least one option"),
    ("a", "bc", TypeError, "options: expected a list"),
    ("a", ["b", [5]], TypeError, r"options\[1\]: expected text like the context"),
    ("a", ["b", ""], ValueError, r"options\[1\]: '' adds no token to the context"),
    ("a" * 250, ["b", "c" * 10], ValueError, r"options\[1\]: has 260 tokens, the context holds 256"),
    ([5], [[6], [100000]], ValueError, r"options\[1\]: token id 100000"),
    ([], [[6]], ValueError, "context: is empty"),
])  # fmt: skip
def test_bad_options(text_lm: hybridlm.LM, context: object, options: object, error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        text_lm.choose(context, options)  # type: ignore[arg-type]  # wrong on purpose
