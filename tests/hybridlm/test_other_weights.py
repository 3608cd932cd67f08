"""Caches distinguish models with slightly different weights or files."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import run_command
from safetensors.numpy import load_file, save_file
from stopped_runs import stop_after_parts
from text_checkpoint import SETTINGS, load_with_steps, write_text_checkpoint

import hybridlm
from hybridlm import CheckpointError

ROW = 60
"""A row of the embedding, as of a new token."""
PROMPT = list(range(3, 40))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text_checkpoint(tmp_path_factory.mktemp("base"))


def copied(base: Path, folder: Path) -> Path:
    return shutil.copytree(base, folder)


def with_row(base: Path, folder: Path) -> Path:
    """Train one row of the embedding."""
    copied(base, folder)
    tensors = load_file(folder / "model.safetensors")
    name = next(name for name in tensors if name.endswith("embed_tokens.weight"))
    tensors[name][ROW] += np.float32(0.5)
    save_file(tensors, folder / "model.safetensors")
    return folder


def with_json(base: Path, folder: Path, file: str, **fields: Any) -> Path:
    path = copied(base, folder) / file
    table = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(table | fields))
    return folder


def with_tokenizer(base: Path, folder: Path) -> Path:
    path = copied(base, folder) / "tokenizer.json"
    content = json.loads(path.read_text())
    vocabulary = content["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    path.write_text(json.dumps(content))
    return folder


@pytest.fixture(scope="module")
def lm(text_lm: hybridlm.LM, base: Path) -> hybridlm.LM:
    return load_with_steps(text_lm, base)


@pytest.fixture(scope="module")
def other(text_lm: hybridlm.LM, base: Path, tmp_path_factory: pytest.TempPathFactory) -> hybridlm.LM:
    return load_with_steps(text_lm, with_row(base, tmp_path_factory.mktemp("other") / "m"))


@pytest.mark.slow
def test_states_of_a_prefix(lm: hybridlm.LM, other: hybridlm.LM, tmp_path: Path) -> None:
    prefix = lm.prefix(PROMPT)
    prefix.save(tmp_path / "prefix")
    assert lm.load_prefix(tmp_path / "prefix").token_ids == tuple(PROMPT)
    for use in (
        lambda: other.load_prefix(tmp_path / "prefix"),
        lambda: other.generate([[5]], prefix=prefix, max_tokens=1),
        lambda: other.score([[5]], prefix=prefix),
    ):
        with pytest.raises(ValueError, match="model: expected"):
            use()


def lines(path: Path) -> Path:
    """Write lines that are answered by an error each, without a step."""
    path.write_text("".join(json.dumps({"token_ids": []}) + "\n" for _ in range(6)))
    return path


FILES: dict[str, Callable[[hybridlm.LM, Path, Path], Any]] = {
    "score": lambda lm, source, output: lm.score_file(source, output, window=2),
    "embed": lambda lm, source, output: lm.embed_file(source, output, window=2),
    "decide": lambda lm, source, output: lm.decide_file(source, output, window=2),
    "batch": lambda lm, source, output: lm.batch_file(source, output, window=2),
}


@pytest.mark.parametrize("kind", FILES)
def test_parts_of_an_output(lm: hybridlm.LM, other: hybridlm.LM, tmp_path: Path, kind: str) -> None:
    run, source, output = FILES[kind], lines(tmp_path / "in.jsonl"), tmp_path / "out.jsonl"
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        stop_after_parts(patch)
        run(lm, source, output)
    with pytest.raises(ValueError, match=r"parts of a run with another input, model or setting \(model: "):
        run(other, source, output)
    assert run(lm, source, output).kept == 2


SMALL_FILES: dict[str, tuple[str, Callable[[Path, Path], Path]]] = {
    "configuration": ("model", lambda base, to: with_json(base, to, "config.json", rms_norm_eps=1e-5)),
    "end token of config.json": ("model", lambda base, to: with_json(base, to, "config.json", eos_token_id=7)),
    "end token": ("end tokens", lambda base, to: with_json(base, to, "generation_config.json", eos_token_id=7)),
    "tokenizer": ("tokenizer", with_tokenizer),
    "template": ("chat templates", lambda base, to: with_json(base, to, "tokenizer_config.json", chat_template="x")),
}


@pytest.mark.parametrize("kind", SMALL_FILES)
def test_small_files_that_change_results(lm: hybridlm.LM, base: Path, tmp_path: Path, kind: str) -> None:
    field, change = SMALL_FILES[kind]
    actual, expected = (
        hybridlm.load(change(base, tmp_path / "m"), **SETTINGS).text_model.origin(),
        lm.text_model.origin(),
    )
    assert field in {name for name in expected if actual[name] != expected[name]}


@pytest.mark.slow
def test_files_are_not_read_to_generate(base: Path, text_lm: hybridlm.LM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefix-cache states are compared with their model's fingerprint."""

    def unexpected(*arguments: Any) -> str:
        raise AssertionError("the weights were read a second time")

    monkeypatch.setattr("hybridlm.files.atomic.SETTLED_NS", 0)
    monkeypatch.setattr("hybridlm.checkpoint.fingerprint.checkpoint_fingerprint", unexpected)
    lm = load_with_steps(text_lm, base, prefix_cache="600kB")
    prefix = lm.prefix(PROMPT[:9])
    lm.generate([PROMPT, PROMPT], max_tokens=2)
    lm.generate([PROMPT[9:]], prefix=prefix, max_tokens=2)
    assert lm.stats["prefix_hits"]


