"""Changed logits equal the results of transformers' processors in `generate`'s order."""

from typing import Any

import numpy as np
import pytest
import torch
from model_inputs import changed_by
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from hybridlm import SamplingParams

pytestmark = pytest.mark.oracle
VOCABULARY, ENDS = 40, (2, 39)


def settings(rng: np.random.Generator) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the same wishes for `SamplingParams` and for GenerationConfig."""
    actual: dict[str, Any] = {}
    reference: dict[str, Any] = {"eos_token_id": list(ENDS)}
    if rng.random() < 0.7:
        actual["repetition_penalty"] = reference["repetition_penalty"] = float(rng.uniform(0.3, 3))
    if rng.random() < 0.7:
        bias = {int(token): float(rng.normal(0, 4)) for token in rng.integers(0, VOCABULARY, 6)}
        actual["logit_bias"] = bias
        reference["sequence_bias"] = {(token,): value for token, value in bias.items()}
    if rng.random() < 0.7:
        words = [[int(t) for t in rng.integers(3, 9, rng.integers(1, 4))] for _ in range(4)]
        actual["bad_words"] = reference["bad_words_ids"] = words
    if rng.random() < 0.7:
        actual["min_tokens"] = reference["min_new_tokens"] = int(rng.integers(1, 8))
    return actual, reference


def test_equal_to_the_processors_of_transformers() -> None:
    model: Any = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1
        )
    )
    rng, changed = np.random.default_rng(0), 0
    for _ in range(300):
        actual, reference = settings(rng)
        history = [int(token) for token in rng.integers(3, 9, rng.integers(1, 20))]
        size = int(rng.integers(1, len(history) + 1))
        logits = rng.normal(0, 3, (1, VOCABULARY)).astype(np.float32)
        got = changed_by(SamplingParams(**actual), history[:size], history[size:], logits, ENDS)
        config = GenerationConfig(**reference)
        model._prepare_special_tokens(config, device="cpu")
        processors = model._get_logits_processor(config, size, torch.tensor([history[:size]]), None, [], device="cpu")
        want = processors(torch.tensor([history]), torch.tensor(logits)).numpy()
        np.testing.assert_allclose(got, want, rtol=1e-6)
        changed += bool((got != logits).any())
    assert changed > 200
