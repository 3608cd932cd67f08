"""Weights that transformers keeps in float32 in a model of bfloat16, against the same parameters here."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from transformers import AutoModelForCausalLM

from hybridlm.checkpoint import load_parameters, open_model

pytestmark = pytest.mark.oracle

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
OTHER_ORACLES = {"alice_base", "gigachat_base"}
"""Not in transformers."""
NAMES = sorted({path.parent.name for path in GOLDEN.glob("*/config.json")} - OTHER_ORACLES)
MATRICES = {"kimi_base", "ling_base", "ling_query_rank", "nemotron_latent"}
"""Families with wide matrices or convolutions."""


@pytest.mark.parametrize("name", NAMES)
def test_weights_of_float32_are_float32_here(name: str, tmp_path: Path) -> None:
    """All their values, which bfloat16 cannot hold, are among the parameters."""
    tensors: dict[str, np.ndarray] = {}
    for file in (GOLDEN / name).glob("*.safetensors"):
        tensors |= load_file(file)
    for key, values in tensors.items():
        if values.dtype.kind != "i":
            tensors[key] = values.astype(np.float32) * np.float32(1 + 2**-12)
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    shutil.copy(GOLDEN / name / "config.json", tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    wide = {key: values for key, values in model.state_dict().items() if values.dtype == torch.float32}
    assert any(values.ndim > 1 for values in wide.values()) == (name in MATRICES)
    arrays = load_parameters(open_model(tmp_path), "bfloat16").arrays
    numbers = np.concatenate([np.ravel(array) for array in arrays.values() if array.dtype == np.float32])
    for key, values in wide.items():
        assert np.isin(values.numpy(), numbers).all(), key
