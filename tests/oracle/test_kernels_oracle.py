"""Whole tiny models with kernels, run by Pallas' interpreter, against transformers: prompts, decoding, drafts."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from comparison import check_greedy, check_logprobs
from random_traffic import Known
from tiny_variants import VARIANTS, Variant, ragged_prompts

import hybridlm
from ir_passes import Note

# the interpreter copies the arrays it writes to, and the audit reports it
pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore::ir_passes.CertificationWarning")]

CHUNK, LANES, TOKENS = 40, 2, 6
PROMPTS = (0, 4, 7)
"""Indices of prompts of 1, 17 and 65 tokens."""
STEPS = {"recurrent_step_kernel", "conv_step_kernel"}
ATTENDS = {"decode_attention_kernel"}
FILTERS = {"filter_cutoffs_kernel"}
OPTIONAL = {"rms_norm_kernel", "merge_parts_kernel"}
CASES = {
    "dense_base": ({}, ATTENDS | STEPS),
    "kimi_base": ({"qk_rope_head_dim": 16, "qk_nope_head_dim": 16}, ATTENDS | STEPS),
    "mamba2_base": ({"state_size": 16}, STEPS),
    "next_base": ({}, ATTENDS | STEPS),
    "sparse_base": ({}, ATTENDS | STEPS),
    "lfm2_base": ({}, ATTENDS | {"conv_step_kernel"}),
    "lfm2_moe_base": ({}, ATTENDS | {"conv_step_kernel"}),
    "nemotron_experts": ({"head_dim": 32, "ssm_state_size": 16}, ATTENDS | STEPS),
    "granite_experts": ({"mamba_d_state": 16}, ATTENDS | STEPS),
    "bamba_base": ({"mamba_d_state": 16}, ATTENDS | STEPS),
    "falcon_base": ({"mamba_d_state": 16}, ATTENDS | STEPS),
    "ling_base": ({"qk_rope_head_dim": 16, "qk_nope_head_dim": 16}, ATTENDS | STEPS),
    "olmo_base": ({"linear_key_head_dim": 16, "linear_value_head_dim": 32}, ATTENDS | STEPS),
}
"""A checkpoint of each family: fields of the config in sizes that the kernels take, and the kernels of decoding."""
ALWAYS = ("dense_base",)
"""The checkpoint with every kernel; the others are long.
Each recurrence and its kernel are compared in tests/models/ops."""


def variant_of(name: str) -> Variant:
    variant = next(variant for variant in VARIANTS if variant.name == name)
    return dataclasses.replace(variant, text={**variant.text, **CASES[name][0]})


def kernels_of(lm: hybridlm.LM, step: str) -> set[str]:
    """Names of the kernels that the proof of a kind of step has read."""
    results = [certificate for name, certificate in lm.certificates.items() if name.startswith(step)]
    assert results and all(certificate.proved for certificate in results)
    notes = [note for item in results for note in item.notes if note.id == Note.KERNEL_READ.value]
    return {note.about.split()[0] for note in notes}


@pytest.mark.parametrize("name", [c if c in ALWAYS else pytest.param(c, marks=pytest.mark.long) for c in CASES])
def test_kernels_and_transformers_compute_the_same(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from comparison import log_probabilities
    from tiny_checkpoint import write_checkpoint
    from transformers_oracle import Oracle

    variant = variant_of(name)
    write_checkpoint(variant, 0, tmp_path)
    oracle = Oracle.load(tmp_path)
    prompts = [ragged_prompts(variant, 0)[index] for index in PROMPTS]
    greedy = [oracle.greedy(prompt, TOKENS) for prompt in prompts]
    settings: dict[str, Any] = {"lanes": LANES, "dtype": "float32", "chunk": CHUNK, "context": 128, "certify": "warn"}
    lm = hybridlm.load(str(tmp_path), kernels="interpret", **settings)
    for score, prompt in zip(lm.score(prompts), prompts, strict=True):
        expected = log_probabilities(oracle.logits(prompt), prompt)
        check_logprobs(score.logprobs, expected, f"{name}, {len(prompt)} tokens", variant.tolerance)

    def check(completions: Any) -> None:
        for completion, expected, prompt in zip(completions, greedy, prompts, strict=True):
            assert not check_greedy(completion.token_ids, expected, f"{name}, {len(prompt)} tokens", variant.tolerance)

    check(lm.generate(prompts, max_tokens=TOKENS, ignore_eos=True))
    monkeypatch.setattr("hybridlm.engine.speculation.Speculation.always", True)

    full = [[*prompt, *map(int, expected.tokens)] for prompt, expected in zip(prompts, greedy, strict=True)]
    check(lm.generate(prompts, max_tokens=TOKENS, ignore_eos=True, speculate=Known(full, (7,))))
    # Norms and the sum of attention's parts have kernels in some sizes only.
    required = CASES[name][1] | FILTERS
    assert kernels_of(lm, f"generate {LANES}x1") - OPTIONAL == required
    assert kernels_of(lm, "verify") - OPTIONAL == required
    recurrent = "recurrent_step_kernel" in CASES[name][1]
    assert ("chunk_scan_kernel" in kernels_of(lm, f"generate {LANES}x{CHUNK}")) == recurrent
