"""Checkpoints that the formats' own libraries wrote (tests/golden_quantised), against these and transformers.

`nvidia-recipes` are tiny models that modelopt quantised by the recipes which NVIDIA publishes for its checkpoints.
"""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from comparison import TOLERANCES, padded
from packed_weights import packed_names

import hybridlm
from hybridlm.checkpoint import CheckpointDirectory, load_parameters, open_model

GOLDEN = Path(__file__).resolve().parents[2] / "golden_quantised"
FOLDERS = sorted(folder for scheme in GOLDEN.iterdir() for folder in scheme.iterdir())
SCHEMES = {
    "int4-zeros": {"int-packed"}, "int8": {"int-packed"}, "gguf-q8_0": {"Q8_0"}, "modelopt-fp8": {"fp8-tensor"},
    "modelopt-nvfp4": {"nvfp4"}, "nvidia-recipes": {"nvfp4", "fp8-tensor"}, "nvidia-recipes/nemotron-nano": {"nvfp4"},
    "bitsandbytes/dense_interval": {"nf4"}, "bitsandbytes/sparse_base": {"fp4"},
    "bitsandbytes/mamba2_base": {"llm-int8"}, "torchao/dense_interval": {"fp8-channel"},
    "torchao/sparse_base": {"int4-affine"}, "torchao/mamba2_base": {"int8"},
}  # fmt: skip
"""Folder, or one checkpoint -> what its matrices are stored as, where it is not the folder's name."""
QUICK = {"nvfp4/sparse_base", "gguf-q8_0/qwen35", "gptq/sparse_base"}
PLAIN = {
    # Scales of 20 columns, cut at the end of these matrices, divide into groups of 4, which are too narrow.
    "fp8-block/mamba2_base",
    "fp8-block/dense_interval",
    # Columns in another order, and codes of 8 bits.
    "gptq/dense_interval",
    "gptq/mamba2_base",
    # Values of a table that no packed form has.
    "bitsandbytes/dense_interval",
    "bitsandbytes/sparse_base",
}
"""Checkpoints without packed tensors after loading."""


def name_of(folder: Path) -> str:
    return f"{folder.parent.name}/{folder.name}"


def source(folder: Path) -> Path:
    """The folder, or the file in it."""
    return next(folder.glob("*.gguf"), folder)


def test_every_scheme_has_three_families() -> None:
    counts = Counter(folder.parent.name for folder in FOLDERS)
    assert counts.pop("nvidia-recipes") == 5 and set(counts.values()) == {3} and len(counts) == 14


@pytest.mark.parametrize("folder", FOLDERS, ids=name_of)
def test_numbers_are_the_librarys(folder: Path) -> None:
    model = open_model(source(folder))
    checkpoint = model.checkpoint
    assert isinstance(checkpoint, CheckpointDirectory)
    load_parameters(model, "float32", only=set())  # the headers fit the model
    with np.load(folder / "expected.npz") as expected:
        sums = {name: expected[name] for name in expected.files if name.endswith(".weight")}
    assert sums.keys() == checkpoint.grouped.quantised.keys()
    stored = {checkpoint.stored_as(name) for name in checkpoint.names if "proj" in name}
    scheme = folder.parent.name
    assert stored - {"BF16", "F32"} == SCHEMES.get(name_of(folder), SCHEMES.get(scheme, {scheme}))
    for name, expected in sums.items():
        numbers = checkpoint.read(name).astype(np.float64)
        factors = np.cos(np.arange(numbers.shape[1]))
        # One rounding of each number, and one of the sum.
        error = np.abs(numbers) @ np.abs(factors) * 2**-22
        assert (np.abs(numbers @ factors - expected) <= error).all(), name


@pytest.mark.slow
@pytest.mark.parametrize(
    "folder",
    [
        pytest.param(folder, marks=[] if name_of(folder) in QUICK else [pytest.mark.long], id=name_of(folder))
        for folder in FOLDERS
    ],
)
def test_logits_and_greedy_tokens_match_transformers(folder: Path) -> None:
    """Packed, in float32 as in the library: one batch, and every prompt alone."""
    lm = hybridlm.load(source(folder), lanes=2, context=32, dtype="float32", chunk=8)
    assert bool(packed_names(lm.params)) == (name_of(folder) not in PLAIN)
    tolerance = TOLERANCES[lm.config.family.removesuffix("_text")]
    with np.load(folder / "expected.npz") as file:
        prompts, logits, greedy = (
            [file[f"{kind} {index}"] for index in range(2)] for kind in ("prompt", "logits", "greedy")
        )
    prompts = [prompt.tolist() for prompt in prompts]
    for row, expected in zip(np.asarray(lm.forward(padded(prompts)).logits), logits, strict=True):
        np.testing.assert_allclose(row[: len(expected)], expected, rtol=0, atol=tolerance)
    batched = lm.generate(prompts, max_tokens=6, ignore_eos=True)
    singles = [lm.generate([prompt], max_tokens=6, ignore_eos=True)[0] for prompt in prompts]
    for completion, other, expected in zip(batched, singles, greedy, strict=True):
        assert list(completion.token_ids) == list(other.token_ids) == expected.tolist()
    assert lm.certificates and not any(certificate.faults for certificate in lm.certificates.values())
