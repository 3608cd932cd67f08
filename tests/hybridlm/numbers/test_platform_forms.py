"""Other platforms' layers, sampling and kernels compute on a CPU the plain forms' numbers."""

import functools
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hybridlm
from ir_passes import CertificationWarning, Note

GOLDEN = Path(__file__).resolve().parents[2] / "golden"
SIZES: dict[str, Any] = {"lanes": 4, "context": 48, "chunk": 8, "dtype": "float32"}
TEXTS = [[5, 6, 7, 8, 9, 3, 2, 1, 7, 7, 4], [9, 8], [3] * 17, [10, 20, 30]]
SAMPLED: dict[str, Any] = {"max_tokens": 5, "ignore_eos": True, "temperature": 0.8, "top_k": 9, "top_p": 0.9, "seed": 3}
FAMILIES = [
    "sparse_base", "kimi_base", "mamba2_base", "nemotron_latent", "granite_experts", "lfm2_moe_base", "olmo_base",
    "falcon_base",
]  # fmt: skip
BY_DEFAULT = ("lfm2_moe_base",)
"""test_golden.py compares all families with these kernels and with transformers."""
CONV, STEP = "hybridlm_conv_step_by_slot", "hybridlm_recurrent_step_by_slot"
ATTENTION, LATENT_ATTENTION = "hybridlm_decode_attention", "hybridlm_latent_decode_attention"
CALLS = {name: {CONV, STEP, ATTENTION} for name in FAMILIES} | {
    "kimi_base": {CONV, STEP, LATENT_ATTENTION},
    "mamba2_base": {CONV, STEP},
    "lfm2_moe_base": {CONV, ATTENTION},
}
"""Kernels for CPUs that each family's certificates list."""
RECURRENT = [name for name in FAMILIES if not name.startswith("lfm2")]


Numbers = tuple[list[list[int]], list[np.ndarray]]
"""Sampled tokens and scores."""


def numbers(name: str, kernels: str = "off") -> Numbers:
    """Return sampled tokens and scores; the interpreter copies states, so audits are off."""
    certify = "warn" if kernels == "interpret" else "error"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if certify == "warn" else "error", CertificationWarning)
        lm = hybridlm.load(GOLDEN / name, **SIZES, kernels=kernels, certify=certify)
        tokens = [completion.token_ids for completion in lm.generate(TEXTS, **SAMPLED)]
        scores = [np.asarray(score.logprobs[1:], np.float64) for score in lm.score(TEXTS)]
    certificates = lm.certificates.values()
    assert certificates and all(c.proved and (kernels == "interpret" or c.holds) for c in certificates)
    read = [note for certificate in certificates for note in certificate.notes if note.id == Note.KERNEL_READ.value]
    assert bool(read) == (kernels == "interpret")
    believed = {about.about.split("(")[0] for c in certificates for about in c.assumed if about.id == "opaque-idle"}
    assert believed == (CALLS[name] if kernels == "auto" else set())
    return tokens, scores


@functools.cache
def plain(name: str) -> Numbers:
    return numbers(name)


def check_equal(numbers: Numbers, expected: Numbers) -> None:
    """Tokens are the same, and scores near."""
    for item, other in zip(numbers[1], expected[1], strict=True):
        np.testing.assert_allclose(item, other, atol=2e-4)
    assert numbers[0] == expected[0]


@pytest.mark.slow
@pytest.mark.cpu_kernels
@pytest.mark.parametrize(
    "name", [family if family in BY_DEFAULT else pytest.param(family, marks=pytest.mark.long) for family in FAMILIES]
)
def test_kernels_for_cpus(name: str) -> None:
    """Kernels update states, windows and caches in place; certificates list the declarations."""
    check_equal(numbers(name, "auto"), plain(name))


@pytest.mark.long
@pytest.mark.parametrize("platform", ["gpu", "tpu"])
@pytest.mark.parametrize(
    ("name", "kernels"), [*((name, "off") for name in FAMILIES), *((name, "interpret") for name in RECURRENT)]
)
def test_forms_of_other_platforms(name: str, kernels: str, platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare plain forms, and whole models with kernels run by Pallas' interpreter."""
    expected = plain(name)
    monkeypatch.setattr("hybridlm.devices.placement.Placement.platform", property(lambda self: platform))
    check_equal(numbers(name, kernels), expected)
