"""The forms of layers and sampling for GPUs and TPUs, run on a CPU: they compute what the forms for CPUs do."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hybridlm
from hybridlm.devices.placement import Placement

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
SIZES: dict[str, Any] = {"lanes": 4, "context": 48, "chunk": 8, "dtype": "float32"}
TEXTS = [[5, 6, 7, 8, 9, 3, 2, 1, 7, 7, 4], [9, 8], [3] * 17, [10, 20, 30]]
SAMPLED: dict[str, Any] = {"max_tokens": 5, "ignore_eos": True, "temperature": 0.8, "top_k": 9, "top_p": 0.9, "seed": 3}
FAMILIES = [
    "sparse_base", "kimi_base", "mamba2_base", "nemotron_latent", "granite_experts", "lfm2_moe_base", "olmo_base",
    "falcon_base",
]  # fmt: skip


def numbers(name: str) -> tuple[list[list[int]], list[np.ndarray]]:
    lm = hybridlm.load(GOLDEN / name, **SIZES)
    tokens = [one.token_ids for one in lm.generate(TEXTS, **SAMPLED)]
    scores = [np.asarray(one.logprobs[1:], np.float64) for one in lm.score(TEXTS)]
    assert lm.certificates and all(one.holds for one in lm.certificates.values())
    return tokens, scores


@pytest.mark.long
@pytest.mark.parametrize("platform", ["gpu", "tpu"])
@pytest.mark.parametrize("name", FAMILIES)
def test_forms_of_other_platforms(name: str, platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens, scores = numbers(name)
    monkeypatch.setattr(Placement, "platform", property(lambda self: platform))
    found, others = numbers(name)
    for one, other in zip(others, scores, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-4)
    assert found == tokens
