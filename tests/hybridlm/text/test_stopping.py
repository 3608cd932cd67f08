"""Stop strings in growing text: found across tokens, never emitted, never in half characters."""

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers

from hybridlm.text.stream_decoder import GrowingText
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


def grow(tokens: list[int], *stops: str, min_tokens: int = 0) -> tuple[GrowingText, list[str]]:
    """Return released text per token until a stop string, then the rest."""
    text = GrowingText(TOKENIZER.stream(), stops, min_tokens=min_tokens)
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


MEN = "\N{SNOWMAN}\N{GRINNING FACE}"
# Name -> tokens, stop strings, whether they stop, and the text that each token releases, and the end.
CASES: dict[str, tuple[list[int], tuple[str, ...], bool, list[str]]] = {
    "no stop string": (ids("x", " the", "END"), (), False, ["x", " the", "END", ""]),
    "across tokens": (ids("x", "E", "N", "D", "y"), ("END",), True, ["x", "", "", ""]),
    "no stop after all": (
        ids("x", "E", "N", "y", "E", "E", "E", "N"), ("END",), False, ["x", "", "", "ENy", "", "E", "E", "", "EN"]
    ),
    "within a token": (ids("x", "END", "y"), ("N",), True, ["x", "E"]),
    "from one token into another": (ids("cab", "cab"), ("bc",), True, ["ca", ""]),
    "a failed beginning overlaps with it": (ids("a", "a", "a", "b", "c"), ("aab",), True, ["", "", "a", ""]),
    "of several the earliest": (ids("x", "abc"), ("c", "bc"), True, ["x", "a"]),
    "of several the earliest, given first": (ids("x", "abc"), ("ab", "c", "bc"), True, ["x", ""]),
    "the one that is complete first": (ids("a", "b", "c", "d"), ("abcd", "bc"), True, ["", "", "a"]),
    "the longest beginning is held back": (ids("x", "a", "b", "z"), ("bq", "abcd"), False, ["x", "", "", "abz", ""]),
    "characters of several bytes are whole": (
        ids(f"a{MEN}b"), ("END",), False, ["a", "", "", MEN[0], "", "", "", MEN[1], "b", ""]
    ),
    "of several bytes": (ids(f"a{MEN}b"), (MEN,), True, ["a", "", "", "", "", "", "", ""]),
    "half a character at the end": (ids(f"a{MEN}")[:3], ("END",), False, ["a", "", "", "\ufffd"]),
    "special tokens have no text": ([*ids("E"), 0, *ids("ND", "x")], ("END",), True, ["", "", "", ""]),
}  # fmt: skip


@pytest.mark.parametrize(("tokens", "stops", "stopped", "pieces"), CASES.values(), ids=CASES)
def test_text_is_released_and_stopped(
    tokens: list[int], stops: tuple[str, ...], stopped: bool, pieces: list[str]
) -> None:
    text, released = grow(tokens, *stops)
    assert (text.stopped, released, text.text) == (stopped, pieces, "".join(pieces))
    text.finish()
    assert text.text == "".join(pieces) and text.take(final=True) == ""


@settings(max_examples=150, database=None)
@given(
    st.lists(st.sampled_from(["a", "b", "c", "\N{SNOWMAN}", *WORDS]), max_size=12),
    st.lists(st.text("abc\N{SNOWMAN}", min_size=1, max_size=4), max_size=3),
    st.integers(0, 6),
)
def test_output_is_the_text_before_the_first_stop(pieces: list[str], stops: list[str], minimum: int) -> None:
    tokens = ids(*pieces)
    text, given_out = grow(tokens, *stops, min_tokens=minimum)
    assert "".join(given_out) == text.text
    # Token by token: the first prefix with a stop string, which ends beyond the least tokens, is cut at the earliest.
    least = len(TOKENIZER.decode(tokens[:minimum]).rstrip("\ufffd"))
    for count in range(minimum + 1, len(tokens) + 1):
        full = TOKENIZER.decode(tokens[:count])
        places = [full.find(stop, max(0, least - len(stop) + 1)) for stop in stops]
        if results := [place for place in places if place >= 0]:
            assert text.stopped and text.text == full[: min(results)]
            return
    assert not text.stopped and text.text == TOKENIZER.decode(tokens)
