"""Quantisation in a checkpoint's configuration.

`quantization_config` is at the top of config.json or in the text model's part; NVIDIA's files also have
hf_quant_config.json. Tensors decide; the configuration adds `Hints` and refusals.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

from hybridlm.quantised import bitsandbytes, torchao
from hybridlm.quantised.groups import module_name
from hybridlm.quantised.shapes import ADVICE, Hints
from models import text_fields

_MODELOPT: Mapping[str, frozenset[str]] = {
    "FP8": frozenset({"fp8-tensor"}),
    "FP8_PER_CHANNEL_PER_TOKEN": frozenset({"fp8-channel"}),
    "FP8_PB_WO": frozenset({"fp8-block"}),
    "FP8_BLOCK_SCALES": frozenset({"fp8-block"}),
    "MXFP8": frozenset({"mxfp8"}),
    "NVFP4": frozenset({"nvfp4"}),
    "W4A16_NVFP4": frozenset({"nvfp4"}),
    "W4A8_NVFP4_FP8": frozenset({"nvfp4"}),
    "W4A16_MXFP4": frozenset({"mxfp4"}),
}
_MODELOPT_REFUSED = {"NVFP4_AWQ": "pre_quant_scale", "NVFP4_SVD": "low-rank parts"}
REFUSED: Mapping[str, str] = {
    "quark": "AMD Quark",
    "fbgemm_fp8": "FBGEMM FP8",
    "hqq": "HQQ",
    "aqlm": "AQLM",
    "quanto": "Quanto",
    "eetq": "EETQ",
    "vptq": "VPTQ",
    "bitnet": "BitNet",
    "spqr": "SpQR",
    "higgs": "HIGGS",
    "mlx": "MLX",
}
"""Method -> its system, for layouts that are not read."""
MAX_PATTERN = 400


@dataclass(frozen=True)
class QuantisationSettings:
    """Quantisation that a configuration describes.

    Attributes:
        None for any.
        ignored: patterns of plain modules.
        listed: schemes by module, if all are listed.
        faults: unsupported or contradictory settings.
    """

    method: str = ""
    schemes: frozenset[str] | None = None
    hints: Hints = Hints()
    ignored: tuple[str, ...] = ()
    listed: Mapping[str, frozenset[str]] | None = None
    faults: tuple[str, ...] = ()


def read_settings(config: Mapping[str, Any], hf_quant_config: Mapping[str, Any] | None) -> QuantisationSettings:
    entries = [config.get("quantization_config"), text_fields(config).get("quantization_config")]
    entries = [entry for entry in entries if entry]
    if hf_quant_config is None and any(map(_is_mlx, (config.get("quantization"), *entries))):
        return refused("mlx", "config.json: group_size and bits without a quant_method")
    if not entries and hf_quant_config is None:
        return QuantisationSettings()
    for entry in entries:
        if not isinstance(entry, dict):
            return QuantisationSettings("?", faults=(f"quantization_config: expected an object, found {entry!r}",))
    if len(entries) == 2 and entries[0] != entries[1]:
        return QuantisationSettings("?", faults=("quantization_config differs from that of the text model",))
    settings = entries[0] if entries else {}
    modelopt = None
    if hf_quant_config is not None:
        modelopt = hf_quant_config.get("quantization")
        if not isinstance(modelopt, dict):
            return QuantisationSettings("?", faults=("hf_quant_config.json: expected an object named quantization",))
    method = str(settings.get("quant_method") or ("modelopt" if modelopt or "quant_algo" in settings else "?")).lower()
    if method in REFUSED:
        return refused(method, f"quant_method {method!r}")
    readers: Mapping[str, Callable[[], QuantisationSettings]] = {
        "fp8": lambda: _fp8(settings),
        "modelopt": lambda: _modelopt(settings, modelopt),
        "modelopt_fp4": lambda: _modelopt(settings, modelopt),
        "compressed-tensors": lambda: _compressed_tensors(settings),
        "gptq": lambda: _integers("gptq", settings),
        "awq": lambda: _integers("awq", settings),
        "auto-round": lambda: _auto_round(settings),
        "bitsandbytes": lambda: _of_library(settings, bitsandbytes.schemes_of(settings), "llm_int8_skip_modules"),
        "torchao": lambda: _of_library(settings, torchao.schemes_of(settings), "modules_to_not_convert"),
        "mxfp4": lambda: QuantisationSettings("mxfp4", frozenset({"mxfp4"})),
    }
    if method not in readers:
        fault = f"quantisation method {method!r} is not known, expected one of {', '.join(readers)}"
        return QuantisationSettings(method, faults=(fault,))
    chosen = readers[method]()
    if modelopt and not method.startswith("modelopt"):
        schemes = _modelopt({}, modelopt).schemes
        if chosen.schemes and schemes and not chosen.schemes & schemes:
            fault = f"config.json says {method}, hf_quant_config.json says {modelopt['quant_algo']}"
            return replace(chosen, faults=(*chosen.faults, fault))
    return chosen


def refused(method: str, sign: str) -> QuantisationSettings:
    fault = f"written by {REFUSED[method]} ({sign}), whose layout is not implemented: {ADVICE}"
    return QuantisationSettings(method, faults=(fault,))


def _is_mlx(settings: Any) -> bool:
    """Whether MLX wrote the settings: groups and bits without a method."""
    names = settings.keys() if isinstance(settings, dict) else set()
    return {"group_size", "bits"} <= names and not {"quant_method", "quant_algo"} & names


def _fp8(settings: Mapping[str, Any]) -> QuantisationSettings:
    faults = []
    block = settings.get("weight_block_size")
    if block is not None and not (_sizes(block) and len(block) == 2):
        faults.append(f"quantization_config.weight_block_size: expected two sizes or null, found {block!r}")
        block = None
    if settings.get("fmt", "e4m3") not in ("e4m3", "float8_e4m3fn"):
        faults.append(f"quantization_config.fmt: expected e4m3, found {settings['fmt']!r}")
    experts = settings.get("expert_dtype", "fp8")
    if experts not in ("fp8", "fp4"):
        faults.append(f"quantization_config.expert_dtype: expected fp8 or fp4, found {experts!r}")
    schemes = {"fp8-block"} if block else {"fp8-tensor", "fp8-channel"}
    schemes |= {"mxfp4"} if experts == "fp4" else set()
    size = (block[0], block[1]) if block else (128, 128)
    hints = Hints(size, bool(block), fp4_experts=experts == "fp4")
    ignored = (*_names(settings, "modules_to_not_convert", faults), *_names(settings, "ignored_layers", faults))
    return QuantisationSettings("fp8", frozenset(schemes), hints, ignored, faults=tuple(faults))


def _modelopt(settings: Mapping[str, Any], hf_quant_config: Mapping[str, Any] | None) -> QuantisationSettings:
    faults: list[str] = []
    algorithms = [
        str(source["quant_algo"]).upper() for source in (settings, hf_quant_config or {}) if source.get("quant_algo")
    ]
    if len(set(algorithms)) > 1:
        faults.append(f"config.json says quant_algo {algorithms[0]}, hf_quant_config.json says {algorithms[1]}")
    ignored = (*_names(settings, "ignore", faults), *_names(settings, "exclude_modules", faults))
    ignored += _names(hf_quant_config or {}, "exclude_modules", faults)
    if not algorithms:
        return QuantisationSettings("modelopt", None, ignored=ignored, faults=tuple(faults))
    if algorithms[0] != "MIXED_PRECISION":
        schemes = _of_algorithm(algorithms[0], "quant_algo", faults)
        return QuantisationSettings("modelopt", schemes, ignored=ignored, faults=tuple(faults))
    layers = (hf_quant_config or {}).get("quantized_layers") or settings.get("quantized_layers")
    if layers is None:
        return QuantisationSettings("modelopt", None, ignored=ignored, faults=tuple(faults))
    listed = {}
    if not isinstance(layers, dict):
        faults.append(f"quantized_layers: expected an object, found {layers!r}")
        layers = {}
    for module, layer in layers.items():
        algorithm = layer.get("quant_algo") if isinstance(layer, dict) else None
        listed[module_name(_without_mark(module))] = _of_algorithm(
            str(algorithm).upper(), f"quantized_layers.{module}", faults
        )
    return QuantisationSettings("modelopt", None, ignored=ignored, listed=listed, faults=tuple(faults))


def _of_algorithm(name: str, where: str, faults: list[str]) -> frozenset[str]:
    if name in _MODELOPT_REFUSED:
        faults.append(f"{where}: {name} ({_MODELOPT_REFUSED[name]}) is not implemented: {ADVICE}")
    elif name not in _MODELOPT:
        faults.append(f"{where}: {name!r} is not known, expected one of {', '.join(_MODELOPT)}")
    return _MODELOPT.get(name, frozenset())


_MERGED = frozenset({"weight_input", "weight_output"})
"""Places of compressed-tensors' transforms that stored weights include."""


