"""Decisions against transformers' pipeline, one request at a time."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from decision_checkpoint import (
    QUESTIONS,
    REQUESTS,
    TOGETHER,
    UNSAFE,
    VOCAB_SIZE,
    write_decider,
    write_jev,
    write_tokenizer,
)

import hybridlm

pytestmark = pytest.mark.oracle
GOLDEN = Path(__file__).parents[1] / "golden"
SETTINGS: dict[str, Any] = {"lanes": 3, "context": 1024, "dtype": "float32", "chunk": 32}


def write_model(directory: Path, name: str) -> int:
    """A random model of a golden checkpoint's sizes; returns the width of its residual stream."""
    fields = {"architectures": None, "vocab_size": VOCAB_SIZE, "max_position_embeddings": 2048}
    config = transformers.AutoConfig.from_pretrained(GOLDEN / name, **fields)
    torch.manual_seed(5)
    auto: Any = transformers.AutoModelForCausalLM
    model = auto.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    model.save_pretrained(directory)
    write_tokenizer(directory)
    return config.hidden_size


def compare(directory: Path, requests: list[dict[str, Any]]) -> hybridlm.LM:
    """Compare answers, single and batched, with transformers."""
    # By its class: the pipeline's own choice first makes a model of the sizes that config.json leaves open.
    jev = any((directory / name).exists() for name in ("judge_config.json", "decision_config.json"))
    jev |= json.loads((directory / "config.json").read_text())["model_type"] == "jev"
    auto: Any = transformers.JevForDecision if jev else transformers.AutoModelForCausalLM
    model = auto.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    pipe: Any = transformers.pipeline("decision", model=model, tokenizer=tokenizer, device="cpu")
    expected = [pipe(request) for request in requests]
    lm = hybridlm.load(directory, **SETTINGS)
    for asked_value, mapping, wanted in zip(requests, lm.decide_requests(requests), expected, strict=True):
        assert mapping.keys() == wanted.keys() == asked_value["questions"].keys()
        for name, answer in mapping.items():
            row, message = answer.to_dict(), wanted[name]
            assert row.keys() == message.keys() and row["type"] == message["type"]
            assert row.get("legend") == message.get("legend") and row.get("choice") == message.get("choice")
            for field in {"noul", "score", "confidence", "probabilities"} & row.keys():
                assert row[field] == pytest.approx(message[field], abs=2e-5), (name, field)
    return lm


LONG = pytest.mark.long
WORDS = "the order was charged twice and nobody answered naïve 漢 <|im_end|> refund now please thanks".split()


def many(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Requests of every kind with questions about own and shared states."""
    rng = random.Random(seed)
    text = lambda limit: " ".join(rng.choices(WORDS, k=rng.randint(1, limit)))

    def question() -> dict[str, Any]:
        kind = rng.choice(["noul", "choice", "score"])
        message = {"instructions": text(6)} if rng.random() < 0.8 else {}
        if kind == "noul":
            return {"type": kind, **message, **({"criteria": {"true": text(3)}} if rng.random() < 0.5 else {})}
        options = [f"{i} {text(2)}" for i in range(rng.randint(1, 6))]
        if kind == "score":
            return {"type": kind, **message, "criteria": options}
        return {"type": kind, **message, "criteria": {option: rng.choice([None, text(3)]) for option in options}}

    shared = [text(40) for _ in range(5)]
    states = [rng.choice([text(30), {"text": text(20), "n": i}, *shared]) for i in range(count)]
    return [{"state": state, "questions": {f"q{i}": question() for i in range(rng.randint(1, 3))}} for state in states]


@pytest.mark.parametrize("head", ["labels", "jev"])
@pytest.mark.parametrize("count", [60, pytest.param(3000, marks=LONG)])
def test_many_requests_in_lanes(tmp_path: Path, head: str, count: int) -> None:
    """All in one call here, one at a time there."""
    hidden = write_model(tmp_path, "lfm2_base")
    if head == "jev":
        write_jev(tmp_path, hidden, softcap=2.0)
    assert compare(tmp_path, many(count)).stats["prefix_tokens_saved"] > 30 * count


@pytest.mark.parametrize(
    "name", ["dense_interval", "lfm2_base", "nemotron_latent", pytest.param("falcon_base", marks=LONG)]
)
def test_labels_of_a_chat_model(tmp_path: Path, name: str) -> None:
    write_model(tmp_path, name)
    (tmp_path / "decision.json").write_text(json.dumps({"temperature": {"choice": 0.5, "noul": 3}}))
    compare(tmp_path, REQUESTS)


def test_a_template_of_all_questions(tmp_path: Path) -> None:
    write_model(tmp_path, "dense_interval")
    settings = {"labels": {"noul": ["T", "F"], "score": ["0", "1", "2"]}, "noul_options": ["false", "true"]}
    (tmp_path / "decision.json").write_text(json.dumps(settings))
    (tmp_path / "decision_template.jinja").write_text(TOGETHER)
    compare(tmp_path, [{**request, "state": request["state"] or ""} for request in REQUESTS])


def test_control_tokens_are_left_to_the_template(tmp_path: Path) -> None:
    write_model(tmp_path, "dense_interval")
    (tmp_path / "decision.json").write_text(json.dumps({"sanitize_control_tokens": False}))
    (tmp_path / "decision_template.jinja").write_text("{{ state|tojson }} {{ question.instructions }}<|mark|> end")
    unsafe = {"state": [UNSAFE], "questions": {"level": {"type": "score", "instructions": UNSAFE, "criteria": ["a"]}}}
    compare(tmp_path, [*REQUESTS[:3], unsafe])


@pytest.mark.parametrize("softcap", [pytest.param(None, marks=LONG), 2.0])
def test_the_jev_head(tmp_path: Path, softcap: float | None) -> None:
    hidden = write_model(tmp_path, "dense_interval")
    write_jev(tmp_path, hidden, softcap=softcap)
    lm = compare(tmp_path, [{**request, "state": request["state"] or ""} for request in REQUESTS])
    assert set(lm.decide("x", QUESTIONS)) == set(QUESTIONS)


@pytest.mark.parametrize("name", ["dense_interval", "lfm2_base"])
def test_a_jev_model_that_transformers_saved(tmp_path: Path, name: str) -> None:
    """A model with prompts, labels and temperatures in its own files, and no vocabulary head."""
    hidden = write_model(tmp_path / "first", name)
    write_jev(tmp_path / "first", hidden, softcap=2.0)
    auto: Any = transformers.JevForDecision
    auto.from_pretrained(tmp_path / "first", dtype=torch.float32).save_pretrained(tmp_path / "saved")
    write_tokenizer(tmp_path / "saved")
    assert not (tmp_path / "saved" / "judge_config.json").exists()
    lm = compare(tmp_path / "saved", [{**request, "state": request["state"] or ""} for request in REQUESTS])
    with pytest.raises(ValueError, match="vocabulary head"):
        lm.generate(["a"])


@pytest.mark.parametrize("prompt", ["d3", pytest.param("pplx", marks=LONG)])
def test_the_heads_of_deciders(tmp_path: Path, prompt: str) -> None:
    hidden = write_model(tmp_path, "dense_interval")
    write_decider(tmp_path, hidden, prompt=prompt, attention_mode="causal")
    parts = [{"type": "text", "text": "two "}, {"type": "text", "text": "parts"}]
    states = [parts, "", [], {"a": None}, ["x", {"type": "text"}]]
    compare(tmp_path, [*REQUESTS, *({"state": state, "questions": {"q": {"type": "noul"}}} for state in states)])
