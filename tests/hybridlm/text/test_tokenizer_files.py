"""The class of a tokenizer, and formats other than tokenizer.json."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from hybridlm.checkpoint import CheckpointError
from hybridlm.text.tiktoken_file import CODE, RESERVED, WORDS
from hybridlm.text.tokenizer import Tokenizer


def write(path: Path, config: dict[str, Any], **settings: Any) -> Path:
    """Write a byte-level tokenizer that joins "12", "a'" and, without a merge, "xy"."""
    vocabulary = {
        token: i for i, token in enumerate([*sorted(pre_tokenizers.ByteLevel.alphabet()), "12", "a'", "Ã©", "xy"])
    }
    merges = [("1", "2"), ("a", "'"), ("Ã", "©")]
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, merges, ignore_merges=True))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    (path / "config.json").write_text(json.dumps(config))
    return path


def load(path: Path) -> Tokenizer:
    tokenizer = Tokenizer.from_dir(path)
    assert tokenizer is not None
    return tokenizer


@pytest.mark.parametrize(("kind", "named", "sizes"), [
    # Sizes of "12", "a's", "e" with a combining accent, and "xy", in tokens.
    ("lfm2", "PreTrainedTokenizerFast", [1, 2, 3, 1]),
    ("granitemoehybrid", "GPT2Tokenizer", [1, 2, 3, 1]),
    ("lfm2", "GPT2Tokenizer", [1, 3, 3, 2]),
    ("mamba2", None, [1, 3, 1, 2]),
    ("qwen3_next", "Qwen2TokenizerFast", [2, 3, 1, 2]),
    ("qwen3_5", "PreTrainedTokenizerFast", [2, 3, 1, 2]),
    ("lfm2", "LlamaTokenizer", [1, 2, 3, 1]),
])  # fmt: skip
def test_a_class_has_its_own_pipeline(tmp_path: Path, kind: str, named: str | None, sizes: list[int]) -> None:
    tokenizer = load(write(tmp_path, {"model_type": kind}, **({"tokenizer_class": named} if named else {})))
    assert [len(tokenizer.encode(text)) for text in ("12", "a's", "e\u0301", "xy")] == sizes


def test_a_class_that_is_not_built_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointError, match="transformers' GemmaTokenizer does not use tokenizer.json as it is"
    ) as error:
        load(write(tmp_path, {"model_type": "lfm2"}, tokenizer_class="GemmaTokenizerFast"))
    # The message's remedy works.
    assert "write TokenizersBackend instead" in str(error.value)
    load(write(tmp_path, {"model_type": "lfm2"}, tokenizer_class="TokenizersBackend"))


def test_code_of_a_checkpoint_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, {"model_type": "lfm2"}, auto_map={"AutoTokenizer": ["own.Tokenizer", None]})
    with pytest.warns(UserWarning, match="auto_map names a tokenizer in Python code"):
        assert load(path).encode("12") == [256]


def write_kimi(path: Path, lines: list[str] | None = None, **settings: Any) -> Path:
    tokens = [*(bytes([byte]) for byte in reversed(range(256))), b"ab"]
    lines = lines or [f"{base64.b64encode(token).decode()} {rank}" for rank, token in enumerate(tokens)]
    (path / "tiktoken.model").write_text("\n".join(lines))
    (path / "config.json").write_text('{"model_type": "kimi_linear"}')
    (path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "TikTokenTokenizer", "added_tokens_decoder": NAMED} | settings)
    )
    return path


NAMED = {str(257 + i): {"content": token} for i, token in enumerate(["[BOS]", "[EOS]", "<|im_end|>", "<tool>"])}


def test_tiktoken_is_converted(tmp_path: Path) -> None:
    (tmp_path / CODE).write_text("\n".join(WORDS))
    template = "{{ tools | tojson }}{{ messages[0].content }}"
    tokenizer = load(write_kimi(tmp_path, chat_template=template, additional_special_tokens=["<|im_end|>"]))
    ids = [256, 255 - ord("c"), 259, 260, 257 + 9]
    assert tokenizer.encode("abc<|im_end|><tool><|reserved_token_266|>") == ids
    assert tokenizer.decode(ids) == "abc<tool><|reserved_token_266|>"
    assert tokenizer.eos_token_id == 258 and tokenizer.vocab_size == 257 + RESERVED
    # Tools are written with sorted keys, as the checkpoints' code does.
    text = tokenizer.apply_chat_template([{"role": "user", "content": "x"}], tools=[{"b": 1, "a": {"d": 2, "c": 3}}])
    assert text == '[{"a": {"c": 3, "d": 2}, "b": 1}]x'


@pytest.mark.parametrize(("line", "message"), [
    (f"{base64.b64encode(b'ab').decode()} 256", "line 258: expected base64 of new bytes and the rank 257"),
    ("YWJj 258", "line 258: .*rank 257"),
    ("YWJj", "line 258"),
    ("YW?j 257", "line 258"),
    ("YWJj 257 1", "line 258"),
    ("YWJj ٢٥٧", "line 258"),
    (" 257", "line 258"),
])  # fmt: skip
def test_tiktoken_lines_that_are_wrong(tmp_path: Path, line: str, message: str) -> None:
    lines = write_kimi(tmp_path).joinpath("tiktoken.model").read_text().split("\n")
    with pytest.raises(CheckpointError, match=message):
        load(write_kimi(tmp_path, [*lines, line]))


def test_tiktoken_that_cannot_be_converted(tmp_path: Path) -> None:
    lines = write_kimi(tmp_path).joinpath("tiktoken.model").read_text().split("\n")
    with pytest.raises(CheckpointError, match="expected all single bytes, 156 are missing"):
        load(write_kimi(tmp_path, lines[:100]))
    (tmp_path / CODE).write_text("\n".join(WORDS[1:]))
    with pytest.raises(CheckpointError, match="by an unknown pattern"):
        load(write_kimi(tmp_path))
    with pytest.warns(UserWarning, match=r"found tiktoken.model but no tokenizer.json"):
        assert Tokenizer.from_dir(write_kimi(tmp_path, tokenizer_class="Own")) is None
