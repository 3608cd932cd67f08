"""Small published-style tokenizers with tokens across the prompt-completion boundary."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import tokenizers
from text_checkpoint import write_text_checkpoint
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from hybridlm.text.tokenizer import Tokenizer

BOS, EOS = "<s>", "</s>"
SPECIAL = {"bos_token": BOS, "eos_token": EOS}
CORPUS = [
    "the quick brown fox jumps over the lazy dog  and the quick cat\n\n the end of the quiet question",
    "日本語の日本は日の本 日本語 éé été à côté ß größe 🙂🙂🙃 straße",
    "<think>\n\n</think>\n\nthe answer is  the question.\n\n",
] * 4


def byte_level() -> tokenizers.Tokenizer:
    """Byte-level BPE, with merges across characters of several bytes and across spaces."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=420,
            special_tokens=[BOS, EOS],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    return backend


def byte_level_words() -> tokenizers.Tokenizer:
    """Byte-level BPE within words, as GPT-2 has it."""
    backend = byte_level()
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return backend


def across_characters() -> tokenizers.Tokenizer:
    """Byte-level BPE with a token over the last and first byte of characters."""
    names = [BOS, EOS, *sorted(pre_tokenizers.ByteLevel.alphabet()), "¥æ"]
    backend = tokenizers.Tokenizer(models.BPE({name: i for i, name in enumerate(names)}, [("¥", "æ")]))
    backend.add_special_tokens([BOS, EOS])
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return backend


def sentencepiece() -> tokenizers.Tokenizer:
    """Llama's BPE: U+2581 for spaces, one before the text, byte fallback."""
    trainer = trainers.BpeTrainer(vocab_size=120, special_tokens=["<unk>", BOS, EOS], show_progress=False)
    trained = tokenizers.Tokenizer(models.BPE())
    trained.normalizer = normalizers.Replace(" ", "\u2581")
    trained.train_from_iterator(CORPUS[:1] * 4, trainer)
    model = json.loads(trained.to_str())["model"]
    vocabulary = model["vocab"]
    for byte in range(256):
        vocabulary[f"<0x{byte:02X}>"] = len(vocabulary)
    merges = [tuple(merge) for merge in model["merges"]]
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    backend.add_special_tokens(["<unk>", BOS, EOS])
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return backend


def metaspace_unigram() -> tokenizers.Tokenizer:
    """A Unigram model of words, with segmentations that depend on the continuation."""
    backend = tokenizers.Tokenizer(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    characters = sorted({character for text in CORPUS for character in text} | set("abcdefghijklmnopqrstuvwxyz<>/|\n"))
    backend.train_from_iterator(
        CORPUS,
        trainers.UnigramTrainer(
            vocab_size=200,
            special_tokens=["<unk>", BOS, EOS],
            unk_token="<unk>",
            initial_alphabet=characters,
            show_progress=False,
        ),
    )
    return backend


def around(backend: tokenizers.Tokenizer, template: str) -> tokenizers.Tokenizer:
    """Return the tokenizer with tokens around every text, such as "<s> $A </s>"."""
    ids = [(token, backend.token_to_id(token)) for token in (BOS, EOS)]
    backend.post_processor = processors.TemplateProcessing(template, special_tokens=ids)
    return backend


KINDS: dict[str, Callable[[], tokenizers.Tokenizer]] = {
    "byte-level": byte_level,
    "byte-level words": byte_level_words,
    "byte-level, across characters": across_characters,
    "sentencepiece": sentencepiece,
    "unigram": metaspace_unigram,
    "byte-level, bos": lambda: around(byte_level(), f"{BOS} $A"),
    "byte-level, bos and eos": lambda: around(byte_level(), f"{BOS} $A {EOS}"),
    "sentencepiece, bos": lambda: around(sentencepiece(), f"{BOS} $A"),
    "unigram, eos": lambda: around(metaspace_unigram(), f"$A {EOS}"),
}


def make(kind: str) -> Tokenizer:
    """Return a tokenizer of this kind, or the one of a few words."""
    return Tokenizer(merging() if kind == "merging" else KINDS[kind](), SPECIAL)


def bytes_of(tokenizer: Tokenizer, ids: list[int]) -> bytes:
    """Return the tokens' bytes, including a leading space that decoders drop."""
    byte_of = {character: value for value, character in _byte_names()}
    text = b""
    for token in ids:
        name = tokenizer._backend.id_to_token(token)
        assert name is not None
        if tokenizer.added_tokens.get(name):
            text += name.encode()
        elif isinstance(tokenizer._backend.pre_tokenizer, pre_tokenizers.ByteLevel):
            text += bytes(byte_of[character] for character in name)
        elif byte := re.fullmatch(r"<0x([0-9A-F]{2})>", name):
            text += bytes.fromhex(byte[1])
        else:
            text += name.replace("\u2581", " ").encode()
    return text


def _byte_names() -> Iterator[tuple[int, str]]:
    """Yield each byte with its character in byte-level vocabularies, as GPT-2 defines them."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in printable]
    yield from ((byte, chr(byte)) for byte in printable)
    yield from ((byte, chr(256 + i)) for i, byte in enumerate(rest))


PAIRS = (
    "q u", "c k", "b r", "o w", "o x", "Ġ f", "Ġ b", "Ġb r", "Ċ Ċ", "Ġ qu", "t h", "th e",
    "qu i", "qui ck", "Ġqu ick", "Ġf ox", "i ck",
)  # fmt: skip
MERGES = [(rest, right) for rest, right in map(str.split, PAIRS)]


def merging() -> tokenizers.Tokenizer:
    """Byte-level BPE of some English words and chat markers, at most 97 tokens."""
    characters = ["Ġ", "Ċ", *"abcdefghijklmnopqrstuvwxyz", *"<>|/_.?!", *"ABHW"]
    products = dict.fromkeys(map("".join, MERGES))
    tokens = ["<pad>", BOS, EOS, *characters, *products, "<think>", "</think>", "<|im_start|>", "<|im_end|>"]
    backend = tokenizers.Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, MERGES))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<pad>", BOS, EOS, "<|im_start|>", "<|im_end|>"])
    backend.add_tokens(["<think>", "</think>"])
    return backend


def write_merging_checkpoint(directory: Path) -> Path:
    """Write the checkpoint of `write_text_checkpoint` with `merging` in place of its tokenizer."""
    write_text_checkpoint(directory)
    merging().save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    return directory
