"""Files of mamba_ssm against transformers with the same weights: tied heads, padded vocabularies, float16."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from comparison import TOLERANCES, check_greedy, check_logits, padded
from tiny_variants import ragged_prompts, variant

import hybridlm

torch = pytest.importorskip("torch")
hf = pytest.importorskip("transformers")
pytestmark = pytest.mark.oracle


@pytest.mark.parametrize("name", ["mamba_tied", "mamba2_one_group"])
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.float16, marks=pytest.mark.long)], ids=str)
def test_original_files(tmp_path: Path, name: str, dtype: Any) -> None:
    from original_checkpoint import write_original
    from tiny_checkpoint import write_checkpoint
    from transformers_oracle import Oracle

    tiny = dataclasses.replace(variant(name), shards=1, stored="float32")
    tiny = dataclasses.replace(tiny, text=dict(tiny.text) | {"vocab_size": 336})
    write_checkpoint(tiny, 0, tmp_path / "hf")
    write_original(tmp_path / "hf", tmp_path / "original", dtype)
    oracle = Oracle.load(tmp_path / "hf")
    with torch.no_grad():
        for parameter in oracle.model.parameters():
            parameter.copy_(parameter.to(dtype).float())
    lm = hybridlm.load(tmp_path / "original", lanes=3, dtype="float32", chunk=7)
    assert lm.config.tied and lm.config.vocab_size == 336
    prompts = ragged_prompts(tiny, 0, 0)
    logits = np.asarray(lm.forward(padded(prompts)).logits)
    for row, prompt in zip(logits, prompts, strict=True):
        check_logits(row[: len(prompt)], oracle.logits(prompt), name, TOLERANCES[tiny.family])
    for completion, prompt in zip(lm.generate(prompts, max_tokens=16, ignore_eos=True), prompts, strict=True):
        check_greedy(completion.token_ids, oracle.greedy(prompt, 16), name, TOLERANCES[tiny.family])
