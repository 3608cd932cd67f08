"""Decisions: the numbers of `forward`, alone and in batches; shared states; continued files."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
import tokenizers
from decision_checkpoint import TOGETHER, write_jev
from filled import nan_token
from patched_functions import plant_fault
from text_checkpoint import SETTINGS, load_with_steps

import hybridlm
from hybridlm.checkpoint import CheckpointError
from hybridlm.decision_models.decide import Decider
from hybridlm.decision_models.settings import read_settings
from hybridlm.text import Tokenizer
from models import ConfigError

QUESTIONS: dict[str, Any] = {
    "tone": {"type": "choice", "instructions": "Tone?", "criteria": {"calm": None, "pushy": "presses"}},
    "urgent": {"type": "score", "instructions": "Now?", "criteria": ["later", "week", "today"]},
    "spam": {"type": "noul", "instructions": "Spam?", "criteria": {"true": "an ad", "false": None}},
}
LABELS = {"noul": ["T", "F"]}
REQUESTS = [{"state": f"message {i}: {'win a phone ' * (i % 4)}", "questions": QUESTIONS} for i in range(7)]


def copied(text_lm: hybridlm.LM, directory: Path, **files: Any) -> Path:
    shutil.copytree(text_lm.path, directory)
    for name, content in files.items():
        (directory / f"{name}.json").write_text(json.dumps(content))
    return directory


@pytest.fixture(scope="module")
def lm(text_lm: hybridlm.LM, tmp_path_factory: pytest.TempPathFactory) -> hybridlm.LM:
    """The small model, with labels that are tokens of it, and temperatures."""
    settings = {"labels": LABELS, "temperature": {"choice": 0.5}}
    path = copied(text_lm, tmp_path_factory.mktemp("decide") / "model", decision=settings)
    return load_with_steps(text_lm, path)


def bits(result: Sequence[dict[str, hybridlm.Answer]]) -> list[Any]:
    return [{name: list(answer.probabilities.items()) for name, answer in mapping.items()} for mapping in result]


@pytest.mark.slow
def test_scores_are_the_logits_of_labels(lm: hybridlm.LM) -> None:
    (prompts,) = [lm.text_model.decider().encode(REQUESTS[2])]
    actual = lm.decide(**REQUESTS[2])
    assert list(actual) == list(QUESTIONS)
    labels = {"tone": "AB", "urgent": "ABC", "spam": "TF"}
    for prompt, (name, answer) in zip(prompts, actual.items(), strict=True):
        logits = np.asarray(lm.forward([list(prompt.token_ids)]).logits[0, -1], np.float64)
        assert lm.tokenizer is not None
        chosen = logits[[lm.tokenizer.token_to_id(label) or 0 for label in labels[name]]]
        expected = jax.nn.softmax(chosen / (0.5 if name == "tone" else 1.0))
        np.testing.assert_allclose(list(answer.probabilities.values()), expected, atol=1e-5)


@pytest.mark.slow
def test_a_request_alone_and_in_any_batch(lm: hybridlm.LM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every batch gives the same bits; the state of several questions is read once."""
    joint = bits(lm.decide_requests(REQUESTS))
    assert bits([lm.decide(**request) for request in REQUESTS]) == joint
    assert bits(lm.decide_requests(REQUESTS[::-1]))[::-1] == joint
    assert bits(lm.decide_requests([REQUESTS[5], *REQUESTS[3:5]])) == [joint[5], *joint[3:5]]
    settings = dict(lm.stats)
    long = {"state": "a long story " * 8, "questions": QUESTIONS}
    shared = bits(lm.decide_requests([long]))
    gained = {name: lm.stats[name] - settings[name] for name in settings}
    tokens = sum(len(prompt.token_ids) for prompt in lm.text_model.decider().encode(long))
    assert gained["scored_tokens"] + gained["prefix_tokens_saved"] == tokens
    assert gained["prefix_tokens_saved"] > tokens / 3
    monkeypatch.setattr("hybridlm.engine.reading.max_states", lambda lanes: 0)
    assert bits(lm.decide_requests([long])) == shared


