"""Write tests/golden_matrices and tests/golden_quantised/{bitsandbytes,torchao}: files of these two libraries.

    MSLK_PYTHON_ONLY=1 python scripts/make_libraries_golden.py [--output tests]

Needs the extras `oracle` and `gguf`, bitsandbytes 0.50, torchao 0.18 and, with `pip install --no-deps`, mslk-cuda 1.1
for torchao's four-bit codes; no GPU. Each file of golden_matrices is one stored matrix; `expected.safetensors` has the
library's numbers. transformers writes the checkpoints, with results as in `make_quantised_golden.py`.
"""

# The libraries are in no extra of this project.
# pyright: reportMissingImports=false

import argparse
import json
import os
import pathlib
import shutil
import sys
import tempfile
import types
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any, NamedTuple

os.environ["MSLK_PYTHON_ONLY"] = "1"
# A kernel for GPUs that mslk imports; the codes are made without it.
KERNELS: Any = types.ModuleType("mslk.quantize.triton.fp8_quantize")
KERNELS.quantize_fp8_row = None
sys.modules[KERNELS.__name__] = KERNELS

import bitsandbytes
import torch
import torchao.quantization as torchao
import transformers
from bitsandbytes.backends.default.ops import _dequantize_4bit_compute
from make_quantised_golden import ROOT, WIDE, Tensors, write_results, write_source
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torchao.prototype.gptq.api import _int4_row_dequantize_zp
from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
from torchao.quantization import Float8Tensor, Int4Tensor, Int8Tensor, IntxUnpackedToInt8Tensor, MappingType
from torchao.quantization.granularity import PerBlock, PerGroup, PerRow, PerTensor
from torchao.quantization.quantize_.workflows import QuantizeTensorToFloat8Kwargs, QuantizeTensorToInt8Kwargs
from torchao.quantization.quantize_.workflows.int4.int4_tensor import _int4_symmetric_quantize
from transformers import BitsAndBytesConfig, TorchAoConfig

NAME = "layer.weight"


class Matrix(NamedTuple):
    """A matrix as a library stores it, with the library's `numbers` for it."""

    tensors: Tensors
    metadata: Mapping[str, str]
    numbers: torch.Tensor


def weight(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(5))
    return (values * torch.linspace(0.1, 3, shape[-2])[:, None]).to(dtype)


def four_bits(matrix: torch.Tensor, kind: str, storage: torch.dtype = torch.uint8, nested: bool = False) -> Matrix:
    """Quantise as layers and experts of bitsandbytes do."""
    codes, state = bitsandbytes.functional.quantize_4bit(
        matrix, quant_type=kind, compress_statistics=nested, quant_storage=storage
    )
    parts = {f"{NAME}.{key}": value for key, value in state.as_dict(packed=True).items()}
    return Matrix({NAME: codes} | parts, {}, block_numbers(codes, state))


def block_numbers(codes: torch.Tensor, state: Any) -> torch.Tensor:
    """Return the numbers of four-bit codes in the dtype of `state`.

    The kernel of bitsandbytes 0.50 for CPUs with AVX-512 begins a block at every row, even if a block covers several
    rows; the portable form, called here, has the numbers of GPUs.
    """
    scale = state.absmax
    if state.nested:
        scale = bitsandbytes.functional.dequantize_blockwise(scale, state.state2) + state.offset
    stored = codes.reshape(-1).view(torch.uint8)
    portable = _dequantize_4bit_compute.__wrapped__
    numbers = portable(stored, scale, state.code, state.blocksize, state.shape, state.dtype).reshape(state.shape)
    if state.shape[-1] % state.blocksize == 0:
        assert torch.equal(numbers, bitsandbytes.functional.dequantize_4bit(codes, state))
    return numbers


def eight_bits(matrix: torch.Tensor) -> Matrix:
    layer = bitsandbytes.nn.Linear8bitLt(matrix.shape[1], matrix.shape[0], bias=False, has_fp16_weights=False)
    layer.weight = bitsandbytes.nn.Int8Params(matrix, requires_grad=False)
    layer = layer.to("cpu")
    numbers = bitsandbytes.functional.int8_vectorwise_dequant(layer.weight.data, layer.weight.SCB)
    return Matrix({f"layer.{key}": value for key, value in layer.state_dict().items()}, {}, numbers)


