"""Streams of every `tokenizers` decoder equal the text of all ids and stop correctly."""

from collections.abc import Sequence

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from hybridlm.text.stream_decoder import GrowingText
from hybridlm.text.tokenizer import Tokenizer

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
PIECES = [
    "▁", "▁▁", "▁a", "b", "##ing", "##c", "d</w>", "e</w>", "'", "'</w>", "n't", ".", " ", "\ufffd", "漢", "é", "|",
    "<pad>", "</w>",
]  # fmt: skip
SPECIAL = ["<s>", "<tool_call>"]
LLAMA = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
DECODERS = {
    "none": None, "byte level": decoders.ByteLevel(), "byte fallback": decoders.ByteFallback(),
    "llama": decoders.Sequence(LLAMA),
    "gemma": decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]),
    "metaspace": decoders.Metaspace(), "metaspace never": decoders.Metaspace(prepend_scheme="never"),
    "word piece": decoders.WordPiece(), "word piece without clean-up": decoders.WordPiece(cleanup=False),
    "bpe": decoders.BPEDecoder(), "ctc": decoders.CTC(), "strip": decoders.Strip(" ", 1, 0), "fuse": decoders.Fuse(),
    "replace": decoders.Replace(Regex("[ab]▁?"), "漢"),
    "strip of all": decoders.Sequence([decoders.Metaspace(), decoders.Fuse(), decoders.Strip(" ", 2, 0)]),
    "replace in all": decoders.Sequence([decoders.Fuse(), decoders.Replace(Regex("b▁a|b+"), "X")]),
    "metaspace of all": decoders.Sequence([decoders.ByteLevel(), decoders.Metaspace()]),
    "ctc then bpe": decoders.Sequence([decoders.CTC(), decoders.BPEDecoder(), decoders.WordPiece()]),
    "bpe then word piece": decoders.Sequence([decoders.BPEDecoder(), decoders.WordPiece()]),
    "made byte tokens": decoders.Sequence([decoders.Replace("b", "<0xE2>"), decoders.ByteFallback()]),
    "byte level strip": decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)]),
    "nested": decoders.Sequence([decoders.Sequence(LLAMA[:2]), decoders.Sequence(LLAMA[2:])]),
    "word piece of bytes": decoders.Sequence([decoders.ByteFallback(), decoders.WordPiece()]),
}  # fmt: skip
TEXTS = ["日本語", "🙂🙂", "你好，世界", "हिन्दी", "Привет", "e\u0301é", "👨‍👩‍👧", "a\ufffdb", "عربى"]


def _tokenizer(name: str) -> Tokenizer:
    vocabulary = {token: i for i, token in enumerate(dict.fromkeys([*PIECES, *BYTES, *ALPHABET]))}
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, []))
    backend.decoder = DECODERS[name]  # type: ignore[assignment]  # None is one
    backend.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    return Tokenizer(backend)


TOKENIZERS = {name: _tokenizer(name) for name in DECODERS}


def ids_of(tokenizer: Tokenizer, text: str, level: bool) -> list[int]:
    """Return one token per byte of a text, by fallback or byte-level vocabulary."""
    mapped = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
    names = list("".join(piece for piece, _ in mapped)) if level else [BYTES[byte] for byte in text.encode()]
    return [token for token in [tokenizer.token_to_id(name) for name in names] if token is not None]


@st.composite
def sequences(draw: st.DrawFn, tokenizer: Tokenizer) -> list[int]:
    """Return ids of any script, cut anywhere, with any tokens, some beyond the vocabulary."""
    ids: list[int] = []
    for _ in range(draw(st.integers(1, 6))):
        if draw(st.booleans()):
            full = ids_of(tokenizer, draw(st.sampled_from(TEXTS)), draw(st.booleans()))
            start = draw(st.sampled_from([0, 0, 0, 1, 2]))
            ids += full[start : draw(st.sampled_from([None, None, -1, -2, 4]))]
        else:
            names = st.sampled_from([*PIECES, *SPECIAL])
            results = [tokenizer.token_to_id(name) for name in draw(st.lists(names, max_size=6))]
            ids += [token for token in results if token is not None]
        if draw(st.integers(0, 9)) == 0:
            ids += draw(st.lists(st.integers(0, tokenizer.vocab_size + 2), max_size=8))
    return ids * draw(st.sampled_from([1, 1, 1, 20]))