def _places(transforms: Any) -> set[str]:
    locations = set[str]()
    for scheme in transforms.values() if isinstance(transforms, dict) else [transforms]:
        applied = scheme.get("apply") if isinstance(scheme, dict) else None
        for entry in applied if isinstance(applied, list) else [scheme]:
            locations.add(str(entry.get("location")) if isinstance(entry, dict) else repr(entry))
    return locations


def _compressed_tensors(settings: Mapping[str, Any]) -> QuantisationSettings:
    faults: list[str] = []
    groups = settings.get("config_groups") or {}
    if not isinstance(groups, dict):
        faults.append(f"quantization_config.config_groups: expected an object, found {groups!r}")
        groups = {}
    schemes, bits, blocks = set[str](), set[int](), set[tuple[int, int]]()
    for name, group in groups.items():
        weights = group.get("weights") if isinstance(group, dict) else None
        if not isinstance(weights, dict):
            faults.append(f"quantization_config.config_groups.{name}: expected an object with weights")
            continue
        kind, width, strategy = weights.get("type", "int"), weights.get("num_bits", 8), weights.get("strategy")
        size = weights.get("group_size")
        if kind == "float" and width == 8:
            block = weights.get("block_structure")
            if strategy == "block" and _sizes(block) and len(block) == 2:
                blocks.add((block[0], block[1]))
            schemes |= {"fp8-block"} if strategy == "block" else {"fp8-tensor", "fp8-channel"}
            schemes |= {"mxfp8"} if size == 32 else set()
        elif kind == "float" and width == 4:
            schemes |= {"mxfp4"} if size == 32 else {"nvfp4"}
        elif kind == "int" and type(width) is int and 1 <= width <= 8:
            schemes |= {"int-packed", "int8"} if width == 8 else {"int-packed"}
            bits.add(width)
        else:
            faults.append(
                f"quantization_config.config_groups.{name}.weights: {width} bits of type {kind!r} are not known"
            )
    if len(blocks) > 1:
        faults.append(f"quantization_config.config_groups: expected one block_structure, found {sorted(blocks)}")
    hints = Hints(min(blocks), True, frozenset(bits)) if blocks else Hints(bits=frozenset(bits))
    sparsity = settings.get("sparsity_config") or {}
    if not isinstance(sparsity, dict) or sparsity.get("format", "dense") != "dense":
        faults.append("quantization_config.sparsity_config: sparse weights are not implemented")
    transforms = settings.get("transform_config") or {}
    places = _places(transforms.get("config_groups") or {}) if isinstance(transforms, dict) else {repr(transforms)}
    if not places <= _MERGED:
        unsupported = ", ".join(sorted(places - _MERGED))
        faults.append(f"quantization_config.transform_config: rotations at run time are not implemented: {unsupported}")
    ignored = _names(settings, "ignore", faults)
    return QuantisationSettings("compressed-tensors", frozenset(schemes) or None, hints, ignored, faults=tuple(faults))


