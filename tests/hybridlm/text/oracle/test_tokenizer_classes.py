"""Each transformers tokenizer class gives equal ids here, or is refused by name."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers

from hybridlm.checkpoint import CheckpointError
from hybridlm.text import Tokenizer
from hybridlm.text.tokenizer_classes import DEFAULTS, NOT_BUILT, PLAIN
from models import FAMILIES

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore::UserWarning")]
ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
CORPUS = ["Ada has the green kite's 123 456. Ben's ball don't we'll naïve 中文 हिन्दी ก้อน e\u0301 \n\n  x"] * 4
MODEL_TYPES = [None, *(name for family in FAMILIES for name in family.model_types)]
CLASSES = [
    None, "PreTrainedTokenizerFast", "PreTrainedTokenizer", "TokenizersBackend", "SomeTokenizer",
    *(name + end for name in DEFAULTS for end in ("", "Fast")),
]  # fmt: skip
MARKS = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "<tool_call>", "<s>", "</s>", "<pad>", "<img>"]
WORDS = [
    "Ada", " has", "'s", "DON'T", " 12345", "naïve", "e\u0301", "中文", "हिन्दी", "ก้อน", "\n\n", "   ", "\t", "🙂", "ſ",
    "\u00a0", "’s", "\r\n", "a_b", "∑x", "１２", "ﬁ", *MARKS,
]  # fmt: skip
ROLES = ["bos_token", "eos_token", "unk_token", "pad_token"]


def byte_level(rng: random.Random) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    first = rng.choice([[], ["<|endoftext|>"], ["<s>", "</s>", "<unk>"]])
    trainer = trainers.BpeTrainer(vocab_size=330, initial_alphabet=ALPHABET, show_progress=False, special_tokens=first)
    backend.train_from_iterator(CORPUS, trainer)
    backend.decoder = decoders.ByteLevel()
    pieces = pre_tokenizers.Split(Regex(r"\p{N}{1,3}|\s+|[^\s\p{N}]+"), "isolated")
    raw = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    spaced = pre_tokenizers.ByteLevel(add_prefix_space=rng.random() < 0.3)
    backend.pre_tokenizer = rng.choice([spaced, pre_tokenizers.Sequence([pieces, raw])])
    if rng.random() < 0.4:
        backend.normalizer = rng.choice([normalizers.NFC(), normalizers.NFKC(), normalizers.Lowercase()])
    backend.model.ignore_merges = rng.random() < 0.3  # type: ignore[attr-defined]
    return backend


def of_sentencepiece(rng: random.Random) -> tokenizers.Tokenizer:
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += [*sorted(set("".join(CORPUS).replace(" ", "▁"))), "▁A", "▁Ad", "▁Ada", "th", "▁th"]
    merges = [("▁", "A"), ("▁A", "d"), ("▁Ad", "a"), ("t", "h"), ("▁", "th")]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    model = models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    backend = tokenizers.Tokenizer(model)
    if rng.random() < 0.5:
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        scheme = rng.choice(["first", "always", "never"])
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=rng.random() < 0.5)
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return backend


def some_token(rng: random.Random, content: str, typed: bool = True) -> Any:
    """Return a token as text, or as an object with some flags."""
    if rng.random() < 0.6:
        return content
    flags = {name: rng.random() < 0.15 for name in ("lstrip", "rstrip", "single_word")}
    results = {"content": content, **flags, "normalized": rng.random() < 0.5}
    if typed:
        return results | {"__type": "AddedToken"}
    return {name: value for name, value in results.items() if name == "content" or rng.random() < 0.6}


def write_folder(rng: random.Random, path: Path) -> str | None:
    """Write the files of some tokenizer; return its model type."""
    backend = (of_sentencepiece if rng.random() < 0.35 else byte_level)(rng)
    marks = rng.sample(MARKS, rng.randint(0, 5))
    for mark in marks:
        flags = {"normalized": rng.random() < 0.3, "lstrip": rng.random() < 0.1, "rstrip": rng.random() < 0.1}
        add = backend.add_special_tokens if rng.random() < 0.5 else backend.add_tokens
        add([AddedToken(mark, special=rng.random() < 0.7, **flags)])
    if marks and rng.random() < 0.4:
        first = [(marks[0], backend.token_to_id(marks[0]))]
        backend.post_processor = processors.TemplateProcessing(f"{marks[0]} $A", special_tokens=first)
    backend.save(str(path / "tokenizer.json"))
    kind = rng.choice(MODEL_TYPES)
    if kind is not None:
        named = {"tokenizer_class": rng.choice(CLASSES)} if rng.random() < 0.1 else {}
        (path / "config.json").write_text(json.dumps({"model_type": kind, **named}))
    settings: dict[str, Any] = {}
    if (name := rng.choice(CLASSES)) is not None:
        settings["tokenizer_class"] = name
    for role in rng.sample(ROLES, rng.randint(0, 4)):
        settings[role] = None if rng.random() < 0.2 else some_token(rng, rng.choice(MARKS))
    if rng.random() < 0.5:
        added = backend.get_added_tokens_decoder().items()
        flags = ("content", "lstrip", "rstrip", "single_word", "normalized", "special")
        settings["added_tokens_decoder"] = {
            str(key): {flag: getattr(token, flag) for flag in flags} for key, token in added if rng.random() < 0.9
        }
    if rng.random() < 0.3:
        key = rng.choice(["extra_special_tokens", "additional_special_tokens"])
        settings[key] = [some_token(rng, mark) for mark in rng.sample(MARKS, 2)]
    elif rng.random() < 0.2:
        settings["extra_special_tokens"] = {"image_token": "<img>"}
    for key in ("image_token", "think_token"):
        if rng.random() < 0.1:
            settings[key] = some_token(rng, rng.choice(MARKS))
    if rng.random() < 0.1:
        settings["model_specific_special_tokens"] = {"video_token": some_token(rng, "<img>")}
    for key, values in {"add_prefix_space": [True, False], "legacy": [True, False], "add_bos_token": [True]}.items():
        if rng.random() < 0.2:
            settings[key] = rng.choice(values)
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    if rng.random() < 0.3:
        older: dict[str, Any] = {role: some_token(rng, rng.choice(MARKS), False) for role in rng.sample(ROLES, 2)}
        if rng.random() < 0.3:
            older["additional_special_tokens"] = rng.sample(MARKS, 2)
        (path / "special_tokens_map.json").write_text(json.dumps(older))
    if rng.random() < 0.2 and "added_tokens_decoder" not in settings:
        new = [mark for mark in rng.sample(MARKS, 3) if backend.token_to_id(mark) is None]
        size = backend.get_vocab_size()
        (path / "added_tokens.json").write_text(json.dumps({mark: size + i for i, mark in enumerate(new)}))
    return kind


def test_generated_folders(tmp_path: Path) -> None:
    """Two hundred folders per family; refused are only tokens with silently different ids."""
    from transformers import AutoTokenizer

    records: dict[str, int] = {}
    for seed in range(200):
        path, rng = tmp_path / str(seed), random.Random(seed)
        path.mkdir()
        kind = write_folder(rng, path)
        ref = AutoTokenizer.from_pretrained(path)
        try:
            tokenizer = Tokenizer.from_dir(path)
        except CheckpointError as error:
            assert "at that id, found" in str(error)
            continue
        assert tokenizer is not None
        assert tokenizer.special_tokens == {role: str(token) for role, token in ref.special_tokens_map.items()}
        for _ in range(12):
            text = "".join(rng.choices(WORDS, k=rng.randint(1, 8)))
            for around in (True, False):
                ids = ref(text, add_special_tokens=around)["input_ids"]
                assert tokenizer.encode(text, around) == ids, (seed, kind, text)
            for skip in (True, False):
                assert tokenizer.decode(ids, skip) == ref.decode(ids, skip_special_tokens=skip), (seed, kind, text)
        name = type(ref).__name__
        records[name] = records.get(name, 0) + 1
    assert records.keys() == {PLAIN, *DEFAULTS} and min(records.values()) >= 5, records


def test_the_way_to_convert_that_is_told_works(tmp_path: Path) -> None:
    """vocab.json and merges.txt become tokenizer.json, as the warning recommends."""
    from transformers import AutoTokenizer

    backend = byte_level(random.Random(0))
    backend.model.save(str(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "qwen3_next"}')
    with pytest.warns(UserWarning, match=r"AutoTokenizer.from_pretrained\(DIR\).save_pretrained\(DIR\)"):
        assert Tokenizer.from_dir(tmp_path) is None
    reference = AutoTokenizer.from_pretrained(tmp_path)
    reference.save_pretrained(tmp_path)
    tokenizer = Tokenizer.from_dir(tmp_path)
    assert tokenizer is not None
    for text in ("Ada has the green kite's 123", "".join(WORDS)):
        assert tokenizer.encode(text) == reference(text)["input_ids"]


def test_tables_match_transformers() -> None:
    """Classes that use tokenizer.json directly; tests/models/families has those of each family."""
    import transformers
    from transformers.models.auto import tokenization_auto as auto
    from transformers.tokenization_utils_tokenizers import TokenizersBackend

    names = {name for name in auto.TOKENIZER_MAPPING_NAMES.values() if name is not None}
    names |= {name for name in dir(transformers) if name.endswith(("Tokenizer", "TokenizerFast"))}
    local = {"__init__", "_encode_plus", "_decode", "encode", "decode", "apply_chat_template"}
    other = set()
    for name in {name.removesuffix("Fast") for name in names}:
        result = auto.tokenizer_class_from_name(name)
        fast = isinstance(result, type) and issubclass(result, TokenizersBackend)
        if result is not None and result is not TokenizersBackend and (not fast or local & vars(result).keys()):
            other.add(name)
    helpers = {"AutoTokenizer", "BasicTokenizer", "CharacterTokenizer", "MecabTokenizer", "WordpieceTokenizer"}
    assert other - helpers - {"PreTrainedTokenizer", "MistralCommonBackend", *DEFAULTS} == NOT_BUILT
