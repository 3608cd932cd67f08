"""Packed GGUF blocks: the numbers of `gguf.quants` in the original order of heads."""

from pathlib import Path
from typing import Any

import gguf
import jax
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from gguf_checkpoint import random_blocks, write_gguf
from packed_weights import packed_from, packed_names
from random_checkpoint import write_random_checkpoint

import hybridlm
from hybridlm.checkpoint import CheckpointError
from hybridlm.gguf_files import BLOCK_TYPES, NamedTensor
from hybridlm.gguf_files.blocks import PACKED_TYPES
from hybridlm.gguf_files.tensors import Heads
from hybridlm.quantised import TensorInfo


def named(kind: str, rows: int, columns: int, heads: Heads | None = None) -> NamedTensor:
    end = rows * columns // gguf.GGML_QUANT_SIZES[Type[kind]][0] * gguf.GGML_QUANT_SIZES[Type[kind]][1]
    return NamedTensor("t", TensorInfo(kind, (rows, columns), 0, end), (rows, columns), 0, end, "", heads)


def numbers(tensor: NamedTensor, raw: np.ndarray) -> np.ndarray:
    form = tensor.packed_form()
    assert form is not None
    return np.asarray(packed_from(form, tensor.packed(raw.reshape(-1), form, Path("t.gguf"))).numbers())


@pytest.mark.parametrize("heads", [
    None, Heads(2, 3, 2, 4), Heads(2, 2, 128, columns=True),
], ids=["as it is", "rows of heads", "columns of heads"])  # fmt: skip
@pytest.mark.parametrize("kind", PACKED_TYPES)
def test_packed_numbers_match_the_package(kind: str, heads: Heads | None) -> None:
    raw, tensor = random_blocks(kind, 16, 512, size=1), named(kind, 16, 512, heads)
    result = numbers(tensor, raw)
    np.testing.assert_array_equal(result, tensor.numbers(raw.reshape(-1), Path("t.gguf")))
    assert heads is not None or np.array_equal(result, gguf.quants.dequantize(raw, Type[kind]))


def test_a_scale_that_is_not_finite_is_refused() -> None:
    raw, tensor = random_blocks("Q4_K", 4, 512), named("Q4_K", 4, 512)
    raw.reshape(-1, 144)[3, 2:4] = np.array([np.nan], np.float16).view(np.uint8)
    form = tensor.packed_form()
    assert form is not None
    with pytest.raises(CheckpointError, match="t: a scale"):
        tensor.packed(raw.reshape(-1), form, Path("t.gguf"))


@pytest.mark.parametrize("kind", sorted(BLOCK_TYPES - PACKED_TYPES.keys()))
def test_other_blocks_are_dequantised(kind: str) -> None:
    assert named(kind, 4, 512).packed_form() is None


def test_columns_of_heads_that_divide_groups_are_dequantised() -> None:
    assert named("Q8_0", 4, 64, Heads(2, 2, 16, columns=True)).packed_form() is None
    assert named("Q8_0", 4, 128, Heads(2, 2, 32, columns=True)).packed_form() is not None


def mixed(name: str) -> Type:
    """Return the kind of a tensor in the manner of Q4_K_M."""
    if name.startswith(("token_embd", "output")) or "ffn_down" in name or "attn_v" in name:
        return Type.Q6_K
    if "ssm_alpha" in name or "ssm_beta" in name:
        return Type.Q8_0
    return Type.Q5_K if "ssm_out" in name else Type.Q4_K


SIZES: dict[str, Any] = {"hidden_size": 256, "head_dim": 64, "linear_value_head_dim": 64, "vocab_size": 97}
SIZES |= {
    "rms_norm_eps": 1e-6,
    "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"],
    "eos_token_id": 2,
}


@pytest.mark.long
@pytest.mark.parametrize(("architecture", "source", "fields"), [
    ("qwen35", "dense_base", {"intermediate_size": 512}),
    ("qwen35moe", "sparse_base", {"moe_intermediate_size": 256, "shared_expert_intermediate_size": 256}),
])  # fmt: skip
def test_a_model_of_k_quants_stays_packed(tmp_path: Path, architecture: str, source: str, fields: dict[str, Any]):
    plain = write_random_checkpoint(source, tmp_path / "plain", **SIZES, **fields)
    path = write_gguf(tmp_path / "m.gguf", architecture, mixed, source=plain)
    settings: dict[str, Any] = {"lanes": 2, "context": 32, "chunk": 8, "compilation_cache": False}
    packed, plain = (hybridlm.load(path, dequantise=dtype, **settings) for dtype in (None, "bfloat16"))
    matrices = {name for name, array in packed.params.items() if array.ndim > 1 and "conv1d" not in name}
    names = set(packed_names(packed.params))
    # One row, which the file has as a vector of float32.
    assert {name.rpartition(".")[2] for name in matrices - names} <= {"shared_expert_gate"}
    prompts = [[3, 5, 7, 9, 1], [4, 4]]
    actual, expected = (
        [item.token_ids for item in lm.generate(prompts, max_tokens=6, ignore_eos=True)] for lm in (packed, plain)
    )
    assert actual == expected
    for completion, other in zip(packed.score(prompts), plain.score(prompts), strict=True):
        np.testing.assert_allclose(completion.logprobs[1:], other.logprobs[1:], atol=2e-2)
    assert not any(certificate.faults for certificate in packed.certificates.values())
    packed.save(tmp_path / "saved")
    saved = hybridlm.load(tmp_path / "saved", **settings)
    for name, completion in packed.params.items():
        for a, b in zip(jax.tree.leaves(completion), jax.tree.leaves(saved.params[name]), strict=True):
            np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
