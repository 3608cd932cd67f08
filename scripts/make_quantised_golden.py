"""Write tests/golden_quantised: tiny quantised checkpoints as compressed-tensors and gguf write them, with results.

    python scripts/make_quantised_golden.py [--output tests/golden_quantised]

Needs the extras `oracle` and `gguf`. The models come from tests/golden: Gated DeltaNet, a mixture of experts, and
Mamba2 (short convolutions in GGUF). Each folder has the checkpoint and `expected.npz`: prompts, logits of every
position and greedy tokens of transformers with the library's numbers, and a sum of each row with factors by column.
"""

# Without the oracle's packages their types are not known.
# pyright: reportMissingImports=false

import argparse
import dataclasses
import json
import pathlib
import shutil
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

import compressed_tensors
import gguf
import numpy as np
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.format import infer_module_format
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams
from safetensors.torch import load_file, save_file

sys.path.extend(map(str, (pathlib.Path(__file__).resolve().parents[1] / "tests" / "reference").glob("*/")))

from gguf_checkpoint import OF, write_gguf
from tiny_checkpoint import write_checkpoint
from tiny_variants import GOLDEN
from transformers_oracle import Oracle

ROOT = pathlib.Path(__file__).resolve().parents[1]
MODELS = ("dense_interval", "sparse_base", "mamba2_base")
BLOCK = [24, 20]
SCHEMES: Mapping[str, dict[str, Any]] = {
    "fp8-block": dict(num_bits=8, type="float", strategy="block", block_structure=BLOCK),
    "fp8-channel": dict(num_bits=8, type="float", strategy="channel"),
    "int8": dict(num_bits=8, type="int", strategy="channel"),
    "int4-zeros": dict(num_bits=4, type="int", strategy="group", group_size=8, symmetric=False),
    "nvfp4": dict(num_bits=4, type="float", strategy="tensor_group", group_size=16, scale_dtype=torch.float8_e4m3fn),
    "mxfp4": dict(num_bits=4, type="float", strategy="group", group_size=32, scale_dtype=torch.uint8),
    "mxfp8": dict(num_bits=8, type="float", strategy="group", group_size=32, scale_dtype=torch.uint8),
}
"""Name of a folder -> the weights' arguments in compressed-tensors."""
WIDE: Mapping[str, dict[str, Any]] = {
    "dense_interval": {"intermediate_size": 64, "num_key_value_heads": 2},
    "sparse_base": {"moe_intermediate_size": 32, "shared_expert_intermediate_size": 64},
    "mamba2_base": {"state_size": 14},
}
"""Golden model -> fields that make the sizes of its matrices multiples of 32: GPTQModel and AutoAWQ pack no others."""
LENGTHS, GREEDY_TOKENS, MIN_MARGIN, MAX_ATTEMPTS = (3, 9), 6, 5e-3, 200
Tensors = dict[str, torch.Tensor]
PROVENANCE = {
    "command": "python scripts/make_quantised_golden.py",
    "compressed-tensors": compressed_tensors.__version__,
    "torch": torch.__version__,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "tests" / "golden_quantised")
    output = parser.parse_args().output
    torch.set_num_threads(1)
    for scheme in ("gguf-q8_0", *SCHEMES):
        shutil.rmtree(output / scheme, ignore_errors=True)
    for architecture in OF:
        write_blocks(output / "gguf-q8_0" / architecture, architecture)
    for model in MODELS:
        for scheme, arguments in SCHEMES.items():
            write_compressed(output / scheme / model, model, QuantizationArgs(**arguments))


def write_compressed(folder: pathlib.Path, model: str, arguments: QuantizationArgs) -> None:
    source = ROOT / "tests" / "golden" / model
    tensors = {name: value for file in sorted(source.glob("*.safetensors")) for name, value in load_file(file).items()}
    scheme = QuantizationScheme(targets=["Linear"], weights=arguments)
    scheme.format = infer_module_format(torch.nn.Linear, scheme)
    compressor = BaseCompressor.get_value_from_registry(scheme.format.value)
    written, numbers, ignored = Tensors(), Tensors(), []
    for name, value in tensors.items():
        if value.ndim != 2 or not is_quantised(name) or value.shape[1] % (arguments.group_size or 1):
            written[name] = numbers[name] = value
            if value.ndim == 2 and "embed" not in name:
                ignored.append(name.removesuffix(".weight"))
            continue
        state: dict[str, Any] = dict(compressor.compress({**_state(value.float(), arguments)}, scheme))
        written |= {f"{name.removesuffix('weight')}{part}": value.contiguous() for part, value in state.items()}
        numbers[name] = _numbers(state, scheme, compressor, value.shape)
    folder.mkdir(parents=True)
    save_file(written, folder / "model.safetensors")
    config = QuantizationConfig(config_groups={"group_0": scheme}, ignore=ignored, format=scheme.format.value)
    fields = json.loads((source / "config.json").read_text())
    quantization = json.loads(config.model_dump_json(exclude_none=True)) | {"quantization_status": "compressed"}
    (folder / "config.json").write_text(json.dumps(fields | {"quantization_config": quantization}, indent=1) + "\n")
    changed = {name: value for name, value in numbers.items() if value is not written.get(name)}
    write_results(folder, fields, numbers, changed, PROVENANCE)


