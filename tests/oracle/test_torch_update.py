"""`LM.update` with tensors of PyTorch, by the names of a checkpoint."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from random_checkpoint import FAMILIES, write_random_checkpoint
from safetensors.torch import load_file

import hybridlm

pytestmark = pytest.mark.oracle
SETTINGS: dict[str, Any] = {"lanes": 1, "context": 32, "chunk": 16, "dtype": "bfloat16", "certify": "off"}


def test_parameters_of_a_module(tmp_path: Path) -> None:
    """Trained parameters need gradients; bfloat16, transposed and strided memory are read bit for bit."""
    first, second = (
        write_random_checkpoint("dense_base", tmp_path / str(seed), seed=seed, **FAMILIES["dense_base"])
        for seed in (0, 1)
    )
    lm, expected = (hybridlm.load(path, **SETTINGS) for path in (first, second))
    named: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(second / "model.safetensors").items():
        parameter = torch.nn.Parameter(tensor.to(torch.bfloat16))
        if parameter.ndim == 2:
            named[name] = parameter.t().contiguous().t()  # the strides of a transposed matrix
        elif parameter.ndim == 1:
            named[name] = torch.stack([parameter, parameter], 1)[:, 0]  # gaps between elements
        else:
            named[name] = parameter
    lm.update(named)
    for name, array in expected.params.items():
        rounded = np.asarray(array.astype("bfloat16").astype(array.dtype))
        np.testing.assert_array_equal(np.asarray(lm.params[name]), rounded, err_msg=name)


def test_tensors_without_values_are_refused(tmp_path: Path) -> None:
    lm = hybridlm.load(write_random_checkpoint("dense_base", tmp_path, **FAMILIES["dense_base"]), **SETTINGS)
    shape = lm.params["norm.weight"].shape
    wrong = {
        "norm.weight": torch.ones(shape, device="meta"),
        "embed_tokens": torch.ones(3, 3).to_sparse(),
        "layers.0.branches.0.norm.weight": torch.ones(shape, dtype=torch.float64),
    }
    with pytest.raises(hybridlm.CheckpointError) as caught:
        lm.update({name: wrong[name] for name in ("norm.weight", "embed_tokens")}, partial=True)
    assert len(caught.value.faults) == 2
    with pytest.raises(hybridlm.CheckpointError, match="float64"):
        lm.update({"norm.weight": wrong["layers.0.branches.0.norm.weight"]}, partial=True)