def _integers(method: str, settings: Mapping[str, Any]) -> QuantisationSettings:
    faults: list[str] = []
    version = settings.get("checkpoint_format", "gptq")
    if method == "gptq" and version not in ("gptq", "gptq_v2"):
        faults.append(f"quantization_config.checkpoint_format: expected gptq or gptq_v2, found {version!r}")
    if method == "awq" and settings.get("version", "gemm") not in ("gemm", "GEMM"):
        faults.append(f"quantization_config.version: expected gemm, found {settings['version']!r}")
    ignored = _names(settings, "modules_to_not_convert", faults)
    hints = Hints(zero_plus_one=version != "gptq_v2")
    return QuantisationSettings(method, frozenset({method}), hints, ignored, faults=tuple(faults))


def _auto_round(settings: Mapping[str, Any]) -> QuantisationSettings:
    packing = str(settings.get("packing_format", ""))
    if packing.endswith("auto_awq"):
        return QuantisationSettings("auto-round", frozenset({"awq"}))
    if packing.endswith("auto_gptq"):
        return QuantisationSettings("auto-round", frozenset({"gptq"}))
    if packing == "llm_compressor":
        return QuantisationSettings("auto-round", None)
    expected = "auto_round:auto_gptq, auto_round:auto_awq or llm_compressor"
    fault = f"quantization_config.packing_format: expected {expected}, found {packing!r}"
    return QuantisationSettings("auto-round", faults=(fault,))


def _of_library(settings: Mapping[str, Any], schemes: frozenset[str] | None, plain: str) -> QuantisationSettings:
    faults: list[str] = []
    ignored = _names(settings, plain, faults)
    return QuantisationSettings(settings["quant_method"], schemes, ignored=ignored, faults=tuple(faults))


def _sizes(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(size) is int and size > 0 for size in value)


def _names(settings: Mapping[str, Any], key: str, faults: list[str]) -> tuple[str, ...]:
    names = settings.get(key) or []
    if not isinstance(names, list) or not all(isinstance(name, str) and len(name) <= MAX_PATTERN for name in names):
        faults.append(f"{key}: expected a list of module names")
        return ()
    return tuple(map(_without_mark, names))


def _without_mark(name: str) -> str:
    """Return a modelopt name without the mark that modelopt 0.47 leaves behind NUL."""
    return re.sub(r"\.\0[^*]*", "", name)
