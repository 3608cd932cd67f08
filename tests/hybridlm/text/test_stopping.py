"""Stop strings in growing text: found across tokens, never emitted, never in half characters."""

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers

from hybridlm.text.stop_strings import GrowingText
from hybridlm.text.tokenizer import Tokenizer

WORDS = ["ab", "bc", "abc", "cab", "END", " the", "\N{SNOWMAN}!"]


def _tokenizer() -> Tokenizer:
    """A token for every byte, and some of several characters."""
    level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [level.pre_tokenize_str(word) for word in WORDS]
    pieces = ["".join(piece for piece, _ in parts) for parts in words]
    vocabulary = {token: i for i, token in enumerate(["<end>", *alphabet, *pieces])}
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, []))
    backend.pre_tokenizer = level
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<end>"])
    return Tokenizer(backend)


TOKENIZER = _tokenizer()
WORD_IDS = range(257, 257 + len(WORDS))


def ids(*pieces: str) -> list[int]:
    """A token for each of `WORDS`, tokens of bytes for everything else."""
    return [
        t for piece in pieces for t in ([WORD_IDS[WORDS.index(piece)]] if piece in WORDS else TOKENIZER.encode(piece))
    ]


def grow(tokens: list[int], *stops: str) -> tuple[GrowingText, list[str]]:
    """Return released text per token until a stop string, then the rest."""
    text = GrowingText(TOKENIZER, stops)
    given_out = []
    for token in tokens:
        text.push(token)
        if text.stopped:
            break
        given_out.append(text.take())
    text.finish()
    return text, [*given_out, text.take(final=True)]


def test_tokens_of_the_test() -> None:
    assert [TOKENIZER.decode([token]) for token in WORD_IDS] == WORDS


def test_text_without_stops_is_given_out_at_once() -> None:
    text, pieces = grow(ids("x", " the", "END"))
    assert (text.text, text.stopped, pieces) == ("x theEND", False, ["x", " the", "END", ""])


def test_a_stop_string_across_tokens_is_held_back() -> None:
    text, pieces = grow(ids("x", "E", "N", "D", "y"), "END")
    assert (text.text, text.stopped, pieces) == ("x", True, ["x", "", "", ""])


def test_what_turns_out_to_be_no_stop_is_given_out() -> None:
    text, pieces = grow(ids("x", "E", "N", "y", "E", "E", "E", "N"), "END")
    assert (text.text, text.stopped) == ("xENyEEEN", False)
    assert pieces == ["x", "", "", "ENy", "", "E", "E", "", "EN"]


def test_a_stop_string_within_a_token() -> None:
    text, pieces = grow(ids("x", "END", "y"), "N")
    assert (text.text, text.stopped, pieces) == ("xE", True, ["x", "E"])


def test_a_stop_string_that_begins_in_a_token_and_ends_in_another() -> None:
    text, pieces = grow(ids("cab", "cab"), "bc")
    assert (text.text, text.stopped, pieces) == ("ca", True, ["ca", ""])


def test_repetition_inside_a_stop_string() -> None:
    """ "aab" is found in "aaab", where a failed beginning overlaps with the stop string."""
    text, pieces = grow(ids("a", "a", "a", "b", "c"), "aab")
    assert (text.text, text.stopped, pieces) == ("a", True, ["", "", "a", ""])


@pytest.mark.parametrize("stops", [("bc", "c"), ("c", "bc"), ("ab", "c", "bc")])
def test_of_several_in_one_token_the_earliest_ends_the_text(stops: tuple[str, ...]) -> None:
    text, _ = grow(ids("x", "abc"), *stops)
    assert text.stopped and text.text == "x" + "abc"[: min("abc".index(stop) for stop in stops)]


@pytest.mark.parametrize("stops", [("abcd", "bc"), ("bc", "abcd")])
def test_the_stop_string_that_is_complete_first_wins(stops: tuple[str, ...]) -> None:
    text, pieces = grow(ids("a", "b", "c", "d"), *stops)
    assert (text.text, text.stopped, pieces) == ("a", True, ["", "", "a"])


def test_the_longest_possible_beginning_is_held_back() -> None:
    _, pieces = grow(ids("x", "a", "b", "z"), "bq", "abcd")
    assert pieces == ["x", "", "", "abz", ""]


def test_characters_of_several_bytes_are_given_out_whole() -> None:
    text, pieces = grow(ids("a\N{SNOWMAN}\N{GRINNING FACE}b"), "END")
    assert text.text == "a\N{SNOWMAN}\N{GRINNING FACE}b"
    assert pieces == ["a", "", "", "\N{SNOWMAN}", "", "", "", "\N{GRINNING FACE}", "b", ""]


def test_a_stop_string_of_several_bytes() -> None:
    text, pieces = grow(ids("a\N{SNOWMAN}\N{GRINNING FACE}b"), "\N{SNOWMAN}\N{GRINNING FACE}")
    assert (text.text, text.stopped) == ("a", True)
    assert "".join(pieces) == "a"


def test_half_a_character_at_the_end_is_a_replacement_character() -> None:
    text, pieces = grow(ids("a\N{SNOWMAN}")[:-1], "END")
    assert text.text == "a\ufffd" and "".join(pieces) == text.text


def test_nothing_is_added_after_a_stop() -> None:
    text, _ = grow(ids("END", "x"), "END")
    text.finish()
    assert text.text == "" and text.take(final=True) == ""


def test_special_tokens_have_no_text() -> None:
    text, pieces = grow([*ids("E"), 0, *ids("ND", "x")], "END")
    assert text.stopped and text.text == "" and "".join(pieces) == ""


@settings(max_examples=150, database=None)
@given(
    st.lists(st.sampled_from(["a", "b", "c", "\N{SNOWMAN}", *WORDS]), max_size=12),
    st.lists(st.text("abc\N{SNOWMAN}", min_size=1, max_size=4), max_size=3),
)
def test_what_is_given_out_is_the_text_before_the_first_stop(pieces: list[str], stops: list[str]) -> None:
    tokens = ids(*pieces)
    text, given_out = grow(tokens, *stops)
    assert "".join(given_out) == text.text
    # Token by token: the first prefix of the tokens whose text holds a stop string is cut at the earliest one.
    for count in range(1, len(tokens) + 1):
        full = TOKENIZER.decode(tokens[:count])
        results = [full.find(stop) for stop in stops if stop in full]
        if results:
            assert text.stopped and text.text == full[: min(results)]
            return
    assert not text.stopped and text.text == TOKENIZER.decode(tokens)
