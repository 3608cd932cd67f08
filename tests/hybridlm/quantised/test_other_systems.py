"""Checkpoints with unsupported layouts are refused by the name of their system."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from random_checkpoint import write_random_checkpoint
from safetensors.numpy import load_file, save_file

from hybridlm.checkpoint import CheckpointError, load_parameters, open_model
from hybridlm.quantised import read_settings

Tensors = dict[str, np.ndarray]
MATRIX = "model.layers.0.mlp.up_proj"
GROUPS = {"group_size": 64, "bits": 4}


def changed(
    folder: Path, change: Callable[[Tensors], Any], metadata: dict[str, str] | None = None, **fields: Any
) -> str:
    """Return the message for a checkpoint with changed tensors and configuration."""
    write_random_checkpoint("dense_interval", folder)
    (path,) = folder.glob("*.safetensors")
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata)
    config = json.loads((folder / "config.json").read_text()) | fields
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError) as caught:
        load_parameters(open_model(folder), "float32")
    return str(caught.value)


def matrix_of(tensors: Tensors) -> str:
    return next(name.removesuffix(".weight") for name in tensors if name.endswith("up_proj.weight"))


def mlx(tensors: Tensors) -> None:
    base = matrix_of(tensors)
    rows, columns = tensors[f"{base}.weight"].shape
    tensors[f"{base}.weight"] = np.zeros((rows, columns // 8), np.uint32)
    tensors[f"{base}.scales"] = tensors[f"{base}.biases"] = np.zeros((rows, 1), np.float16)


def mlx_convolutions(tensors: Tensors) -> None:
    for name in [name for name in tensors if name.endswith("conv1d.weight")]:
        tensors[name] = np.ascontiguousarray(np.moveaxis(tensors[name], 2, 1))


def hqq(tensors: Tensors) -> None:
    base = matrix_of(tensors)
    tensors[f"{base}.W_q"] = tensors.pop(f"{base}.weight").astype(np.uint8)


def quanto(tensors: Tensors) -> None:
    base = matrix_of(tensors)
    tensors[f"{base}.weight._data"] = tensors.pop(f"{base}.weight").astype(np.int8)
    tensors[f"{base}.weight._scale"] = np.ones((1,), np.float32)


@pytest.mark.filterwarnings("ignore:.*config.json has fields")
@pytest.mark.parametrize(("change", "settings", "name"), [
    (mlx, {"quantization": GROUPS}, "MLX"), (mlx, {"quantization": GROUPS, "quantization_config": GROUPS}, "MLX"),
    (mlx, {"quantization": GROUPS | {"mode": "affine"}, "metadata": {"format": "mlx"}}, "MLX"), (mlx, {}, "MLX"),
    (mlx_convolutions, {"metadata": {"format": "mlx"}}, "MLX"), (hqq, {}, "HQQ"), (quanto, {}, "Quanto"),
], ids=["mlx", "mlx-twice", "mlx-mode", "mlx-tensors", "mlx-plain", "hqq", "quanto"])  # fmt: skip
def test_the_system_is_named(tmp_path: Path, change: Any, settings: dict[str, Any], name: str) -> None:
    message = changed(tmp_path / "model", change, **settings)
    assert name in message and "hybridlm quantise" in message


@pytest.mark.parametrize("method", ["hqq", "quanto", "eetq"])
def test_a_method_that_is_named_is_the_only_fault(method: str) -> None:
    settings = read_settings({"quantization_config": {"quant_method": method, "group_size": 64, "bits": 4}}, None)
    assert settings.method == method and len(settings.faults) == 1


def test_groups_of_a_method_are_not_mlx() -> None:
    assert read_settings({"quantization_config": GROUPS | {"quant_method": "gptq"}}, None).method == "gptq"