def test_wrong_questions_are_refused(lm: hybridlm.LM, text_lm: hybridlm.LM) -> None:
    with pytest.raises(ValueError, match=r"^requests\[1\]: questions\['x'\]: "):
        lm.decide_requests([REQUESTS[0], {"state": "", "questions": {"x": {"type": "choice"}}}])
    with pytest.raises(ValueError, match=r"^requests\[0\]: the prompt of 'spam': has \d+ tokens"):
        lm.decide("a" * 300, {"spam": QUESTIONS["spam"]})
    with pytest.raises(TypeError, match="^requests: "):
        lm.decide_requests(REQUESTS[0])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"questions\['spam'\]: .*'Yes', 'No' are not"):
        text_lm.decide("x", QUESTIONS)
    assert lm.decide_requests([]) == []


def test_labels_are_distinct_single_tokens(text_lm: hybridlm.LM, tmp_path: Path) -> None:
    for name, labels in {"same": ["A", "A"], "none": ["A", "~"], "long": ["A", "BC"]}.items():
        lm = hybridlm.load(copied(text_lm, tmp_path / name, decision={"labels": {"noul": labels}}), **SETTINGS)
        with pytest.raises(ValueError, match="distinct single tokens"):
            lm.decide("x", {"q": {"type": "noul"}})


def test_nan_stops_the_call(lm: hybridlm.LM, tmp_path: Path) -> None:
    assert lm.tokenizer is not None
    token = lm.tokenizer.token_to_id("@")
    assert token is not None
    requests = [{"id": i, "state": state, "questions": QUESTIONS} for i, state in enumerate(["a", "@", "b"])]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(request) + "\n" for request in requests))
    with nan_token(lm, token):
        with pytest.raises(hybridlm.NumericalError, match=r"requests\[1\]: "):
            lm.decide_requests([{"state": request["state"], "questions": QUESTIONS} for request in requests])
        assert lm.decide_file(tmp_path / "in.jsonl", tmp_path / "out.jsonl").errors == 1
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert ["error" in row for row in rows] == [False, True, False] and rows[1]["error"].startswith("line 2: ")


