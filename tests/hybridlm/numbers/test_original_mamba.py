"""Files of mamba_ssm (no model_type, pytorch_model.bin): the models and numbers of transformers' files."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from comparison import TOLERANCES, Greedy, check_greedy, check_logits, check_logprobs, padded

import hybridlm
from models import DecoderConfig, family_of

GOLDEN = Path(__file__).resolve().parents[2] / "golden"
ORIGINAL = GOLDEN.with_name("golden_original")
NAMES = sorted(path.name for path in ORIGINAL.iterdir())


def read(path: Path) -> DecoderConfig:
    fields = json.loads((path / "config.json").read_text())
    return family_of(fields).read_config(fields)


@pytest.mark.parametrize("name", NAMES)
def test_the_model_of_transformers(name: str) -> None:
    """Equal fields give equal steps, proofs and plans; other tests use the golden's model."""
    expected = read(GOLDEN / name)
    actual = dataclasses.replace(read(ORIGINAL / name), eos_token_ids=expected.eos_token_ids, dtype=expected.dtype)
    assert actual == expected and not read(ORIGINAL / name).eos_token_ids


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_numbers_of_transformers(name: str) -> None:
    """Logits at all positions, scores in odd chunks and greedy tokens, with ragged batches."""
    with np.load(GOLDEN / name / "expected.npz") as file:
        expected = dict(file)
    ends = np.cumsum(expected["lengths"])[:-1]
    parts = (np.split(expected[part], ends) for part in ("prompts", "logits", "logprobs"))
    prompts, logits, logprobs = ([list(part)] for part in parts)
    lm = hybridlm.load(ORIGINAL / name, lanes=3, dtype="float32", chunk=7)
    tolerance, texts = TOLERANCES[lm.config.family], [prompt.tolist() for prompt in prompts[0]]
    batch = np.asarray(lm.forward(padded(texts)).logits)
    for index, (row, score) in enumerate(zip(batch, lm.score(texts), strict=True)):
        check_logits(row[: len(texts[index])], logits[0][index], name, tolerance)
        check_logprobs(score.logprobs, logprobs[0][index], name, tolerance)
    for index, completion in enumerate(lm.generate(texts, max_tokens=32, ignore_eos=True)):
        greedy = Greedy(expected["greedy"][index], expected["greedy_margins"][index])
        assert not check_greedy(completion.token_ids, greedy, name, tolerance)