def flat(tensor: torch.Tensor, numbers: torch.Tensor | None = None) -> Matrix:
    """Store a tensor of torchao."""
    tensors, metadata = flatten_tensor_state_dict({NAME: tensor})
    return Matrix(tensors, metadata, tensor.dequantize() if numbers is None else numbers)


def float8(granularity: Any, dynamic: bool = False, *shape: int) -> Matrix:
    arguments = {"act_quant_kwargs": QuantizeTensorToFloat8Kwargs(granularity=granularity)} if dynamic else {}
    return flat(Float8Tensor.from_hp(weight(*(shape or (24, 48))), granularity=granularity, **arguments))


def int8(granularity: Any, mapping: MappingType = MappingType.SYMMETRIC, dynamic: bool = False) -> Matrix:
    arguments = {"act_quant_kwargs": QuantizeTensorToInt8Kwargs(granularity=PerRow())} if dynamic else {}
    shifted = weight(24, 48) + (2.0 if mapping is MappingType.ASYMMETRIC else 0.0)
    return flat(Int8Tensor.from_hp(shifted, granularity, mapping_type=mapping, **arguments))


def int4(symmetric: bool, *shape: int) -> Matrix:
    matrix = weight(*shape, dtype=torch.bfloat16)
    tensor = Int4Tensor.from_hp(matrix, [*(1 for _ in shape[1:]), 16])
    if symmetric:
        codes, scale, zero = _int4_symmetric(matrix, 16)
        tensor = Int4Tensor(codes, scale, zero, [1, 16], matrix.shape, activation_dtype=torch.float8_e4m3fn)
    return flat(tensor, int4_numbers(tensor))


