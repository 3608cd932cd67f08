"""GGUF files: the numbers, configuration and tokenizer of the checkpoint that they were converted from."""

import json
import re
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from gguf_checkpoint import GOLDEN, OF, TOKENS, golden, rounded, write_gguf

import hybridlm
from hybridlm import MissingExtra
from hybridlm.checkpoint import (
    CheckpointDirectory,
    CheckpointError,
    has_head,
    load_parameters,
    open_checkpoint,
    open_model,
    stored_dtype,
)
from hybridlm.gguf_files import BLOCK_TYPES, GgufHeader, read_architecture, read_header
from hybridlm.gguf_files.header import PLAIN_TYPES
from models import family_of

SMALL_CHANGE = {"A_log": 3e-7, "norm": 1.2e-7}
"""Tolerance of numbers that the converter adds one to or takes the exponential of, in float32."""


def opened(path: Path) -> CheckpointDirectory:
    checkpoint = open_checkpoint(path)
    assert isinstance(checkpoint, CheckpointDirectory)
    return checkpoint


def checked(path: Path, head: bool = False) -> Any:
    """Compare the headers with the model; read no tensor."""
    return load_parameters(open_model(path, head), "float32", only=set())


@pytest.mark.parametrize("kind", [Type.F32, Type.BF16, Type.Q8_0, Type.Q4_0], ids=lambda path: path.name)
@pytest.mark.parametrize("architecture", OF)
def test_tensors_of_the_original(tmp_path: Path, architecture: str, kind: Type) -> None:
    config, tensors = golden(architecture)
    path = write_gguf(tmp_path / "m.gguf", architecture, kind)
    checkpoint = opened(path)
    assert set(checkpoint.names) == set(tensors)
    family = family_of(checkpoint.config)
    assert family.read_config(checkpoint.config) == family.read_config(config | {"eos_token_id": [2]})
    checked(path)
    for name, expected in tensors.items():
        array = np.asarray(checkpoint.read(name), np.float32)
        stored = checkpoint.stored_as(name)
        if stored == kind.name and kind is not Type.F32:
            if "out_proj" in name and architecture != "lfm2":
                # Its columns move between blocks.
                keys, per = config["linear_num_key_heads"], config["linear_num_value_heads"]
                tiled = expected.reshape(len(expected), keys, per // keys, -1).swapaxes(1, 2)
                tiled = rounded(tiled.reshape(expected.shape), kind)
                expected = tiled.reshape(len(expected), per // keys, keys, -1).swapaxes(1, 2).reshape(expected.shape)
            else:
                expected = rounded(expected, kind)
        change = max((size for part, size in SMALL_CHANGE.items() if part in name), default=0)
        np.testing.assert_allclose(array, expected, rtol=0, atol=change, err_msg=name)
    assert stored_dtype(checkpoint) == {"F32": "float32"}.get(kind.name, "bfloat16")


def test_every_type_has_a_size() -> None:
    assert BLOCK_TYPES | PLAIN_TYPES <= {kind.name for kind in Type}


def test_scale_that_is_not_finite(tmp_path: Path) -> None:
    weight = golden("qwen35")[1]["lm_head.weight"]
    path = write_gguf(tmp_path / "m.gguf", "qwen35", Type.Q8_0)
    begin = read_header(path).tensors["output.weight"].begin
    content = bytearray(path.read_bytes())
    content[begin : begin + 2] = struct.pack("<e", np.inf)
    path.write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        opened(path).read("lm_head.weight")
    assert "output.weight" in str(caught.value) and weight.shape[1] == 32


def test_decay_without_logarithm(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", "qwen35", changes={"blk.0.ssm_a": np.zeros(8, np.float32)})
    with pytest.raises(CheckpointError, match=r"blk\.0\.ssm_a"):
        opened(path).read("model.layers.0.linear_attn.A_log")


@pytest.mark.slow
def test_loads_and_is_saved(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", "qwen35")
    settings: dict[str, Any] = dict(lanes=1, context=64, chunk=5, dtype="float32")
    lm = hybridlm.load(path, **settings)
    original = hybridlm.load(GOLDEN / OF["qwen35"], **settings)
    for name, array in original.params.items():
        np.testing.assert_allclose(np.asarray(array), np.asarray(lm.params[name]), rtol=0, atol=3e-7, err_msg=name)
    assert lm.eos_token_ids == (2,) and lm.tokenizer is not None
    assert lm.tokenizer.encode("ab!!<end>") == [TOKENS.index("a"), TOKENS.index("b"), 96, 2]
    completions = lm.chat([{"role": "user", "content": "ab"}], max_tokens=1)
    assert completions.prompt_token_ids == lm.tokenizer.encode("<user>ab")
    assert lm.fingerprint != original.fingerprint and lm.fingerprint == hybridlm.load(path, **settings).fingerprint
    lm.save(tmp_path / "saved")
    saved = hybridlm.load(tmp_path / "saved", **settings)
    for name, array in lm.params.items():
        np.testing.assert_array_equal(np.asarray(array), np.asarray(saved.params[name]))
    assert saved.tokenizer is not None and saved.tokenizer.fingerprint == lm.tokenizer.fingerprint


def test_prediction_block(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", "qwen35", prediction=True)
    checkpoint, (_, tensors) = opened(path), golden("qwen35", prediction=True)
    assert set(checkpoint.names) == set(tensors) and checkpoint.config["num_hidden_layers"] == 3
    for name in (name for name in tensors if name.startswith("mtp.")):
        change = SMALL_CHANGE["norm"] * 2 if "norm" in name else 0
        np.testing.assert_allclose(checkpoint.read(name), tensors[name], rtol=0, atol=change, err_msg=name)
    family = family_of(checkpoint.config)
    assert checked(path).skipped and has_head(checkpoint, family)
    checked(path, head=True)
    # Behind the layers that the header counts, it is no such block.
    extra = {"blk.3.nextn.eh_proj.weight": np.zeros((32, 64)), "blk.3.attn_q.weight": np.zeros((32, 64))}
    path = write_gguf(tmp_path / "n.gguf", "qwen35", extra=extra)
    with pytest.raises(CheckpointError) as caught:
        checked(path)
    assert len(caught.value.faults) == 2 and all(name in str(caught.value) for name in extra)


def _end_of_header(path: Path) -> int:
    reader = gguf.GGUFReader(path)
    last = reader.tensors[-1].field
    return last.offset + sum(part.nbytes for part in last.parts)


REFUSED = {
    "magic": (lambda c: b"GGML" + c[4:], "not a GGUF file"),
    "version": (lambda c: c[:4] + struct.pack("<I", 1) + c[8:], "version 1"),
    "big-endian": (lambda c: c[:4] + struct.pack(">I", 3) + c[8:], "big-endian"),
    "short": (lambda c: c[:20], "truncated"),
    "cut header": (lambda c: c[:700], "truncated"),
    "cut data": (lambda c: c[:-200], "truncated"),
    "tensors": (lambda c: c[:8] + struct.pack("<Q", 2**60) + c[16:], "tensors"),
    "keys": (lambda c: c[:16] + struct.pack("<Q", 2**60) + c[24:], "metadata keys"),
    "key length": (lambda c: c[:24] + struct.pack("<Q", 2**63) + c[32:], "bytes of text"),
    "architecture": (lambda c: c.replace(b"qwen35", b"llama4"), "llama4"),
    "width": (lambda c: c.replace(b"attention.key_length", b"attention.key_lengtH"), "attention.key_length"),
    "tokenizer": (lambda c: c.replace(b"token_embd.weight", b"token_embd.weighT"), "token_embd.weight"),
}


@pytest.mark.parametrize("how", REFUSED)
def test_damage_is_named(tmp_path: Path, how: str) -> None:
    damage, message = REFUSED[how]
    path = write_gguf(tmp_path / "m.gguf", "qwen35")
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(CheckpointError, match=re.escape(message)):
        open_checkpoint(path)


@pytest.mark.parametrize("architecture", OF)
def test_attention_that_looks_ahead_is_refused(tmp_path: Path, architecture: str) -> None:
    """llama.cpp's converter writes encoders with the architecture of their decoder."""
    header = read_header(write_gguf(tmp_path / "m.gguf", architecture))
    key = f"{architecture}.attention.causal"
    causal = GgufHeader(header.path, {**header.metadata, key: True}, header.tensors)
    assert read_architecture(causal)[0] == read_architecture(header)[0]
    with pytest.raises(CheckpointError, match=f"{key}: expected one of True"):
        read_architecture(GgufHeader(header.path, {**header.metadata, key: False}, header.tensors))


def test_damaged_bytes(tmp_path: Path) -> None:
    """With any header byte changed, a file is refused or matches its header."""
    path = write_gguf(tmp_path / "m.gguf", "qwen35")
    content, end = path.read_bytes(), _end_of_header(path)
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(150):
        number = int(rng.integers(end))
        damaged = bytearray(content)
        damaged[number] = int(rng.integers(256))
        path.write_bytes(damaged)
        try:
            checked(path)
        except ValueError:
            refused += 1
    assert refused > 25


def test_unknown_and_missing_tensors(tmp_path: Path) -> None:
    extra = {"blk.1.rope_freqs.weight": np.zeros(3), "blk.0.ssm_out.scale": np.zeros(1)}
    path = write_gguf(tmp_path / "m.gguf", "qwen35", extra=extra)
    with pytest.raises(CheckpointError) as caught:
        checked(path)
    assert len(caught.value.faults) == 2 and all(name in str(caught.value) for name in extra)


def test_parts_and_missing_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_gguf(tmp_path / "m.gguf", "qwen35")
    content = path.read_bytes()
    options = struct.pack("<Q", 11) + b"split.count" + struct.pack("<IH", 2, 3)
    keys = struct.unpack("<Q", content[16:24])[0]
    path.write_bytes(content[:16] + struct.pack("<Q", keys + 1) + options + content[24:])
    with pytest.raises(CheckpointError, match="--merge"):
        open_checkpoint(path)
    monkeypatch.setattr("hybridlm.errors.find_spec", lambda name: None)
    with pytest.raises(MissingExtra):
        open_checkpoint(path)


def test_config_is_json(tmp_path: Path) -> None:
    config = opened(write_gguf(tmp_path / "m.gguf", "lfm2")).config
    assert json.loads(json.dumps(config)) == config
