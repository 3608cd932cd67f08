"""A family in another package: the one of docs/adding-a-family.md, found by its entry point."""

import ast
import importlib
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from installed_families import families_as_installed
from random_traffic import Known
from safetensors.numpy import save_file

import hybridlm
import hybridlm.pictures
from hybridlm.compiler.statements import MeasuredClaim, MeasuredFault
from hybridlm.families import Stateful
from ir_passes import AuditError, Certificate, CertificationWarning, NotCovered, Note
from models import FAMILIES

CONFIG: dict[str, Any] = {
    "model_type": "gated_deltaproduct", "architectures": ["GatedDeltaProductForCausalLM"], "vocab_size": 14,
    "hidden_size": 16, "intermediate_size": 24, "num_heads": 2, "head_dim": 4, "expand_v": 1.5, "num_householder": 2,
    "allow_neg_eigval": True, "num_hidden_layers": 2, "max_position_embeddings": 256, "dtype": "float32",
}  # fmt: skip


@pytest.fixture(scope="module")
def package(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page's package as installed: the module, and metadata with entry points."""
    page = (root / "docs" / "adding-a-family.md").read_text()
    (example,) = re.findall(r"^```python\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    (project,) = re.findall(r"^```toml\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    fields = tomllib.loads(project)["project"]
    folder = tmp_path_factory.mktemp("site")
    (folder / "gated_deltaproduct.py").write_text(example)
    info = folder / "gated_deltaproduct-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {fields['name']}\nVersion: {fields['version']}\n")
    ((group, entries),) = fields["entry-points"].items()
    lines = [f"{name} = {value}" for name, value in entries.items()]
    (info / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines, ""]))
    return folder


@pytest.fixture(scope="module")
def family(package: Path) -> Iterator[ModuleType]:
    """The module of the page, installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(package)
        with families_as_installed():
            yield importlib.import_module("gated_deltaproduct")
    del sys.modules["gated_deltaproduct"]


@pytest.fixture(scope="module")
def lm(family: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> hybridlm.LM:
    """A checkpoint with random weights, of a family that hybridlm finds by its entry point."""
    directory = tmp_path_factory.mktemp("gated_deltaproduct")
    (directory / "config.json").write_text(json.dumps(CONFIG))
    rng = np.random.default_rng(0)
    tensors = {}
    for weight in family.weights(family.read_config(CONFIG)):
        for name, shape in weight.options[0].shapes.items():
            spread = (
                rng.uniform(0.5, 1.5, shape) if len(shape) == 1 else rng.normal(size=shape) * 1.5 / shape[-1] ** 0.5
            )
            tensors[name] = spread.astype(np.float32)
    save_file(tensors, directory / "model.safetensors")
    return hybridlm.load(directory, lanes=2, context=64, chunk=4)


def in_float64(lm: hybridlm.LM, tokens: list[int]) -> np.ndarray:
    """Log-probabilities [T, V] by the equations, token by token and write by write."""
    p = {name: np.asarray(value, np.float64) for name, value in lm.params.items()}
    heads, key, writes = CONFIG["num_heads"], CONFIG["head_dim"], CONFIG["num_householder"]
    value = int(key * CONFIG["expand_v"])
    normed = lambda x, weight: x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * weight
    sigmoid = lambda x: 1 / (1 + np.exp(-x))
    unit = lambda x: x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6)

    def mixed(x: np.ndarray, path: str) -> np.ndarray:
        taps = p[f"{path}.conv1d"][:, 0].T
        inputs = np.concatenate([np.zeros((len(taps) - 1, taps.shape[1])), x @ p[f"{path}.in_proj"].T])
        summed = np.array([(inputs[t : t + len(taps)] * taps).sum(0) for t in range(len(x))])
        channels = summed * sigmoid(summed)
        decay = np.exp(-np.exp(p[f"{path}.A_log"]) * np.log1p(np.exp(x @ p[f"{path}.a_proj"].T + p[f"{path}.dt_bias"])))
        beta = 2 * sigmoid(x @ p[f"{path}.b_proj"].T).reshape(len(x), writes, heads, 1, 1)
        states, out = np.zeros((heads, value, key)), []
        for t in range(len(x)):
            q, k, v = np.split(channels[t], [heads * key, (1 + writes) * heads * key])
            k, v = unit(k.reshape(writes, heads, 1, key)), v.reshape(writes, heads, value, 1)
            states = decay[t][:, None, None] * states
            for j in range(writes):
                states = states + beta[t, j] * (v[j] - (states * k[j]).sum(-1, keepdims=True)) * k[j]
            out.append((states * unit(q.reshape(heads, 1, key)) * key**-0.5).sum(-1))
        gate = (x @ p[f"{path}.g_proj"].T).reshape(len(x), heads, value)
        gated = normed(np.array(out), p[f"{path}.o_norm"]) * gate * sigmoid(gate)
        return gated.reshape(len(x), -1) @ p[f"{path}.o_proj"].T

    x = p["embed_tokens"][tokens]
    for i in range(CONFIG["num_hidden_layers"]):
        mixer, mlp = (f"layers.{i}.branches.{j}" for j in range(2))
        x = x + mixed(normed(x, p[f"{mixer}.norm.weight"]), f"{mixer}.inner")
        h = normed(x, p[f"{mlp}.norm.weight"])
        gate, up = h @ p[f"{mlp}.inner.gate_proj"].T, h @ p[f"{mlp}.inner.up_proj"].T
        x = x + (gate * sigmoid(gate) * up) @ p[f"{mlp}.inner.down_proj"].T
    logits = normed(x, p["norm.weight"]) @ p["lm_head"].T
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
        for result in completion.token_ids:
            best = in_float64(lm, tokens)[-1]
            assert best[result] > best.max() - 1e-4
            tokens.append(result)
    assert lm.certificates
    for certificate in lm.certificates.values():
        assert certificate.holds and not [pool.path for pool in certificate.pools if pool.copies]


REPEATING = [[5, 9, 3, 7, 5, 9, 3, 7, 5, 9], [10, 12, 10, 12, 10], [1]]
SETTINGS: dict[str, Any] = {"max_tokens": 12, "ignore_eos": True, "logprobs": 0}


@pytest.mark.slow
@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("drafter", ["ngram", "guesses"])
def test_speculates(lm: hybridlm.LM, drafter: str) -> None:
    """Tokens and log-probabilities equal those without drafts; some drafts are rejected."""
    want = lm.generate(REPEATING, speculate=None, **SETTINGS)
    extra = dict(lm.stats)
    completions = lm.generate(REPEATING, speculate="ngram" if drafter == "ngram" else Known(want, (6,)), **SETTINGS)
    assert lm.stats["drafted_tokens"] - extra["drafted_tokens"] > lm.stats["accepted_tokens"] - extra["accepted_tokens"]
    for drafted, plain in zip(completions, want, strict=True):
        assert drafted.token_ids == plain.token_ids
        np.testing.assert_allclose(logprobs_of(drafted), logprobs_of(plain), atol=1e-5)
    (verified,) = (certificate for name, certificate in lm.certificates.items() if name.startswith("verify"))
    assert verified.holds and [claim.id for claim in verified.measured] == [MeasuredClaim.ACCEPTED_TOKENS_ONLY]
    assert Certificate.from_json(verified.to_json()) == verified


def logprobs_of(completion: hybridlm.Completion | hybridlm.Score) -> list[float]:
    assert completion.logprobs is not None
    return list(completion.logprobs)


def test_family_without_commit_does_not_speculate(lm: hybridlm.LM, family: ModuleType, monkeypatch: pytest.MonkeyPatch):
    """Refusal at load and generation; everything else works without a verifying step."""
    monkeypatch.setattr(family.DeltaProduct, "commit", Stateful.commit)
    for refused in (
        lambda: hybridlm.load(lm.path, lanes=2, context=64, chunk=4, speculate="ngram"),
        lambda: lm.generate(PROMPTS, max_tokens=2, speculate="ngram"),
    ):
        with pytest.raises(ValueError, match=r"speculate: .*commit\(kept, info, state\).*\.DeltaProduct"):
            refused()
    assert not [name for name in lm.warmup() if name.startswith("verify")]
    with pytest.raises(NotImplementedError, match="DeltaProduct has state and no commit"):
        lm.engine.planned(lm.engine.shape("verify", 2, 3))


def of_all_drafts(family: ModuleType, patch: pytest.MonkeyPatch) -> None:
    """Commit the state after all tokens of the step, as an earlier default did."""
    call = family.DeltaProduct.__call__
    patch.setattr(family.DeltaProduct, "commit", lambda self, saved, info, state: saved)
    patch.setattr(
        family.DeltaProduct,
        "__call__",
        lambda self, x, info, state: call(self, x, info._replace(verifying=False), state),
    )


@pytest.mark.parametrize("sanitize", [False, True])
def test_wrong_commit_is_refused(lm: hybridlm.LM, family: ModuleType, sanitize: bool, monkeypatch: pytest.MonkeyPatch):
    of_all_drafts(family, monkeypatch)
    wrong = hybridlm.load(lm.path, lanes=2, context=64, chunk=4, speculate="ngram", sanitize=sanitize)
    shape = wrong.engine.shape("verify", 2, 3)
    with pytest.raises(AuditError) as raised:
        if sanitize:
            runner: Any = wrong.engine.runner
            runner.program(shape, wrong.engine.example_arguments)
        else:
            wrong.engine.program(shape)
    assert [(finding.kind, finding.where) for finding in raised.value.findings] == [
        (MeasuredFault.REJECTED_TOKENS, f"DeltaProduct.{field}") for field in ("conv", "recurrent")
    ]


@pytest.mark.slow
def test_wrong_commit_is_warned_of(lm: hybridlm.LM, family: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    of_all_drafts(family, monkeypatch)
    wrong = hybridlm.load(lm.path, lanes=2, context=64, chunk=4, certify="warn")
    with pytest.warns(CertificationWarning, match=MeasuredFault.REJECTED_TOKENS):
        certificate = wrong.engine.program(wrong.engine.shape("verify", 1, 3, 1)).certificate
    assert not certificate.holds and {fault.id for fault in certificate.faults} == {MeasuredFault.REJECTED_TOKENS}
    assert not certificate.measured
    assert NotCovered.ACCEPTED_TOKENS_ONLY in {item.id for item in certificate.not_covered}


@pytest.mark.slow
def test_states_are_read_and_changed_by_role(lm: hybridlm.LM) -> None:
    """With zero states after four tokens, the rest scores like a new sequence."""
    (score,) = lm.score([PROMPTS[0]], states=True, positions="all")
    assert score.captured is not None
    assert score.captured.state(1).shape == (len(PROMPTS[0]), 2, 6, 4)
    assert score.captured.state(1, "conv").shape == (len(PROMPTS[0]), 3, 48)
    changes = [
        hybridlm.Intervention.scale_state(layer, 0.0, array=array, positions=3)
        for layer in range(2)
        for array in ("recurrent", "conv")
    ]
    (changed,) = lm.score([PROMPTS[0]], interventions=[changes])
    (rest,) = lm.score([PROMPTS[0][4:]])
    np.testing.assert_allclose(logprobs_of(changed)[5:], logprobs_of(rest)[1:], atol=1e-5)
    assert hybridlm.pictures.state_history(lm, PROMPTS[0]).norms.shape[1:] == (2, 2)


def test_certificates_name_the_distribution(lm: hybridlm.LM) -> None:
    assert lm.certificates
    for certificate in lm.certificates.values():
        (note,) = [note for note in certificate.notes if note.id == Note.OUTSIDE_CODE]
        assert "gated-deltaproduct 1.0" in note.sentence


def test_a_head_of_drafts_is_refused(lm: hybridlm.LM) -> None:
    with pytest.raises(ValueError, match="head"):
        hybridlm.load(lm.path, lanes=2, context=64, chunk=4, speculate="mtp")


def run_command(package: Path, *arguments: str) -> str:
    """Run a command of hybridlm next to the installed package, and return its standard output."""
    environment = os.environ | {"PYTHONPATH": str(package), "JAX_PLATFORMS": "cpu"}
    run = subprocess.run(
        [sys.executable, "-m", "hybridlm", *arguments], env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


@pytest.mark.slow
def test_two_processes_score(lm: hybridlm.LM, package: Path, tmp_path: Path) -> None:
    settings, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    settings.write_text("".join(json.dumps({"id": i, "token_ids": prompt}) + "\n" for i, prompt in enumerate(PROMPTS)))
    command = ["score", "--model", str(lm.path), str(settings), str(output), "--context", "64", "--chunk", "4"]
    run_command(package, "launch", "-n", "2", "--devices", "1", "--", *command)
    rows = {row["id"]: row for row in map(json.loads, output.read_text().splitlines())}
    for i, score in enumerate(lm.score(PROMPTS)):
        np.testing.assert_allclose(rows[i]["logprobs"][1:], score.logprobs[1:], atol=1e-5)


@pytest.mark.slow
def test_verify_names_the_distribution(lm: hybridlm.LM, package: Path, tmp_path: Path) -> None:
    arguments = ["--full", "--lanes", "2", "--context", "64", "--chunk", "4", "--out", str(tmp_path / "out")]
    run_command(package, "verify", "--model", str(lm.path), *arguments)
    certificates = list((tmp_path / "out").iterdir())
    assert certificates and all("gated-deltaproduct 1.0" in path.read_text() for path in certificates)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"prefix_cache": "200kB"}, {"sanitize": True}, {"mesh": True}, {"saved": True}, {"chunk": 1},
        {"speculate": "ngram"},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.usefixtures("always")
def test_answers_are_the_same_with(lm: hybridlm.LM, settings: dict[str, Any], tmp_path: Path) -> None:
    """Cached, labelled, sharded, saved, chunked by one token, or drafted states."""
    directory = lm.path
    if settings.pop("saved", False):
        directory = tmp_path / "saved"
        lm.save(directory)
    if "mesh" in settings:
        settings["mesh"] = hybridlm.mesh(data=2, model=2)
    arguments: dict[str, Any] = {"lanes": 2, "context": 64, "chunk": 4} | settings
    other = hybridlm.load(directory, **arguments)
    for _ in range(2):
        want, result = (item.generate(REPEATING, **SETTINGS) for item in (lm, other))
        assert [completion.token_ids for completion in result] == [completion.token_ids for completion in want]
    if "prefix_cache" in settings:
        assert other.stats["prefix_tokens_saved"] > 0


def test_faults_of_its_config_are_refused(family: ModuleType) -> None:
    with pytest.raises(ValueError, match="num_heads: expected a whole number of at least 1, found 0"):
        family.read_config(CONFIG | {"num_heads": 0})


@pytest.mark.slow
def test_nothing_outside_models_knows_a_family(root: Path) -> None:
    """No `model_type` string and no family import outside models, except in file formats."""
    names = {name for family in FAMILIES for name in (family.name, *family.model_types)}
    files = {family.read_config.__module__ for family in FAMILIES}
    assert "lfm2" in names and "models.families.lfm.lfm2" in files
    for folder in ("hybridlm", "ir_passes"):
        for path in (root / folder).rglob("*.py"):
            if path.parent.name == "gguf_files":
                continue  # llama.cpp's names of architectures are of a file format
            for node in ast.walk(ast.parse(path.read_text())):
                assert not (isinstance(node, ast.Constant) and node.value in names), path
                assert not (isinstance(node, ast.ImportFrom) and node.module in files), path
