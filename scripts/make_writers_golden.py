"""Write tests/golden_quantised/{gptq,awq,modelopt-*,nvidia-recipes}: tiny checkpoints by the formats' own libraries.

    python scripts/make_writers_golden.py [--output tests/golden_quantised]

Needs the extra `oracle`, nvidia-modelopt 0.47, GPTQModel 7.7 and AutoAWQ 0.2.9, which require other versions of torch
and transformers: `pip install --no-deps` into a separate environment. modelopt writes whole checkpoints, by its presets
and NVIDIA's recipes; GPTQModel and AutoAWQ pack codes in their layers, without a calibration. Folders are as in
`make_quantised_golden.py`; each library computes the numbers in `expected.npz` from its codes.
"""

# The writers are in no extra of this project.
# pyright: reportMissingImports=false

import argparse
import importlib.util
import json
import pathlib
import shutil
import sys
import tempfile
import types
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any

import modelopt.torch.quantization as modelopt_quantization
import torch
import transformers
from make_quantised_golden import ROOT, WIDE, Tensors, is_quantised, write_results, write_source
from modelopt.recipe import load_recipe
from modelopt.torch.export import export_hf_checkpoint
from modelopt.torch.quantization.qtensor import FP8QTensor, NVFP4QTensor
from safetensors.torch import load_file, save_file

GROUP = 8
NEMOTRON = {"moe_latent_size": 32}
LAYERS = {"layers_block_type": ["linear_attention", "mlp", "full_attention", "mlp"], "num_hidden_layers": 4}
RECIPES: Mapping[str, tuple[str, dict[str, Any], str]] = {
    "nemotron-super": (
        "nemotron_latent",
        NEMOTRON,
        "models/nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16/ptq/nvfp4-max-calib",
    ),
    "nemotron-lightning": (
        "nemotron_latent",
        NEMOTRON,
        "models/nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-BF16/ptq/w4a16_nvfp4_4o6",
    ),
    "nemotron-4b": ("nemotron_latent", LAYERS, "models/nvidia/NVIDIA-Nemotron-3-Nano-4B-BF16/ptq/nvfp4_w4a16"),
    "qwen-moe": ("sparse_base", WIDE["sparse_base"], "huggingface/qwen3_5_moe/ptq/w4a16_nvfp4-fp8_attn-kv_fp8_cast"),
}
"""Folder -> golden model, its other fields, and NVIDIA's recipe."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "tests" / "golden_quantised")
    output = parser.parse_args().output
    torch.set_num_threads(1)
    for folder in ("gptq", "awq", "modelopt-fp8", "modelopt-nvfp4", "nvidia-recipes"):
        shutil.rmtree(output / folder, ignore_errors=True)
    for model in WIDE:
        write_packed(output / "gptq" / model, model, WIDE[model], pack_gptq)
        write_packed(output / "awq" / model, model, WIDE[model], pack_awq)
        write_modelopt(output / "modelopt-fp8" / model, model, {}, modelopt_quantization.FP8_DEFAULT_CFG)
        write_modelopt(output / "modelopt-nvfp4" / model, model, {}, modelopt_quantization.NVFP4_DEFAULT_CFG)
    fields = NEMOTRON | {"layers_block_type": ["linear_attention", "moe", "linear_attention", "full_attention"]}
    preset = modelopt_quantization.MAMBA_MOE_NVFP4_AGGRESSIVE_CFG
    # The Mamba layer before each attention is plain in the published file.
    config = {**preset, "quant_cfg": [*preset["quant_cfg"], {"quantizer_name": "*layers.2.*", "enable": False}]}
    write_modelopt(output / "nvidia-recipes" / "nemotron-nano", "nemotron_latent", fields, config)
    for name, (model, fields, recipe) in RECIPES.items():
        config = load_recipe(recipe).quantize.model_dump()
        if config["algorithm"] != "max":
            # The search for better scales (4/6) is a Triton kernel; weights and format are the same.
            config["algorithm"] = "max"
            for entry in config["quant_cfg"]:
                if "four_over_six" in ((entry["cfg"] or {}).get("block_sizes") or {}):
                    entry["cfg"] |= {"block_sizes": {-1: 16, "type": "dynamic", "scale_bits": (4, 3)}}
        write_modelopt(output / "nvidia-recipes" / name, model, fields, config)


def write_modelopt(folder: pathlib.Path, model: str, fields: Mapping[str, Any], config: Any) -> None:
    with tempfile.TemporaryDirectory() as source:
        write_source(pathlib.Path(source), model, fields)
        auto: Any = transformers.AutoModelForCausalLM
        module = auto.from_pretrained(source, dtype=torch.bfloat16)
        ids = torch.arange(3, 90)[None]
        module = modelopt_quantization.quantize(module, config, lambda network: network(ids))
        for name, layer in module.named_modules():
            # Blocks of 16 columns that do not fill a row cannot be written.
            weight = getattr(layer, "weight", None)
            if hasattr(layer, "weight_quantizer") and weight is not None and weight.shape[-1] % 16:
                print(f"{folder.name}: {name} of {list(weight.shape)} stays plain")
                layer.weight_quantizer.disable()
                layer.input_quantizer.disable()
        export_hf_checkpoint(module, export_dir=folder)
        (folder / "generation_config.json").unlink()
        written = load_file(folder / "model.safetensors")
        numbers = {name: tensor for name, tensor in written.items() if not name.endswith(("_scale", "_scale_2"))}
        quantised = Tensors()
        for name, codes in numbers.items():
            scale, tensor_scale = (written.get(f"{name}{end}") for end in ("_scale", "_scale_2"))
            if scale is None:
                continue
            if tensor_scale is None:
                values = FP8QTensor(codes.shape, torch.float32, codes).dequantize(torch.float32, scale=scale)
            else:
                shape = torch.Size((*codes.shape[:-1], 2 * codes.shape[-1]))
                packed = NVFP4QTensor(shape, torch.float32, codes)
                values = packed.dequantize(torch.float32, scale=scale, double_scale=tensor_scale, block_sizes={-1: 16})
            quantised[name] = values
        settings = json.loads((folder / "config.json").read_text())
        settings.pop("quantization_config")
        write_results(folder, settings, numbers | quantised, quantised, versions("nvidia-modelopt"))


Pack = Callable[[torch.nn.Linear], tuple[Tensors, torch.Tensor]]
"""Layer -> tensors of the file, and the numbers that the library computes from the tensors."""


def write_packed(
    folder: pathlib.Path, model: str, fields: Mapping[str, Any], pack: Callable[[str], tuple[Pack, dict[str, Any], str]]
) -> None:
    packed, config, library = pack(model)
    with tempfile.TemporaryDirectory() as source:
        write_source(pathlib.Path(source), model, fields)
        tensors = load_file(pathlib.Path(source, "model.safetensors"))
        settings = json.loads(pathlib.Path(source, "config.json").read_text())
    written, quantised = Tensors(), Tensors()
    for name, tensor in tensors.items():
        if tensor.ndim != 2 or not is_quantised(name):
            written[name] = tensor
            continue
        layer = torch.nn.Linear(tensor.shape[1], tensor.shape[0], bias=False)
        layer.weight.data = tensor.float()
        state, quantised[name] = packed(layer)
        written |= {f"{name.removesuffix('weight')}{part}": value.contiguous() for part, value in state.items()}
    folder.mkdir(parents=True)
    save_file(written, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(settings | {"quantization_config": config}, indent=1) + "\n")
    write_results(folder, settings, tensors | quantised, quantised, versions(library))


def scales(weight: torch.Tensor, groups: torch.Tensor, bits: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return scales in the range of float16, and zero points: [out, group]."""
    numbers = [weight[:, groups == group] for group in range(int(groups.max()) + 1)]
    low = torch.stack([values.amin(1) for values in numbers], 1).clamp(max=0)
    high = torch.stack([values.amax(1) for values in numbers], 1).clamp(min=0)
    scale = ((high - low) / (2**bits - 1)).half().float()
    return scale, (-low / scale).round().clamp(1, 2**bits - 1)