def test_files(lm: hybridlm.LM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers in input order, errors for wrong requests; stopped and continued."""
    entries = [{"id": i, **request} for i, request in enumerate(REQUESTS)]
    wrong = [{"id": "a", "state": "x"}, {"id": "b", "state": "", "questions": {"q": {"type": "rank"}}}]
    lines = [json.dumps(item) for item in (*entries[:2], *wrong, *entries[2:])]
    (tmp_path / "in.jsonl").write_text("".join(f"{line}\n" for line in [*lines, "no json"]))
    full = lm.decide_file(tmp_path / "in.jsonl", tmp_path / "whole.jsonl", window=3)
    assert (full.texts, full.errors, full.kept) == (7, 3, 0) and full.prefix_tokens_saved > 0
    calls: list[int] = []

    def interrupting(read_hidden: Any) -> Any:
        def interrupted(*args: Any, **options: Any) -> Any:
            calls.append(len(args[1]))
            if len(calls) == 3:
                raise KeyboardInterrupt
            return read_hidden(*args, **options)

        return interrupted

    plant_fault(monkeypatch, "hybridlm.text_model.read_hidden", interrupting)
    with pytest.raises(KeyboardInterrupt):
        lm.decide_file(tmp_path / "in.jsonl", tmp_path / "out.jsonl", window=3)
    monkeypatch.undo()
    settings = {"labels": LABELS, "temperature": {"choice": 0.6}}
    other = hybridlm.load(copied(lm, tmp_path / "other", decision=settings), **SETTINGS)
    with pytest.raises(ValueError, match="decisions"):
        other.decide_file(tmp_path / "in.jsonl", tmp_path / "out.jsonl", window=3)
    report = lm.decide_file(tmp_path / "in.jsonl", tmp_path / "out.jsonl", window=3)
    assert (report.texts, report.errors, report.kept, report.tokens) == (7, 3, 6, full.tokens)
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["id"] for row in rows] == [0, 1, "a", "b", 2, 3, 4, 5, 6, None]
    errors = {i: row["error"] for i, row in enumerate(rows) if "error" in row}
    assert list(errors) == [2, 3, 9] and errors[3].startswith("line 4: questions['q']: ")
    answers = [row["answers"] for row in rows if "answers" in row]
    expected = lm.decide_requests(REQUESTS)
    assert answers == [{name: answer.to_dict() for name, answer in mapping.items()} for mapping in expected]
    for input, output in (("in.jsonl", "out.parquet"), ("in.parquet", "out.jsonl"), ("in.txt", "out.jsonl")):
        with pytest.raises(ValueError, match="jsonl|JSON lines"):
            lm.decide_file(tmp_path / input, tmp_path / output)


def jev(text_lm: hybridlm.LM, directory: Path, **fields: Any) -> Path:
    copied(text_lm, directory)
    write_jev(directory, text_lm.config.hidden_size, **fields)
    return directory


@pytest.mark.slow
def test_a_jev_head_needs_no_vocabulary_head(text_lm: hybridlm.LM, tmp_path: Path) -> None:
    """The head's files alone define the model; a saved copy needs no vocabulary head."""
    from safetensors.numpy import load_file, save_file

    lm = hybridlm.load(jev(text_lm, tmp_path / "jev", softcap=3.0), **SETTINGS)
    result = bits(lm.decide_requests(REQUESTS))
    lm.save(tmp_path / "saved")
    assert bits(hybridlm.load(tmp_path / "saved", **SETTINGS).decide_requests(REQUESTS)) == result
    weights = tmp_path / "jev" / "model.safetensors"
    tensors = {name: item for name, item in load_file(weights).items() if "lm_head" not in name}
    assert len(tensors) < len(load_file(weights))
    save_file(tensors, weights)
    bare = hybridlm.load(tmp_path / "jev", **SETTINGS)
    assert bits(bare.decide_requests(REQUESTS)) == result
    with pytest.raises(ValueError, match="vocabulary head"):
        bare.generate(["a"])


@pytest.mark.slow
def test_a_jev_model_that_transformers_saved_is_the_same(text_lm: hybridlm.LM, tmp_path: Path) -> None:
    """The head among the tensors, with the model's configuration inside its own."""
    from safetensors.numpy import load_file, save_file

    path = jev(text_lm, tmp_path / "jev", softcap=3.0)
    expected = bits(hybridlm.load(path, **SETTINGS).decide_requests(REQUESTS))
    settings = read_settings(path, text_lm.config.hidden_size)
    (path / "decision_template.jinja").write_text(settings.template or "")
    message = {"labels": {k: list(v) for k, v in settings.labels.items()}, "temperature": dict(settings.temperature)}
    (path / "decision.json").write_text(json.dumps(message | {"noul_options": ["false", "true"]}))
    tensors = load_file(path / "model.safetensors") | load_file(path / "head.safetensors")
    save_file({name: tensor for name, tensor in tensors.items() if "lm_head" not in name}, path / "model.safetensors")
    for name in ("judge_config.json", "calibration.json", "head.safetensors"):
        (path / name).unlink()
    below = json.loads((path / "config.json").read_text())
    config = {"model_type": "jev", "hidden_size": 1, "num_verbalizers": 24, "softcap": 3.0, "text_config": below}
    (path / "config.json").write_text(json.dumps(config))
    lm = hybridlm.load(path, **SETTINGS)
    assert bits(lm.decide_requests(REQUESTS)) == expected
    with pytest.raises(ValueError, match="vocabulary head"):
        lm.generate(["a"])
    (path / "config.json").write_text(json.dumps(config | {"text_config": below | {"is_causal": False}}))
    with pytest.raises(ConfigError, match="is_causal: expected true"):
        hybridlm.load(path, **SETTINGS)


@pytest.mark.slow
def test_the_adapter_of_a_jev_model(text_lm: hybridlm.LM, tmp_path: Path) -> None:
    path = jev(text_lm, tmp_path / "jev", adapter_subfolder="adapter")
    with pytest.raises(CheckpointError, match="adapter: expected the LoRA adapter"):
        hybridlm.load(path, **SETTINGS)
    without = hybridlm.load(path, adapter=False, **SETTINGS)
    write_adapter(text_lm, path / "adapter")
    lm = hybridlm.load(path, **SETTINGS)
    assert bits(lm.decide_requests(REQUESTS[:1])) != bits(without.decide_requests(REQUESTS[:1]))
    with pytest.raises(ValueError, match="^adapter: "):
        hybridlm.load(path, adapter=text_lm.path, **SETTINGS)


def write_adapter(text_lm: hybridlm.LM, directory: Path) -> None:
    """A LoRA of rank 1 on the last MLP."""
    from safetensors.numpy import load_file, save_file

    directory.mkdir()
    key = next(key for key in load_file(text_lm.path / "model.safetensors") if "layers.1" in key and "down_proj" in key)
    shape = load_file(text_lm.path / "model.safetensors")[key].shape
    module = f"base_model.model.{key.removesuffix('.weight')}"
    rng = np.random.default_rng(1)
    factors = {"A": (1, shape[1]), "B": (shape[0], 1)}
    tensors = {f"{module}.lora_{i}.weight": rng.normal(size=size).astype(np.float32) for i, size in factors.items()}
    save_file(tensors, directory / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 1, "lora_alpha": 1, "target_modules": ["down_proj"]}
    (directory / "adapter_config.json").write_text(json.dumps(config))


@pytest.mark.slow
def test_one_prompt_for_all_questions(text_lm: hybridlm.LM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Marks within common prefixes: the state and first questions are read once."""
    path = copied(text_lm, tmp_path / "model", decision={"labels": LABELS})
    (path / "decision_template.jinja").write_text(TOGETHER)
    lm = hybridlm.load(path, **SETTINGS)
    two = {name: QUESTIONS[name] for name in ("spam", "urgent")}
    requests = [{"state": "a story " * 6, "questions": item} for item in (two, {"spam": two["spam"]}, two)]
    result = bits(lm.decide_requests(requests))
    assert result[0] == result[2] and len(result[1]) == 1
    monkeypatch.setattr("hybridlm.engine.reading.max_states", lambda lanes: 0)
    assert bits(lm.decide_requests(requests)) == result


def test_a_head_that_is_not_implemented(text_lm: hybridlm.LM, tmp_path: Path) -> None:
    settings = {"codes": ["A"], "temperature": 1.0, "prompt": "d3", "attention_mode": "noncausal_full_attention"}
    lm = hybridlm.load(copied(text_lm, tmp_path / "model", decision_config=settings), **SETTINGS)
    with pytest.raises(CheckpointError, match="attention_mode"):
        lm.decide("x", QUESTIONS)
    assert lm.generate(["a"], max_tokens=1)


def test_another_tokenizer_encodes_the_next_prompts(lm: hybridlm.LM) -> None:
    """Prompts of earlier calls kept the first tokenizer."""
    assert lm.tokenizer is not None
    first, before = lm.tokenizer, lm.text_model.decider().encode(REQUESTS[0])
    content = json.loads((lm.path / "tokenizer.json").read_text())
    vocabulary = content["model"]["vocab"]
    vocabulary["e"], vocabulary["x"] = vocabulary["x"], vocabulary["e"]
    try:
        backend = tokenizers.Tokenizer.from_str(json.dumps(content))
        lm.tokenizer = Tokenizer(backend, first.special_tokens, first.chat_templates)
        after = lm.text_model.decider().encode(REQUESTS[0])
    finally:
        lm.tokenizer = first
    assert [len(prompt.token_ids) for prompt in after] == [len(prompt.token_ids) for prompt in before]
    assert [prompt.token_ids for prompt in after] != [prompt.token_ids for prompt in before]


class _Head:
    """A head with the scores of every question."""

    def __init__(self, scores: list[float]):
        self._scores = np.array(scores)

    def check(self, question: Any) -> None:
        pass

    def scores(self, vector: np.ndarray, question: Any) -> np.ndarray:
        return self._scores


@pytest.mark.parametrize("scores", [[np.nan, 0.0], [np.inf, 0.0]], ids=["nan", "inf"])
def test_scores_of_a_head_are_checked(text_lm: hybridlm.LM, scores: list[float]) -> None:
    """Vectors are finite, but a row of the head is not."""
    prompts: Any = text_lm.text_model.prompts
    read: Any = SimpleNamespace(vectors=np.zeros((1, 4), np.float32), first_wrong=None)
    head: Any = _Head(scores)
    decider = Decider(prompts, head, lambda ids, places: [read], text_lm.text_model.text_inputs)
    (prompt,) = prompts.read({"state": "x", "questions": {"q": {"type": "noul"}}})
    assert decider.answers([[prompt]]) == [prompt.places[0]]
