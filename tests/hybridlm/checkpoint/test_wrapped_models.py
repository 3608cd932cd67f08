"""Multimodal models: the text model loads, other parts are reported, placeholders are refused."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from text_checkpoint import SETTINGS

import hybridlm
from hybridlm import LM, SamplingParams

PLACEHOLDER = 7
"""A character of the tokenizer, which stands for an image here."""


@pytest.fixture(scope="module")
def path(text_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same text model inside a MiniCPM-V 4.6."""
    folder = tmp_path_factory.mktemp("whole")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_text((text_path / name).read_text())
    inner = json.loads((text_path / "config.json").read_text())
    outer = {
        "architectures": ["MiniCPMV4_6ForConditionalGeneration"],
        "model_type": "minicpmv4_6",
        "image_token_id": PLACEHOLDER,
        "tie_word_embeddings": inner.get("tie_word_embeddings", False),
        "vision_config": {"hidden_size": 8},
        "text_config": inner | {"model_type": "qwen3_5_text", "architectures": ["Qwen3_5ForCausalLM"]},
    }
    (folder / "config.json").write_text(json.dumps(outer))
    tensors = load_file(text_path / "model.safetensors")
    tensors = {
        name.replace("model.", "model.language_model.", 1) if name.startswith("model.") else name: tensor
        for name, tensor in tensors.items()
    }
    for part in ("vision_tower.embeddings.weight", "merger.mlp.0.weight", "merger.mlp.0.bias"):
        tensors[f"model.{part}"] = np.zeros(3, np.float32)
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def lms(text_path: Path, path: Path) -> tuple[LM, LM, list[str]]:
    """The text model alone, inside the other one, and the warnings of the second load."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    lm = hybridlm.load(text_path, **SETTINGS)
    logging.getLogger("hybridlm").addHandler(handler)
    try:
        inner = hybridlm.load(path, **SETTINGS)
    finally:
        logging.getLogger("hybridlm").removeHandler(handler)
    return lm, inner, lines


@pytest.mark.slow
def test_the_text_model_computes_the_same(lms: tuple[LM, LM, list[str]]) -> None:
    lm, inner, _ = lms
    params = SamplingParams(temperature=0.0, max_tokens=8)
    prompts = [[9, 20, 11], list(range(30, 50))]
    first, second = lm.generate(prompts, params), inner.generate(prompts, params)
    assert [completion.token_ids for completion in first] == [completion.token_ids for completion in second]


def test_other_parts_are_reported_once(lms: tuple[LM, LM, list[str]]) -> None:
    lines = [line for line in lms[2] if "not used" in line]
    assert len(lines) == 1 and "3 tensors" in lines[0] and "vision_tower" in lines[0] and "merger" in lines[0]


USES: dict[str, Callable[[LM, Any], Any]] = {
    "generate": lambda lm, prompt: lm.generate([prompt], SamplingParams(max_tokens=1)),
    "score": lambda lm, prompt: lm.score([prompt]),
    "choose": lambda lm, prompt: lm.choose([9, 20], [prompt, [4]]),
    "choose after a prompt": lambda lm, prompt: lm.choose(prompt, [[9], [4]]),
    "prefix": lambda lm, prompt: lm.prefix(prompt),
    "perplexity": lambda lm, prompt: lm.perplexity([prompt]),
    "embed": lambda lm, prompt: lm.embed([prompt]),
    "forward": lambda lm, prompt: lm.forward(np.array(prompt)),
}


@pytest.mark.parametrize("use", USES)
def test_placeholders_are_refused(use: str, lms: tuple[LM, LM, list[str]]) -> None:
    with pytest.raises(ValueError, match=rf"\b{PLACEHOLDER}\b.*stands for an image"):
        USES[use](lms[1], [9, PLACEHOLDER, 11])


def test_a_placeholder_in_a_text_is_named(lms: tuple[LM, LM, list[str]]) -> None:
    lm, inner, _ = lms
    assert inner.tokenizer is not None
    character = inner.tokenizer.decode([PLACEHOLDER])
    with pytest.raises(ValueError, match="stands for an image") as caught:
        inner.generate([f"ab{character}"], SamplingParams(max_tokens=1))
    assert repr(character) in str(caught.value) and "index 2" in str(caught.value)
    lm.generate([f"ab{character}"], SamplingParams(max_tokens=1))
