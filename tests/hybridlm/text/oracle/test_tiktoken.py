"""tiktoken.model of Kimi checkpoints, against byte-pair encoding by ranks as the tiktoken package does it."""

import base64
import json
import random
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from hybridlm.text import Tokenizer
from hybridlm.text.tiktoken_file import MAX_PIECE, MAX_RUN, RESERVED, WORDS

pytestmark = pytest.mark.oracle
regex = pytest.importorskip("regex", reason="comes with transformers")
PATTERN = regex.compile("|".join(WORDS), flags=regex.V1)
TEXT = (
    "Ada has the green kite's 123 456. Ben's ball don't we'll naïve 中文中文漢字 हिन्दी ก้อน DON'T fooBar 中文abc\n\n  x "
)
PARTS = [
    "Ada", " has", "'s", "DON'T", " 12345", "naïve", "e\u0301", "中文", "漢字abc", "हिन्दी", "ก้อन", "\n\n", "   ", "\t",
    "🙂", "\u00a0", "ſ", "’s", "\r\n", "a_b", "１２", "々", "〇", "ー", "\x85", "\u180e", "\u200b", "İ", "ʰ", "fooBar",
    "한글", "'ſ", "\ufeff", "\U00020000", "⁵", "\x00", "<|im_end|>", "[BOS]", "<|reserved_token_{}|>",
]  # fmt: skip


def ranks_of(rng: random.Random, size: int) -> list[bytes]:
    """Learn byte pairs from a text, in random order among frequent pairs."""
    ranks = [bytes([byte]) for byte in range(256)]
    rng.shuffle(ranks)
    words = [[bytes([byte]) for byte in word.encode()] for word in PATTERN.findall(TEXT)]
    while len(ranks) < size:
        counts = Counter(first + second for word in words for first, second in pairwise(word))
        if not counts:
            break
        ranks.append(rng.choice([pair for pair, _ in counts.most_common(5)]))
        for word in words:
            place = 0
            while place < len(word) - 1:
                if word[place] + word[place + 1] == ranks[-1]:
                    word[place : place + 2] = [ranks[-1]]
                place += 1
    return ranks


def encoded(ranks: dict[bytes, int], special: dict[str, int], text: str) -> list[int]:
    """Join the neighbours of the lowest rank, the first ones of equals, within each word."""
    ids: list[int] = []
    for part in regex.split(f"({'|'.join(map(regex.escape, special))})", text):
        if part in special:
            ids.append(special[part])
            continue
        for word in PATTERN.findall(part):
            tokens = [bytes([byte]) for byte in word.encode()]
            if word.encode() in ranks:
                tokens = [word.encode()]
            while True:
                out = [(ranks[first + s], i) for i, (first, s) in enumerate(pairwise(tokens)) if first + s in ranks]
                if not out:
                    break
                place = min(out)[1]
                tokens[place : place + 2] = [tokens[place] + tokens[place + 1]]
            ids += [ranks[token] for token in tokens]
    return ids


def write_kimi(path: Path, ranks: list[bytes]) -> dict[str, int]:
    """Write the files that Kimi checkpoints have; return their added tokens."""
    size = len(ranks)
    named = {size: "[BOS]", size + 1: "[EOS]", size + 2: "<|im_end|>", size + 9: "<think>", size + 256: "[UNK]"}
    named |= {size + 257: "[PAD]"}
    lines = [f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(ranks)]
    (path / "tiktoken.model").write_text("".join(lines))
    (path / "config.json").write_text(json.dumps({"model_type": "kimi_linear"}))
    settings = {
        "tokenizer_class": "TikTokenTokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]},
        **{f"{role}_token": f"[{role.upper()}]" for role in ("bos", "eos", "unk", "pad")},
        "additional_special_tokens": ["<|im_end|>"],
        "added_tokens_decoder": {
            str(key): {"content": token, "special": key != size + 9} for key, token in named.items()
        },
    }
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    return {named.get(key, f"<|reserved_token_{key}|>"): key for key in range(size, size + RESERVED)}


def load(path: Path) -> Tokenizer:
    tokenizer = Tokenizer.from_dir(path)
    assert tokenizer is not None
    return tokenizer


@pytest.mark.parametrize("size", [256, 300, 420])
def test_ids_match_the_ranks(tmp_path: Path, size: int) -> None:
    rng = random.Random(size)
    ranks = ranks_of(rng, size)
    special = write_kimi(tmp_path, ranks)
    actual, table = load(tmp_path), {token: rank for rank, token in enumerate(ranks)}
    assert actual.vocab_size == len(ranks) + RESERVED and actual.eos_token_id == special["[EOS]"]
    for _ in range(400):
        text = "".join(rng.choices(PARTS, k=rng.randint(1, 12))).replace("{}", str(len(ranks) + 5))
        text += "".join(chr(rng.randint(1, 0xD7FF)) for _ in range(rng.randint(0, 4)))
        ids = encoded(table, special, text)
        assert actual.encode(text) == actual.encode(text, add_special_tokens=False) == ids, text
        assert actual.decode(ids, skip_special_tokens=False) == text
    skipped = {token for token in special if special[token] in actual.skipped()}
    assert skipped == {"[BOS]", "[EOS]", "[UNK]", "[PAD]", "<|im_end|>"}


def cuts(text: str) -> list[str]:
    """Cut before the character that makes a run too long, one character at a time."""
    pieces = []
    for begin in range(0, len(text), MAX_PIECE):
        part, start, run = text[begin : begin + MAX_PIECE], 0, 0
        for place, character in enumerate(part):
            run = run + 1 if place and character.isspace() == part[place - 1].isspace() else 1
            if run > MAX_RUN:
                pieces.append(part[start:place])
                start, run = place, 1
        pieces.append(part[start:])
    return pieces


def test_long_texts_are_cut_as_there(tmp_path: Path) -> None:
    ranks = [*(bytes([byte]) for byte in range(256)), b"ab", b" a"]
    special = write_kimi(tmp_path, ranks)
    actual, table = load(tmp_path), {token: rank for rank, token in enumerate(ranks)}
    cut_and_encoded = lambda text: [token for piece in cuts(text) for token in encoded(table, special, piece)]
    for run in (MAX_RUN, MAX_RUN + 1, 2 * MAX_RUN + 3):
        # Words of two characters: a cut after 25,000 is within one.
        first, second = "a b " + ("1ab" * run)[1 : run + 1] + " " * run + "\x1c b", "ab " + "中" * run + "文"
        assert actual.encode(f"{first}<|im_end|>{second}") == cut_and_encoded(first) + [
            special["<|im_end|>"]
        ] + cut_and_encoded(second)
        assert (cut_and_encoded(first) != encoded(table, special, first)) == (run > MAX_RUN)
    words = "ab1" * 333
    text = " ".join([words] * (MAX_PIECE // 1000 + 2))
    text = next(result for pad in range(9) if (result := "." * pad + text)[MAX_PIECE - 1 : MAX_PIECE + 1] == "ab")
    assert actual.encode(text) == cut_and_encoded(text) != encoded(table, special, text)
