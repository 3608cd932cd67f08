"""Checkpoint of many tiny tensors in the layout of nvidia/Qwen3.6-35B-A3B-NVFP4.

python many_tensors.py FOLDER LAYERS EXPERTS FILES      40 layers of 256 experts are 123,493 tensors
python many_tensors.py --time FOLDER                    CPU seconds of each part of loading it
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
from quantised_checkpoint import Stored, write_tensors

from hybridlm.checkpoint import fingerprint_of, load_parameters, packed_parameters
from hybridlm.checkpoint.model import open_model, read_model

PLAIN = ("linear_attn*", "self_attn*", "mlp.gate", "mlp.shared_expert*")
"""Modules of every layer that the published checkpoint does not quantise."""


def write_many(folder: Path, layers: int, experts: int, files: int) -> int:
    """Write a checkpoint and return its number of tensors."""
    folder.mkdir(parents=True)
    ignored = [f"model.layers.{i}.{name}" for i in range(layers) for name in PLAIN]
    config = {
        "model_type": "qwen3_5_moe_text", "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": layers,
        "layer_types": ["full_attention" if i % 4 == 3 else "linear_attention" for i in range(layers)],
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "linear_num_key_heads": 1,
        "linear_num_value_heads": 2, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
        "linear_conv_kernel_dim": 4, "num_experts": experts, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 16, "eos_token_id": 0,
        "quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head", *ignored]},
    }  # fmt: skip
    family, read = read_model(folder, config)
    random = np.random.default_rng(0)
    tensors: dict[str, Stored] = {}
    shapes = {name: shape for weight in family.weights(read) for name, shape in weight.options[-1].shapes.items()}
    for name, shape in shapes.items():
        if ".experts." not in name:
            numbers = random.normal(size=shape).astype(np.float32)
            tensors[name] = ("BF16", numbers.astype(ml_dtypes.bfloat16))
            continue
        tensors[name] = ("U8", random.integers(0, 256, (shape[0], shape[1] // 2), np.uint8))
        tensors[name + "_scale"] = ("F8_E4M3", random.integers(40, 60, (shape[0], shape[1] // 16), np.uint8))
        tensors[name + "_scale_2"] = ("F32", np.array(0.01, np.float32))
        tensors[name.removesuffix("weight") + "input_scale"] = ("F32", np.array(1, np.float32))
    names, index = sorted(tensors), {}
    size = -(-len(names) // files)
    for file in range(files):
        part = names[file * size : (file + 1) * size]
        index |= dict.fromkeys(part, f"model-{file:05}.safetensors")
        write_tensors(folder / f"model-{file:05}.safetensors", {name: tensors[name] for name in part})
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return len(names)


def load(folder: Path, part: Callable[[str], Any] = lambda name: None, packed: bool = True) -> Any:
    """Return a checkpoint's parameters, calling `part` at the end of each phase."""
    opened = open_model(folder)
    part("headers")
    types = packed_parameters(opened, "bfloat16", "in blocks") if packed else None
    part("plan")
    parameters = load_parameters(opened, "bfloat16", packed=types)
    part("weights")
    fingerprint_of(opened[0], "bfloat16")
    part("fingerprint")
    return parameters.arrays


def _main(*arguments: str) -> None:
    if arguments[0] != "--time":
        print(write_many(Path(arguments[0]), *map(int, arguments[1:])), "tensors")
        return
    jax.devices()
    last = time.process_time()

    def say(name: str) -> None:
        nonlocal last
        last, initial = time.process_time(), last
        print(f"{name} {last - initial:.2f} s of CPU time")

    load(Path(arguments[1]), say)


if __name__ == "__main__":
    _main(*sys.argv[1:])