def _int4_symmetric(matrix: torch.Tensor, group: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    from mslk.quantize.shuffle import pack_int4

    codes, scale, zero = _int4_symmetric_quantize(matrix, group)
    return pack_int4(codes), scale.to(matrix.dtype), zero.to(matrix.dtype)


def int4_numbers(tensor: Any) -> torch.Tensor:
    """Return the float32 numbers of torchao's GPTQ for four-bit codes."""

    def numbers(packed: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
        if packed.ndim == 3:
            return torch.stack([numbers(*parts) for parts in zip(packed, scale, zero, strict=True)])
        codes = torch.stack([packed << 4 >> 4, packed >> 4], -1).flatten(1)
        return _int4_row_dequantize_zp(codes, scale.float(), zero.float(), tensor.block_size[-1])

    return numbers(tensor.qdata, tensor.scale, tensor.zero_point)


def intx(bits: torch.dtype, group: int, mapping: MappingType) -> Matrix:
    matrix = weight(24, 48, dtype=torch.bfloat16)
    return flat(IntxUnpackedToInt8Tensor.from_hp(matrix, (1, group), bits, mapping_type=mapping))


def matrices() -> Mapping[str, Matrix]:
    return {
        "nf4": four_bits(weight(24, 64), "nf4"),
        "nf4-bfloat16": four_bits(weight(24, 64, dtype=torch.bfloat16), "nf4"),
        "nf4-nested": four_bits(weight(258, 64), "nf4", nested=True),
        "nf4-stored-as-bfloat16": four_bits(weight(24, 64), "nf4", storage=torch.bfloat16),
        "nf4-cut-block": four_bits(weight(7, 21), "nf4"),
        "nf4-experts": four_bits(weight(3, 10, 32), "nf4"),
        "fp4": four_bits(weight(24, 64), "fp4"),
        "fp4-nested": four_bits(weight(24, 64, dtype=torch.bfloat16), "fp4", nested=True),
        "llm-int8": eight_bits(weight(24, 48)),
        "float8-rows": float8(PerRow()),
        "float8-tensor": float8(PerTensor(), True),
        "float8-blocks": float8(PerBlock([12, 16])),
        "float8-experts": float8(PerRow(), True, 3, 10, 32),
        "int8-rows": int8(PerRow(), dynamic=True),
        "int8-tensor": int8(PerTensor()),
        "int8-groups": int8(PerGroup(16)),
        "int8-zeros": int8(PerRow(), MappingType.ASYMMETRIC),
        "intx-int4": intx(torch.int4, 16, MappingType.SYMMETRIC),  # pyright: ignore[reportAttributeAccessIssue]  # types of torch
        "intx-int3-zeros": intx(torch.int3, 48, MappingType.ASYMMETRIC),  # pyright: ignore[reportAttributeAccessIssue]
        "int4": int4(False, 24, 48),
        "int4-experts": int4(False, 3, 10, 32),
        "int4-symmetric": int4(True, 24, 48),
    }


CHECKPOINTS: Mapping[str, Any] = {
    "bitsandbytes/dense_interval": BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True
    ),
    "bitsandbytes/sparse_base": BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="fp4"),
    "bitsandbytes/mamba2_base": BitsAndBytesConfig(load_in_8bit=True),
    "torchao/dense_interval": TorchAoConfig(torchao.Float8WeightOnlyConfig()),
    "torchao/sparse_base": TorchAoConfig(torchao.Int4WeightOnlyConfig(group_size=32)),
    "torchao/mamba2_base": TorchAoConfig(
        torchao.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(8))  # pyright: ignore[reportAttributeAccessIssue]
    ),
}
"""Folder of tests/golden_quantised -> how transformers quantises the model of this name."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "tests")
    output = parser.parse_args().output
    torch.set_num_threads(1)
    folder = output / "golden_matrices"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    numbers = {}
    for name, matrix in matrices().items():
        tensors = {key: tensor.contiguous() for key, tensor in matrix.tensors.items()}
        save_file(tensors, folder / f"{name}.safetensors", dict(matrix.metadata) or None)
        numbers[name] = matrix.numbers.contiguous()
    save_file(numbers, folder / "expected.safetensors")
    (folder / "provenance.json").write_text(json.dumps(provenance()) + "\n")
    for name, config in CHECKPOINTS.items():
        shutil.rmtree(output / "golden_quantised" / name, ignore_errors=True)
        write_quantised(output / "golden_quantised" / name, name.rpartition("/")[2], config)


def provenance() -> dict[str, str]:
    libraries = ("bitsandbytes", "torchao", "mslk-cuda", "torch", "transformers")
    return {"command": "python scripts/make_libraries_golden.py"} | {name: version(name) for name in libraries}


def write_quantised(folder: pathlib.Path, model: str, config: Any) -> None:
    with tempfile.TemporaryDirectory() as source:
        write_source(pathlib.Path(source), model, WIDE[model])
        auto: Any = transformers.AutoModelForCausalLM
        module = auto.from_pretrained(source, dtype=torch.bfloat16, quantization_config=config, device_map="cpu")
        module.save_pretrained(folder)
        (folder / "generation_config.json").unlink()
        quantised = numbers_of(module)
        written = load_file(folder / "model.safetensors") | quantised
        with safe_open(pathlib.Path(source, "model.safetensors"), "pt") as file:
            numbers = {name: written[name] for name in file.keys()}
    settings = json.loads((folder / "config.json").read_text())
    settings.pop("quantization_config")
    write_results(folder, settings, numbers, quantised, provenance())


def numbers_of(module: Any) -> Tensors:
    """Return the numbers of each quantised weight of a model, in float32."""
    numbers = Tensors()
    for name, layer in module.named_modules():
        parameter: Any = getattr(layer, "weight", None)
        if isinstance(parameter, bitsandbytes.nn.Params4bit):
            state = parameter.quant_state
            state.dtype = torch.float32
            values = block_numbers(parameter.data, state)
        elif isinstance(parameter, bitsandbytes.nn.Int8Params):
            values = bitsandbytes.functional.int8_vectorwise_dequant(parameter.data, parameter.SCB)
        elif isinstance(parameter, Int4Tensor):
            values = int4_numbers(parameter)
        elif isinstance(parameter, Float8Tensor):
            values = parameter.dequantize(torch.float32)
        elif isinstance(parameter, IntxUnpackedToInt8Tensor):
            values = parameter.to(torch.float32).dequantize()
        else:
            continue
        numbers[f"{name}.weight"] = values.detach()
    return numbers


if __name__ == "__main__":
    main()