def test_a_model_of_files_that_changed_is_neither_saved_nor_merged_into(
    base: Path, text_lm: hybridlm.LM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hybridlm.files.atomic.SETTLED_NS", 0)
    lm = load_with_steps(text_lm, copied(base, tmp_path / "m"))
    prefix = lm.prefix(PROMPT)
    prefix_of_new = load_with_steps(text_lm, with_row(base, tmp_path / "new")).prefix(PROMPT)
    shutil.copyfile(tmp_path / "new" / "model.safetensors", tmp_path / "m" / "model.safetensors")
    for use in (lambda: lm.save(tmp_path / "saved"), lambda: lm.merge_adapter(tmp_path)):
        with pytest.raises(CheckpointError, match="has changed since it was loaded"):
            use()
    lm.generate([[5]], prefix=prefix, max_tokens=1)
    with pytest.raises(ValueError, match="model: expected"):
        lm.generate([[5]], prefix=prefix_of_new, max_tokens=1)


@pytest.mark.slow
def test_packed_weights(base: Path, tmp_path: Path) -> None:
    """One scale differs; and the same weights, packed or dequantised."""
    settings = {**SETTINGS, "dtype": "bfloat16"}
    run_command("quantise", base, tmp_path / "one", "--scheme", "int8", "--head")
    copied(tmp_path / "one", tmp_path / "two")
    tensors = load_file(tmp_path / "two" / "model.safetensors")
    name = max((name for name in tensors if name.endswith("_scale")), key=lambda name: tensors[name].size)
    tensors[name].reshape(-1)[tensors[name].size // 2] *= 2
    save_file(tensors, tmp_path / "two" / "model.safetensors")
    first, second = (hybridlm.load(tmp_path / folder, **settings) for folder in ("one", "two"))
    plain = hybridlm.load(tmp_path / "one", dequantise="bfloat16", **settings)
    assert first._weights.packed and not plain._weights.packed
    assert len({first.fingerprint, second.fingerprint, plain.fingerprint}) == 3
    assert plain.engine.kind.dtype == first.engine.kind.dtype
    for path, lm in (("saved", first), ("saved plain", plain)):
        lm.save(tmp_path / path)
        assert hybridlm.load(tmp_path / path, **settings).fingerprint == lm.fingerprint
    repeat = hybridlm.load(tmp_path / "saved", dequantise="bfloat16", **settings)
    assert repeat.fingerprint not in (first.fingerprint, second.fingerprint)


def test_a_tensor_of_an_adapter(base: Path, tmp_path: Path) -> None:
    calls = [hybridlm.load(base, **SETTINGS).fingerprint]
    module = "base_model.model.model.layers.0.mlp.down_proj"
    out, into = load_file(base / "model.safetensors")["model.layers.0.mlp.down_proj.weight"].shape
    for change in (0.0, 1.0):
        adapter = tmp_path / f"adapter {change}"
        adapter.mkdir()
        down, up = np.ones((2, into), np.float32), np.ones((out, 2), np.float32)
        up[out // 2, 1] += np.float32(change)
        (adapter / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 3}))
        save_file(
            {f"{module}.lora_A.weight": down, f"{module}.lora_B.weight": up}, adapter / "adapter_model.safetensors"
        )
        calls.append(hybridlm.load(base, adapter=adapter, **SETTINGS).fingerprint)
    assert len(set(calls)) == 3
