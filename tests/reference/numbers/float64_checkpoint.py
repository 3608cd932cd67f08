"""Checkpoint directory in float64, read without `models` or `hybridlm`: the basis of every float64 forward."""

import json
import pathlib
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

Tensors = Mapping[str, np.ndarray]
_DTYPES = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}


class Float64Checkpoint:
    """`config` is config.json's text part; `tensors` have text-model names."""

    def __init__(self, directory: pathlib.Path) -> None:
        outer = json.loads((directory / "config.json").read_text())
        self.config: dict[str, Any] = outer.get("text_config", outer)
        self.tensors: dict[str, np.ndarray] = {}
        for file in sorted(directory.glob("*.safetensors")):
            for name, value in read_safetensors(file).items():
                self.tensors[name.replace("model.language_model.", "model.")] = value

    def below(self, prefix: str) -> dict[str, np.ndarray]:
        """The tensors below `prefix.`, without it."""
        start = len(prefix) + 1
        return {name[start:]: value for name, value in self.tensors.items() if name.startswith(prefix + ".")}


def read_safetensors(file: pathlib.Path) -> dict[str, np.ndarray]:
    """Read safetensors as float64 by layout: length, JSON header, bytes."""
    data = file.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    header.pop("__metadata__", None)
    return {
        name: np.frombuffer(
            data[start + entry["data_offsets"][0] : start + entry["data_offsets"][1]], _DTYPES[entry["dtype"]]
        )
        .reshape(entry["shape"])
        .astype(np.float64)
        for name, entry in header.items()
    }