def is_quantised(name: str) -> bool:
    """Return whether published recipes quantise a matrix: projections of mixers, MLPs and experts."""
    return name.endswith("proj.weight") or ".in_proj_qkv" in name or ".in_proj_z" in name


def _state(weight: torch.Tensor, arguments: QuantizationArgs) -> Tensors:
    """Return a weight and the library's scales for the minimum and maximum of each group."""
    rows, columns = weight.shape
    if arguments.block_structure is not None:
        height, width = arguments.block_structure
        filled = torch.nn.functional.pad(weight, (0, -columns % width, 0, -rows % height))
        tiles = filled.reshape(-(-rows // height), height, -(-columns // width), width)
        low, high = tiles.amin((1, 3)), tiles.amax((1, 3))
    else:
        grouped = weight.reshape(rows, -1, arguments.group_size or columns)
        low, high = grouped.amin(-1), grouped.amax(-1)
    state = {"weight": weight}
    if arguments.strategy == "tensor_group":
        state["weight_global_scale"] = (448 * 6 / weight.abs().amax()).reshape(1).float()
    scale, zero = calculate_qparams(low, high, arguments, global_scale=state.get("weight_global_scale"))
    return state | {"weight_scale": scale, "weight_zero_point": zero}


def _numbers(state: Tensors, scheme: QuantizationScheme, compressor: Any, size: torch.Size) -> torch.Tensor:
    """Return the numbers that the library computes from codes, in float32."""
    if "weight_global_scale" in state:
        codes = unpack_fp4_from_uint8(state["weight_packed"], *size, dtype=torch.float32)
        factor = state["weight_scale"].float() / state["weight_global_scale"]
        return (codes.reshape(size[0], -1, 16) * factor[..., None]).reshape(size)
    wide = {name: value.float() if value.dtype == torch.bfloat16 else value for name, value in state.items()}
    return dict[str, Any](compressor.decompress({**wide}, scheme))["weight"].float()


def write_blocks(folder: pathlib.Path, architecture: str) -> None:
    import transformers

    folder.mkdir(parents=True)
    write_gguf(folder / "model.gguf", architecture, gguf.GGMLQuantizationType.Q8_0)
    auto: Any = transformers.AutoModelForCausalLM
    model, faults = auto.from_pretrained(
        folder,
        gguf_file="model.gguf",
        dtype=torch.float32,
        quantization_config=transformers.GgufConfig(dequantize=True),
        output_loading_info=True,
    )
    assert not any(faults.values()), faults
    # The configuration that transformers reads from a GGUF file lacks RoPE sections, so the golden one is used.
    oracle = Oracle.load(ROOT / "tests" / "golden" / OF[architecture])
    oracle.model.load_state_dict(model.state_dict())
    write_expected(folder, oracle, {}, PROVENANCE)


def write_source(folder: pathlib.Path, model: str, fields: Mapping[str, Any]) -> None:
    """Write the golden model, or a model with other sizes, in one file."""
    variant = next(golden for golden in GOLDEN if golden.name == model)
    write_checkpoint(dataclasses.replace(variant, text={**variant.text, **fields}, shards=1), 0, folder)


def write_results(
    folder: pathlib.Path,
    config: Mapping[str, Any],
    numbers: Mapping[str, torch.Tensor],
    quantised: Mapping[str, torch.Tensor],
    provenance: Mapping[str, str],
) -> None:
    """Write the results of transformers with a library's float32 numbers."""
    with tempfile.TemporaryDirectory() as plain:
        wide = {name: tensor.float().contiguous() for name, tensor in numbers.items()}
        save_file(wide, pathlib.Path(plain, "model.safetensors"))
        pathlib.Path(plain, "config.json").write_text(json.dumps(config))
        arrays = {name: tensor.numpy() for name, tensor in quantised.items()}
        write_expected(folder, Oracle.load(pathlib.Path(plain)), arrays, provenance)


def write_expected(
    folder: pathlib.Path, oracle: Oracle, quantised: Mapping[str, np.ndarray], provenance: Mapping[str, str]
) -> None:
    arrays: dict[str, Any] = {}
    random = np.random.default_rng(0)
    for index, length in enumerate(LENGTHS):
        for _ in range(MAX_ATTEMPTS):
            prompt = random.integers(3, 97, length).tolist()
            logits, greedy = oracle.logits(prompt), oracle.greedy(prompt, GREEDY_TOKENS)
            if greedy.margins.min() > MIN_MARGIN:
                break
        else:
            raise RuntimeError(f"{folder}: no prompt of {length} tokens without a near tie")
        arrays |= {f"prompt {index}": np.array(prompt), f"logits {index}": logits, f"greedy {index}": greedy.tokens}
    for name, matrix in quantised.items():
        arrays[name] = (matrix.astype(np.float64) @ np.cos(np.arange(matrix.shape[1]))).astype(np.float32)
    np.savez_compressed(folder / "expected.npz", **arrays)
    (folder / "provenance.json").write_text(json.dumps(provenance) + "\n")
    print(folder, len(quantised), "matrices", sum(file.stat().st_size for file in folder.iterdir()), "bytes")


if __name__ == "__main__":
    main()
