"""Packed models on CPU kernels: the bits of dequantised models, with less scratch."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import run_command
from packed_weights import packed_names
from random_checkpoint import write_random_checkpoint

import hybridlm

pytestmark = pytest.mark.cpu_kernels

SETTINGS: dict[str, Any] = {"lanes": 2, "context": 32, "chunk": 8, "dtype": "bfloat16", "compilation_cache": False}
TEXTS = [[3, 5, 7, 9, 1, 4, 4, 2], [8, 1, 60]]
"""Prompts of one chunk, so that few steps are compiled."""


def copies(folder: Path, name: str, scheme: str) -> tuple[hybridlm.LM, hybridlm.LM]:
    """A quantised copy of a model with some wide matrices, packed and dequantised."""
    fields: dict[str, Any] = {"hidden_size": 256, "num_hidden_layers": 2, "full_attention_interval": 2}
    write_random_checkpoint(name, folder / "plain", **fields)
    run_command("quantise", folder / "plain", folder / "copy", "--scheme", scheme)
    packed = hybridlm.load(folder / "copy", **SETTINGS)
    assert packed_names(packed.params)
    return packed, hybridlm.load(folder / "copy", dequantise="bfloat16", **SETTINGS)


def check_scratch(packed: hybridlm.LM, plain: hybridlm.LM) -> None:
    """Asserts that no copy of a dequantised matrix is in memory."""
    certificate, expected = (
        lm.engine.program(lm.engine.shape("generate", 2, 1, top=0)).certificate for lm in (packed, plain)
    )
    assert certificate.holds and expected.holds and any("packed" in item.about for item in certificate.assumed)
    assert certificate.memory.temp <= 1.1 * expected.memory.temp


@pytest.mark.slow
def test_a_dense_model_has_the_bits_of_the_dequantised_one(tmp_path: Path) -> None:
    packed, plain = copies(tmp_path, "dense_base", "int8")
    check_scratch(packed, plain)
    for score, other in zip(packed.score(TEXTS), plain.score(TEXTS), strict=True):
        np.testing.assert_array_equal(score.logprobs, other.logprobs)
    actual, expected = (lm.generate(TEXTS, max_tokens=6, ignore_eos=True, logprobs=0) for lm in (packed, plain))
    assert [completion.token_ids for completion in actual] == [completion.token_ids for completion in expected]
    for score, other in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(np.asarray(score.logprobs), np.asarray(other.logprobs))


@pytest.mark.slow
def test_experts_are_read_by_the_kernel(tmp_path: Path) -> None:
    packed, plain = copies(tmp_path, "sparse_base", "nvfp4")
    check_scratch(packed, plain)
    for score, other in zip(packed.score(TEXTS), plain.score(TEXTS), strict=True):
        np.testing.assert_allclose(score.logprobs[1:], other.logprobs[1:], atol=2e-2)