def pieces(tokenizer: Tokenizer, ids: Sequence[int], **options: bool) -> list[str]:
    decoder = tokenizer.stream(**options)
    return [*(decoder.push(token) for token in ids), decoder.flush()]


@pytest.mark.parametrize("name", DECODERS)
@settings(max_examples=25, derandomize=True, database=None, deadline=None)
@given(st.data())
def test_pieces_are_the_text_of_all_ids(name: str, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[name]
    ids = data.draw(sequences(tokenizer))
    for options in ({}, {"skip_special_tokens": False}, {"keep_tool_markers": True}):
        assert "".join(pieces(tokenizer, ids, **options)) == tokenizer.decode(ids, **options)


@pytest.mark.parametrize("name", DECODERS)
@settings(max_examples=25, derandomize=True, database=None, deadline=None)
@given(st.data())
def test_stop_strings_end_at_the_first_token_that_has_them(name: str, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[name]
    ids = data.draw(sequences(tokenizer))[:40]
    text = tokenizer.decode(ids)
    stops = data.draw(
        st.lists(st.sampled_from(["漢", "b", " a", "本語", "漢b", ". ", "🙂", text[3:6] or "x"]), min_size=1)
    )
    growing, given_out, selection = GrowingText(tokenizer.stream(), stops), "", 0
    for token in ids:
        growing.push(token)
        selection += 1
        given_out += growing.take()
        if growing.stopped:
            break
    growing.finish()
    given_out += growing.take(final=True)
    so_far = tokenizer.decode(ids[:selection])
    results = [place for place in (so_far.find(stop) for stop in stops) if place >= 0]
    assert growing.stopped == bool(results)
    assert growing.text == given_out == (so_far[: min(results)] if results else so_far)
    for initial in range(selection if growing.stopped else 0):
        # Text that ends within a character is not final, and neither are stop strings in it.
        first = tokenizer.decode(ids[:initial]).rstrip("\ufffd")
        assert not any(stop in first for stop in stops)


def test_a_stop_string_of_byte_fallback_ends_at_its_last_byte() -> None:
    tokenizer = TOKENIZERS["llama"]
    ids = ids_of(tokenizer, "€漢字", False)
    growing = GrowingText(tokenizer.stream(), ["漢"])
    selection = next(i for i, token in enumerate(ids, 1) if (growing.push(token), growing.stopped)[1])
    assert (growing.text, selection) == ("€", 6)


def test_an_invalid_byte_changes_the_run_that_it_ends() -> None:
    tokenizer = TOKENIZERS["llama"]
    ids = [*ids_of(tokenizer, "€", False), *(tokenizer.token_to_id(name) or 0 for name in ("<0xFF>", "b"))]
    assert pieces(tokenizer, ids) == ["", "", "", "", "\ufffd" * 4 + "b", ""]


def test_a_special_token_is_no_context() -> None:
    tokenizer = TOKENIZERS["metaspace"]
    ids = [tokenizer.token_to_id(name) or 0 for name in ("▁a", *["<s>"] * 80, "▁a")]
    assert "".join(pieces(tokenizer, ids)) == "a a"


def test_tool_markers_can_be_kept() -> None:
    tokenizer = TOKENIZERS["byte level"]
    ids = [tokenizer.token_to_id(name) or 0 for name in ("<s>", "<tool_call>", "b")]
    assert tokenizer.decode(ids) == "b"
    assert tokenizer.decode(ids, keep_tool_markers=True) == "<tool_call>b"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<s><tool_call>b"


@pytest.mark.parametrize("keep_tool_markers", [False, True])
def test_special_tokens_that_a_normaliser_changes(keep_tool_markers: bool) -> None:
    """`tokenizers` leaves out a token if its normalised form is that of a special one; streams do the same."""
    backend = tokenizers.Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    backend.normalizer = normalizers.Lowercase()
    for content, special, normalized in (("<D>", True, True), ("<E>", True, False), ("<f>", True, False)):
        backend.add_tokens([AddedToken(content, special=special, normalized=normalized)])
    backend.add_tokens([AddedToken("<F>", special=False, normalized=True)])
    tokenizer, ids = Tokenizer(backend), [0, 2, 3, 0, 4, 5, 0]
    stream = tokenizer.stream(keep_tool_markers=keep_tool_markers)
    text = "".join(map(stream.push, ids)) + stream.flush()
    assert text == backend.decode(ids) == tokenizer.decode(ids, keep_tool_markers=keep_tool_markers) == "a <d> a a"