def pack_gptq(model: str) -> tuple[Pack, dict[str, Any], str]:
    from gptqmodel import QuantizeConfig
    from gptqmodel.nn_modules.qlinear.torch import TorchLinear
    from gptqmodel.utils.model import convert_gptq_v2_to_v1_format_module

    # One model has permuted columns, another wider codes.
    ordered, bits, group = model == "dense_interval", 8 if model == "mamba2_base" else 4, 16
    config = QuantizeConfig(bits=bits, group_size=group, desc_act=ordered, sym=False)

    def pack(layer: torch.nn.Linear) -> tuple[Tensors, torch.Tensor]:
        out, columns = layer.weight.shape
        order = (
            torch.randperm(columns, generator=torch.Generator().manual_seed(0)) if ordered else torch.arange(columns)
        )
        groups = (order // group).to(torch.int32)
        scale, zero = scales(layer.weight.data, groups, bits)
        # The first version of the format stores zero points less one, and borrows for these.
        zero[::5] = 0
        packed = TorchLinear(bits, group, sym=False, desc_act=ordered, in_features=columns, out_features=out)
        packed.pack_block(layer, scale, zero, groups)
        packed.eval()
        stored = packed.scales
        packed.scales = stored.float()
        numbers = packed.dequantize_weight().T.float().contiguous().clone()
        packed.scales = stored
        convert_gptq_v2_to_v1_format_module(packed, config)
        return {name: getattr(packed, name).clone() for name in ("qweight", "qzeros", "scales", "g_idx")}, numbers

    settings = json.loads(json.dumps(config.to_dict(), default=str))
    del settings["meta"]["offload_to_disk_path"]  # a temporary folder of this machine
    return pack, settings, "gptqmodel"


def pack_awq(_: str) -> tuple[Pack, dict[str, Any], str]:
    if "awq" not in sys.modules:
        # Only its layers: AutoAWQ imports names that this transformers lacks.
        spec = importlib.util.find_spec("awq")
        assert spec is not None and spec.submodule_search_locations is not None
        sys.modules["awq"] = types.ModuleType("awq")
        sys.modules["awq"].__path__ = list(spec.submodule_search_locations)
    from awq.modules.linear.gemm import WQLinear_GEMM
    from awq.utils.packing_utils import dequantize_gemm

    def pack(layer: torch.nn.Linear) -> tuple[Tensors, torch.Tensor]:
        columns = layer.in_features
        scale, zero = scales(layer.weight.data, torch.arange(columns) // GROUP, 4)
        packed = WQLinear_GEMM.from_linear(layer, 4, GROUP, scales=scale.T.contiguous(), zeros=zero.T.contiguous())
        state = {name: getattr(packed, name) for name in ("qweight", "qzeros", "scales")}
        numbers = dequantize_gemm(state["qweight"], state["qzeros"], state["scales"].float(), 4, GROUP)
        return state, numbers.T.contiguous()

    config = {"bits": 4, "group_size": GROUP, "modules_to_not_convert": ["gate", "lm_head"], "quant_method": "awq"}
    return pack, config | {"version": "gemm", "zero_point": True}, "autoawq"


def versions(library: str) -> dict[str, str]:
    command = {"command": "python scripts/make_writers_golden.py", library: version(library)}
    return command | {"torch": torch.__version__, "transformers": transformers.__version__}


if __name__ == "__main__":
    main()
