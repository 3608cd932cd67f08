"""A family is one file and one registry line: the one of docs/adding-a-family.md loads, scores and generates."""

import ast
import importlib.util
import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import hybridlm
import hybridlm.pictures
from hybridlm.engine.speculation import Speculation
from hybridlm.engine.warmup import all_shapes
from hybridlm.programs.sanitized import Sanitizer
from hybridlm.programs.shapes import Shape
from ir_passes import AuditError, Certificate, CertificationWarning
from ir_passes.contract.statements import MeasuredClaim, MeasuredFault, NotCovered
from models import FAMILIES
from models.families import registry
from models.state.state import Stateful

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


@pytest.mark.slow
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


class Guesses:
    """Drafts of which the first is the token that follows, and the others are wrong."""

    def __init__(self, texts: list[list[int]]):
        self.texts = texts

    def propose(self, token_ids: Sequence[int], k: int) -> list[int]:
        """Return the next token of the text that begins so, and others that do not follow."""
        (text,) = (text for text in self.texts if text[: len(token_ids)] == list(token_ids))
        right = text[len(token_ids) : len(token_ids) + k]
        return [token if i == 0 else (token + 1) % CONFIG["vocab_size"] for i, token in enumerate(right)]


REPEATING = [[5, 9, 3, 7, 5, 9, 3, 7, 5, 9], [10, 12, 10, 12, 10], [1]]
SETTINGS: dict[str, Any] = {"max_tokens": 12, "ignore_eos": True, "logprobs": 0}


@pytest.mark.slow
@pytest.mark.parametrize("drafter", ["ngram", "guesses"])
def test_speculates(lm: hybridlm.LM, drafter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens and log-probabilities are those without drafts, of which some are rejected."""
    monkeypatch.setattr(Speculation, "always", True)
    want = lm.generate(REPEATING, speculate=None, **SETTINGS)
    texts = [[*one.prompt_token_ids, *one.token_ids] for one in want]
    before = dict(lm.stats)
    found = lm.generate(REPEATING, speculate="ngram" if drafter == "ngram" else Guesses(texts), **SETTINGS)
    assert (
        lm.stats["drafted_tokens"] - before["drafted_tokens"] > lm.stats["accepted_tokens"] - before["accepted_tokens"]
    )
    for drafted, plain in zip(found, want, strict=True):
        assert drafted.token_ids == plain.token_ids
        np.testing.assert_allclose(logprobs_of(drafted), logprobs_of(plain), atol=1e-5)
    (verified,) = (certificate for name, certificate in lm.certificates.items() if name.startswith("verify"))
    assert verified.holds and [claim.id for claim in verified.measured] == [MeasuredClaim.ACCEPTED_TOKENS_ONLY]
    assert Certificate.from_json(verified.to_json()) == verified


def logprobs_of(completion: hybridlm.Completion) -> list[float]:
    assert completion.logprobs is not None
    return list(completion.logprobs)


def test_family_without_commit_does_not_speculate(
    lm: hybridlm.LM, family: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused when it is loaded and when it generates; all else works, and there is no step to verify."""
    monkeypatch.setattr(family.Average, "commit", Stateful.commit)
    for refused in (
        lambda: hybridlm.load(lm.path, lanes=2, context=64, chunk=4, speculate="ngram"),
        lambda: lm.generate(PROMPTS, max_tokens=2, speculate="ngram"),
    ):
        with pytest.raises(ValueError, match=r"speculate: .*commit\(kept, info, state\).*averages\.Average"):
            refused()
    assert not [shape for shape in all_shapes(lm.engine, drafts=True) if str(shape).startswith("verify")]
    with pytest.raises(NotImplementedError, match="Average has state and no commit"):
        lm.engine.planned(Shape("verify", 2, 3))


def of_all_drafts(family: ModuleType, patch: pytest.MonkeyPatch) -> None:
    """The layer commits the state after all tokens of the step: the one that the default used to keep."""
    call = family.Average.__call__
    patch.setattr(family.Average, "commit", lambda self, kept, info, state: kept)
    patch.setattr(
        family.Average, "__call__", lambda self, x, info, state: call(self, x, info._replace(verifying=False), state)
    )


@pytest.mark.parametrize("sanitize", [False, True])
def test_wrong_commit_is_refused(
    lm: hybridlm.LM, family: ModuleType, sanitize: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_all_drafts(family, monkeypatch)
    wrong = hybridlm.load(lm.path, lanes=2, context=64, chunk=4, speculate="ngram", sanitize=sanitize)
    shape = Shape("verify", 2, 3)
    with pytest.raises(AuditError) as raised:
        if isinstance(wrong.engine.runner, Sanitizer):
            wrong.engine.runner.program(shape, wrong.engine.example_arguments)
        else:
            wrong.engine.program(shape)
    assert [(one.kind, one.where) for one in raised.value.findings] == [
        (MeasuredFault.REJECTED_TOKENS, "Average.average")
    ]


def test_wrong_commit_is_warned_of(lm: hybridlm.LM, family: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    of_all_drafts(family, monkeypatch)
    wrong = hybridlm.load(lm.path, lanes=2, context=64, chunk=4, certify="warn")
    with pytest.warns(CertificationWarning, match=MeasuredFault.REJECTED_TOKENS):
        certificate = wrong.engine.program(Shape("verify", 1, 3)).certificate
    assert not certificate.holds and [one.id for one in certificate.faults] == [MeasuredFault.REJECTED_TOKENS]
    assert not certificate.measured
    assert NotCovered.ACCEPTED_TOKENS_ONLY in {one.id for one in certificate.not_covered}


def test_requests_that_need_other_layers_are_refused_by_name(lm: hybridlm.LM) -> None:
    with pytest.raises(ValueError, match="no state named recurrent or conv"):
        lm.score(PROMPTS, states=True)
    with pytest.raises(ValueError, match="an array named recurrent"):
        hybridlm.pictures.state_history(lm, PROMPTS[0])
    with pytest.raises(ValueError, match="head"):
        hybridlm.load(lm.path, lanes=2, context=64, chunk=4, speculate="mtp")


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [{"prefix_cache": "200kB"}, {"sanitize": True}, {"mesh": 2}, {"saved": True}, {"chunk": 1}, {"speculate": "ngram"}],
    ids=str,
)
def test_answers_are_the_same_with(
    lm: hybridlm.LM, settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """States that are cached, labelled, on two devices, read from a saved model, of chunks of one token, or drafted."""
    monkeypatch.setattr(Speculation, "always", True)
    directory = lm.path
    if settings.pop("saved", False):
        directory = tmp_path / "saved"
        lm.save(directory)
    if "mesh" in settings:
        settings["mesh"] = hybridlm.mesh(data=settings["mesh"])
    arguments: dict[str, Any] = {"lanes": 2, "context": 64, "chunk": 4} | settings
    other = hybridlm.load(directory, **arguments)
    for _ in range(2):
        want, found = (one.generate(REPEATING, **SETTINGS) for one in (lm, other))
        assert [one.token_ids for one in found] == [one.token_ids for one in want]
    if "prefix_cache" in settings:
        assert other.stats["prefix_tokens_saved"] > 0


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
