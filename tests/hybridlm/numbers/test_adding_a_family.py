"""A family is one file and one registry line: the one of docs/adding-a-family.md loads, scores and generates."""

import ast
import importlib.util
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import hybridlm
from models import FAMILIES
from models.families import registry

CONFIG: dict[str, Any] = {
    "model_type": "averages",
    "vocab_size": 61,
    "hidden_size": 16,
    "intermediate_size": 24,
    "average_size": 12,
    "num_hidden_layers": 2,
    "max_position_embeddings": 256,
    "dtype": "float32",
}


@pytest.fixture(scope="module")
def family(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """The one file: the example of the page, as a module."""
    page = (root / "docs" / "adding-a-family.md").read_text()
    (example,) = re.findall(r"^```python\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    path = tmp_path_factory.mktemp("family") / "averages.py"
    path.write_text(example)
    spec = importlib.util.spec_from_file_location("averages", path)
    assert spec is not None and spec.loader is not None
    module = sys.modules["averages"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["averages"]


@pytest.fixture(scope="module")
def lm(family: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[hybridlm.LM]:
    """The one line, and a checkpoint with random weights."""
    directory = tmp_path_factory.mktemp("averages")
    (directory / "config.json").write_text(json.dumps(CONFIG))
    rng = np.random.default_rng(0)
    tensors = {}
    for weight in family.weights(family.read_config(CONFIG)):
        ((name, shape),) = weight.options[0].shapes.items()
        spread = rng.uniform(0.5, 1.5, shape) if len(shape) == 1 else rng.normal(size=shape) * 1.5 / shape[-1] ** 0.5
        tensors[name] = spread.astype(np.float32)
    save_file(tensors, directory / "model.safetensors")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "FAMILIES", (*FAMILIES, family.AVERAGES))
        yield hybridlm.load(directory, lanes=2, context=64, chunk=4)


def in_float64(lm: hybridlm.LM, tokens: list[int]) -> np.ndarray:
    """Log-probabilities [T, V] by the equations."""
    p = {name: np.asarray(value, np.float64) for name, value in lm.params.items()}

    def normed(x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * p[f"{name}.weight"]

    x = p["embed_tokens"][tokens]
    for i in range(CONFIG["num_hidden_layers"]):
        mixer, mlp = (f"layers.{i}.branches.{j}" for j in range(2))
        keep = 1 / (1 + np.exp(-p[f"{mixer}.inner.keep"]))
        average, seen = np.zeros(len(keep)), []
        for new in normed(x, f"{mixer}.norm") @ p[f"{mixer}.inner.in_proj"].T:
            average = keep * average + (1 - keep) * new
            seen.append(average)
        x = x + np.array(seen) @ p[f"{mixer}.inner.out_proj"].T
        h = normed(x, f"{mlp}.norm")
        gate, up = h @ p[f"{mlp}.inner.gate_proj"].T, h @ p[f"{mlp}.inner.up_proj"].T
        x = x + (gate / (1 + np.exp(-gate)) * up) @ p[f"{mlp}.inner.down_proj"].T
    logits = normed(x, "norm") @ p["embed_tokens"].T
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


PROMPTS = [[5, 9, 3, 7, 11, 2, 8, 4, 6], [10, 12], [1]]


def test_scores_as_its_equations_say(lm: hybridlm.LM) -> None:
    """Three prompts over two lanes, in chunks of four."""
    for prompt, score in zip(PROMPTS, lm.score(PROMPTS), strict=True):
        rows = in_float64(lm, prompt)[:-1]
        np.testing.assert_allclose(score.logprobs[1:], rows[np.arange(len(rows)), prompt[1:]], atol=1e-4)


def test_generates_with_certified_steps(lm: hybridlm.LM) -> None:
    for prompt, completion in zip(PROMPTS, lm.generate(PROMPTS, max_tokens=6, ignore_eos=True), strict=True):
        tokens = list(prompt)
        for found in completion.token_ids:
            best = in_float64(lm, tokens)[-1]
            assert best[found] > best.max() - 1e-4
            tokens.append(found)
    assert lm.certificates
    for certificate in lm.certificates.values():
        assert certificate.holds and not [pool.path for pool in certificate.pools if pool.copies]


def test_faults_of_its_config_are_refused(family: ModuleType) -> None:
    with pytest.raises(ValueError, match="average_size: expected a whole number of at least 1, found 0"):
        family.read_config(CONFIG | {"average_size": 0})


def test_nothing_outside_models_knows_a_family(root: Path) -> None:
    """No `model_type` in a string, no import of a family's file, but where a file format has names of its own."""
    names = {name for family in FAMILIES for name in (family.name, *family.model_types)}
    files = {family.read_config.__module__ for family in FAMILIES}
    assert "lfm2" in names and "models.families.lfm2" in files
    for folder in ("hybridlm", "ir_passes"):
        for path in (root / folder).rglob("*.py"):
            if path.parent.name == "gguf_files":
                continue  # llama.cpp's names of architectures are of a file format
            for node in ast.walk(ast.parse(path.read_text())):
                assert not (isinstance(node, ast.Constant) and node.value in names), path
                assert not (isinstance(node, ast.ImportFrom) and node.module in files), path
