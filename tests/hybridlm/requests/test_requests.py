"""User input: every fault is named with its item; nothing is guessed, truncated or rounded."""

import dataclasses
import inspect
import math
from typing import Any

import numpy as np
import pytest
from model_inputs import model_inputs

import hybridlm
from hybridlm.requests.sampling_params import SamplingParams, Settings
from hybridlm.requests.sequence import ResolvedParams
from hybridlm.requests.validation import located, to_items, with_settings
from hybridlm.text import ChatTemplateError, Tokenizer

VOCAB = 97


class Characters(Tokenizer):
    """A token for every character."""

    def __init__(self) -> None:
        pass

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [ord(character) for character in text]


class Ascii(Characters):
    """Drops characters outside the vocabulary, as byte-pair encoding without bytes does."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [ord(character) for character in text if character.isascii()]


TOKENIZER = Characters()
MODEL: dict[str, Any] = {"eos_token_ids": (), "tokenizer": TOKENIZER, "vocab_size": VOCAB}


def inputs(**change: Any) -> Any:
    return model_inputs(**{**MODEL, **change}, context=100)


@pytest.mark.parametrize(("items", "expected"), [
    ("text", ["text"]), (["a", "b"], ["a", "b"]), (("a", [1]), ["a", [1]]), ([[1, 2], (3,)], [[1, 2], (3,)]), ([], []),
])  # fmt: skip
def test_items(items: Any, expected: list[Any]) -> None:
    assert to_items(items, "prompts") == expected


@pytest.mark.parametrize("items", [[1, 2], (1,), [np.int32(1)], [np.int64(1), 2]])
def test_a_bare_list_of_token_ids_is_ambiguous(items: Any) -> None:
    with pytest.raises(TypeError, match=r"prompts: got a bare list of token ids; put it in a list: \[\[1, \.\.\.\]\]"):
        to_items(items, "prompts")


@pytest.mark.parametrize("items", [None, 3, {"a": 1}, b"text", iter(["a"]), np.array([1])])
def test_items_have_to_be_a_list(items: Any) -> None:
    with pytest.raises(
        TypeError, match="texts: expected a list whose items are strings or lists of token ids, got"
    ) as error:
        to_items(items, "texts")
    assert str(error.value).endswith("tolist() returns") == isinstance(items, np.ndarray)


@pytest.mark.parametrize(
    "item", [[5, 6], (5, 6), np.array([5, 6]), np.array([5, 6], np.uint8), [np.int64(5), np.uint16(6)], "\x05\x06"]
)
def test_token_ids(item: Any) -> None:
    ids = inputs().token_ids(item, "prompts[0]")
    assert ids == (5, 6) and [type(token) for token in ids] == [int, int]


@pytest.mark.parametrize(("item", "kind", "message"), [
    ([], ValueError, "is empty; at least one token is needed"),
    ("", ValueError, "is empty; at least one token is needed"),
    (np.array([], np.int32), ValueError, "is empty"),
    ([0, 97], ValueError, "token id 97 at index 1 is outside the vocabulary [0, 97)"),
    ([-1], ValueError, "token id -1 at index 0 is outside the vocabulary [0, 97)"),
    ("ab~", ValueError, "token id 97 at index 0"),
    ([1, 2.0], TypeError, "expected token ids, got 2.0 at index 1"),
    ([True], TypeError, "expected token ids, got True at index 0"),
    ([1, None], TypeError, "expected token ids, got None at index 1"),
    (["a"], TypeError, "expected token ids, got 'a' at index 0"),
    (np.array([1.0]), TypeError, "expected token ids, got np.float64(1.0) at index 0"),
    (np.array([True]), TypeError, "expected token ids, got np.True_ at index 0"),
    (np.array([[1]]), TypeError, "expected token ids, got array([1]) at index 0"),
    (np.array(1), TypeError, "expected a string or a list of token ids, got <class 'numpy.ndarray'>"),
    (3, TypeError, "expected a string or a list of token ids, got <class 'int'>"),
    (None, TypeError, "expected a string or a list of token ids, got <class 'NoneType'>"),
    (b"text", TypeError, "expected a string or a list of token ids, got <class 'bytes'>"),
])  # fmt: skip
def test_faulty_token_ids(item: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind) as error:
        inputs().token_ids(item, "prompts[7]")
    assert str(error.value).startswith("prompts[7]: " + message)


def test_text_that_is_not_unicode_is_named(text_lm: hybridlm.LM) -> None:
    """In a list of thousands of texts the message has the index."""
    with pytest.raises(ValueError, match=r"^prompts\[1\]: text is not valid Unicode"):
        text_lm.generate(["abc", "a\ud800b"], max_tokens=1)
    with pytest.raises(ValueError, match=r"^texts\[2\]: text is not valid Unicode"):
        text_lm.score(["abc", "ab", "a\ud800b"])


def test_text_needs_a_tokenizer() -> None:
    with pytest.raises(ValueError, match=r"texts\[1\]: got text, but the checkpoint has no tokenizer.json"):
        inputs(tokenizer=None).token_ids("text", "texts[1]")


def params(**change: Any) -> ResolvedParams:
    model = {name: change.pop(name, value) for name, value in MODEL.items()}
    return inputs(**model).resolve(SamplingParams(**change))


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("max_tokens", [1, 10**9, np.int32(4)], [0, -1, 1.0, True, None, "1", math.inf]),
        ("temperature", [0, 1, 0.5, 100.0, np.float32(0.5), np.int64(1)],
         [-0.1, math.inf, math.nan, True, None, "1", 1j, np.complex64(1), 10**400]),
        ("top_k", [0, 1, 2**31 - 1, np.uint8(3)], [-1, 2**31, 1.0, True, None]),
        ("top_p", [1, 1.0, 0.1, 1e-9, np.float64(0.5)], [0, 0.0, 1.1, -1, math.nan, True, None]),
        ("min_p", [0, 1, 0.5, np.float16(0.5)], [-0.1, 1.1, math.nan, True, None]),
        ("seed", [0, 2**64 - 1, np.uint64(2**64 - 1)], [-1, 2**64, 0.0, True, "1"]),
        ("logprobs", [None, 0, 1, VOCAB, np.int64(5)], [-1, VOCAB + 1, 1.0, True, "1"]),
    ],
)  # fmt: skip
def test_every_setting(name: str, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        result = getattr(params(**{name: value}), name)
        assert result == value and type(result) in (int, float, type(None))
    for value in bad:
        with pytest.raises(ValueError) as error:
            params(**{name: value})
        assert str(error.value).startswith(f"{name}: expected ") and str(error.value).endswith(f", got {value!r}")


@pytest.mark.parametrize(("stop", "strings", "ids"), [
    (None, (), {3}), ([], (), {3}), ("end", ("end",), {3}), (7, (), {3, 7}), (np.int64(7), (), {3, 7}), (0, (), {0, 3}),
    (["a", 5, np.uint8(6), "b", "a"], ("a", "b", "a"), {3, 5, 6}), (("a", 96), ("a",), {3, 96}),
])  # fmt: skip
def test_stops_add_to_the_end_tokens(stop: Any, strings: tuple[str, ...], ids: set[int]) -> None:
    result = params(stop=stop, eos_token_ids=(3,))
    assert result.stop_strings == strings and result.stop_token_ids == ids
    assert all(type(token) is int for token in result.stop_token_ids)


@pytest.mark.parametrize(("stop", "message"), [
    ("", "stop: expected strings that are not empty, got ''"),
    (["a", ""], "stop: expected strings that are not empty, got ''"),
    ([97], "stop: expected strings or token ids below 97, got 97"),
    (-1, "stop: expected strings or token ids below 97, got -1"),
    ([True], "stop: expected strings or token ids below 97, got True"),
    ([1.0], "stop: expected strings or token ids below 97, got 1.0"),
    ([[1]], "stop: expected strings or token ids below 97, got [1]"),
    ([None], "stop: expected strings or token ids below 97, got None"),
    (True, "stop: expected a string, a token id, or a list of them, got True"),
    (1.5, "stop: expected a string, a token id, or a list of them, got 1.5"),
    ({"a"}, "stop: expected a string, a token id, or a list of them, got {'a'}"),
    (b"a", "stop: expected a string, a token id, or a list of them, got b'a'"),
])  # fmt: skip
def test_faulty_stops(stop: Any, message: str) -> None:
    with pytest.raises(ValueError) as error:
        params(stop=stop)
    assert str(error.value) == message


def test_stop_strings_need_a_tokenizer() -> None:
    with pytest.raises(ValueError, match="stop: expected token ids, because the checkpoint has no tokenizer.json"):
        params(stop=["end"], tokenizer=None)
    assert params(stop=[5], tokenizer=None).stop_token_ids == {5}


def test_every_faulty_setting_is_in_one_error() -> None:
    wrong = {"max_tokens": 0, "temperature": -1, "top_k": -1, "top_p": 0, "min_p": 2, "seed": -1, "logprobs": -1}
    with pytest.raises(ValueError) as error:
        params(**wrong, stop=["", 97])
    assert [fault.split(":")[0] for fault in str(error.value).split("; ")] == [*wrong, "stop", "stop"]


def test_a_bad_word_of_which_the_vocabulary_has_nothing() -> None:
    with pytest.raises(ValueError, match=r"^bad_words: expected strings or .* got 'é', of which the vocabulary has no"):
        params(bad_words=["a", "é"], tokenizer=Ascii())


def test_errors_that_say_where() -> None:
    """Their kind stays, but where it is built from more than a message."""
    for kind in (ValueError, TypeError, ChatTemplateError):
        result = located(kind("is wrong"), "texts[3]")
        assert type(result) is kind and str(result) == "texts[3]: is wrong"
    with pytest.raises(UnicodeEncodeError) as error:
        "\ud800".encode()
    assert type(located(error.value, "texts[3]")) is ValueError


def test_more_logprobs_than_a_report_holds() -> None:
    assert params(logprobs=1000, vocab_size=248320).logprobs == 1000
    with pytest.raises(ValueError, match=r"logprobs: expected 0\.\.1000 or None, got 1001"):
        params(logprobs=1001, vocab_size=248320)


def test_settings_are_the_fields_of_sampling_params() -> None:
    fields = dataclasses.fields(SamplingParams)
    assert [field.name for field in fields] == [*Settings.__annotations__]
    for method in (hybridlm.LM.generate, hybridlm.LM.stream, hybridlm.LM.chat, hybridlm.Session.submit):
        parameters = inspect.signature(method).parameters
        assert {field.name: field.default for field in fields}.items() <= {
            name: item.default for name, item in parameters.items()
        }.items()
        assert [name for name, f in parameters.items() if f.kind is not f.KEYWORD_ONLY][2:] == ["sampling_params"]


def test_keywords_override_sampling_params() -> None:
    params = with_settings(SamplingParams(max_tokens=3, seed=1), {"seed": 2})
    assert params == SamplingParams(max_tokens=3, seed=2)
    assert with_settings(None, {}) == SamplingParams()
    with pytest.raises(TypeError, match="^temprature: .*temperature"):
        SamplingParams(temprature=1.0)  # type: ignore[call-arg]  # wrong on purpose
    with pytest.raises(TypeError, match="^sampling_params: expected a hybridlm.SamplingParams, got 8"):
        with_settings(8, {})  # type: ignore[arg-type]  # wrong on purpose
