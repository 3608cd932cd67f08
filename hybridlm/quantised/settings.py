"""Quantisation in a checkpoint's configuration.

`quantization_config` is at the top of config.json or in the text model's part; NVIDIA's files also have
hf_quant_config.json. Tensors decide; the configuration adds `Hints` and refusals.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from hybridlm.quantised import bitsandbytes, torchao
from hybridlm.quantised.compressed_tensors import described, is_size, is_sizes
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


def quantisation_entries(config: Mapping[str, Any]) -> list[Any]:
    """Return the descriptions in config.json, of the whole and of its text model."""
    entries = (fields.get("quantization_config") for fields in (config, text_fields(config)))
    return [entry for entry in entries if entry]


def read_settings(config: Mapping[str, Any], hf_quant_config: Mapping[str, Any] | None) -> QuantisationSettings:
    entries = quantisation_entries(config)
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
    faults: list[str] = []
    readers: Mapping[str, Callable[[], QuantisationSettings]] = {
        "fp8": lambda: _fp8(settings, faults),
        "modelopt": lambda: _modelopt(settings, modelopt or {}, faults),
        "modelopt_fp4": lambda: _modelopt(settings, modelopt or {}, faults),
        "compressed-tensors": lambda: _compressed_tensors(settings, faults),
        "gptq": lambda: _integers("gptq", settings, faults),
        "awq": lambda: _integers("awq", settings, faults),
        "auto-round": lambda: _auto_round(settings, faults),
        "bitsandbytes": lambda: _of_library(
            settings, bitsandbytes.schemes_of(settings), "llm_int8_skip_modules", faults
        ),
        "torchao": lambda: _of_library(settings, torchao.schemes_of(settings), "modules_to_not_convert", faults),
        "mxfp4": lambda: QuantisationSettings("mxfp4", frozenset({"mxfp4"})),
    }
    if method not in readers:
        fault = f"quantisation method {method!r} is not known, expected one of {', '.join(readers)}"
        return QuantisationSettings(method, faults=(fault,))
    chosen = readers[method]()
    if modelopt and not method.startswith("modelopt"):
        schemes = _modelopt({}, modelopt, []).schemes
        if chosen.schemes and schemes and not chosen.schemes & schemes:
            faults.append(f"config.json says {method}, hf_quant_config.json says {modelopt['quant_algo']}")
    return replace(chosen, faults=tuple(faults))


def refused(method: str, sign: str) -> QuantisationSettings:
    fault = f"written by {REFUSED[method]} ({sign}), whose layout is not implemented: {ADVICE}"
    return QuantisationSettings(method, faults=(fault,))


def _is_mlx(settings: Any) -> bool:
    """Whether MLX wrote the settings: groups and bits without a method."""
    names = settings.keys() if isinstance(settings, dict) else set()
    return {"group_size", "bits"} <= names and not {"quant_method", "quant_algo"} & names


def _fp8(settings: Mapping[str, Any], faults: list[str]) -> QuantisationSettings:
    block = settings.get("weight_block_size")
    if block is not None and not (is_sizes(block) and len(block) == 2):
        faults.append(f"quantization_config.weight_block_size: expected two sizes or null, found {block!r}")
        block = None
    if settings.get("fmt", "e4m3") not in ("e4m3", "float8_e4m3fn"):
        faults.append(f"quantization_config.fmt: expected e4m3, found {settings['fmt']!r}")
    experts = settings.get("expert_dtype", "fp8")
    if experts not in ("fp8", "fp4"):
        faults.append(f"quantization_config.expert_dtype: expected fp8 or fp4, found {experts!r}")
    # Ling 3.0; DeepSeek writes the field above.
    routed = settings.get("routed_experts_quant_method", "mxfp4" if experts == "fp4" else "fp8")
    if routed not in ("fp8", "mxfp4"):
        faults.append(f"quantization_config.routed_experts_quant_method: expected fp8 or mxfp4, found {routed!r}")
    if (columns := settings.get("routed_experts_group_size", 32)) != 32 and routed == "mxfp4":
        faults.append(f"quantization_config.routed_experts_group_size: expected 32, found {columns!r}")
    schemes = {"fp8-block"} if block else {"fp8-tensor", "fp8-channel"}
    schemes |= {"fp8-block"} if "weight_block_size" not in settings else set()  # 128 x 128, as in transformers
    schemes |= {"mxfp4"} if routed == "mxfp4" else set()
    size = (block[0], block[1]) if block else (128, 128)
    hints = Hints(size, bool(block), fp4_experts=routed == "mxfp4")
    ignored = (*_names(settings, "modules_to_not_convert", faults), *_names(settings, "ignored_layers", faults))
    return QuantisationSettings("fp8", frozenset(schemes), hints, ignored)


def _modelopt(
    settings: Mapping[str, Any], hf_quant_config: Mapping[str, Any], faults: list[str]
) -> QuantisationSettings:
    algorithms = [
        str(source["quant_algo"]).upper() for source in (settings, hf_quant_config) if source.get("quant_algo")
    ]
    if len(set(algorithms)) > 1:
        faults.append(f"config.json says quant_algo {algorithms[0]}, hf_quant_config.json says {algorithms[1]}")
    ignored = (*_names(settings, "ignore", faults), *_names(settings, "exclude_modules", faults))
    ignored += _names(hf_quant_config, "exclude_modules", faults)
    if algorithms and algorithms[0] != "MIXED_PRECISION":
        return QuantisationSettings("modelopt", _of_algorithm(algorithms[0], "quant_algo", faults), ignored=ignored)
    layers = hf_quant_config.get("quantized_layers") or settings.get("quantized_layers")
    if not algorithms or layers is None:
        return QuantisationSettings("modelopt", ignored=ignored)
    listed = {}
    if not isinstance(layers, dict):
        faults.append(f"quantized_layers: expected an object, found {layers!r}")
        layers = {}
    for module, layer in layers.items():
        algorithm = layer.get("quant_algo") if isinstance(layer, dict) else None
        listed[module_name(_without_mark(module))] = _of_algorithm(
            str(algorithm).upper(), f"quantized_layers.{module}", faults
        )
    return QuantisationSettings("modelopt", ignored=ignored, listed=listed)


def _of_algorithm(name: str, where: str, faults: list[str]) -> frozenset[str]:
    if name in _MODELOPT_REFUSED:
        faults.append(f"{where}: {name} ({_MODELOPT_REFUSED[name]}) is not implemented: {ADVICE}")
    elif name not in _MODELOPT:
        faults.append(f"{where}: {name!r} is not known, expected one of {', '.join(_MODELOPT)}")
    return _MODELOPT.get(name, frozenset())


def _compressed_tensors(settings: Mapping[str, Any], faults: list[str]) -> QuantisationSettings:
    schemes, hints = described(settings, faults)
    return QuantisationSettings("compressed-tensors", schemes, hints, _names(settings, "ignore", faults))


def _integers(method: str, settings: Mapping[str, Any], faults: list[str]) -> QuantisationSettings:
    # transformers and GPTQModel write one of these names or several.
    names = ("checkpoint_format", "format", *(["version"] if method == "awq" else []))
    versions = {name: settings.get(name) for name in names}
    versions |= {"format": "marlin"} if settings.get("is_marlin_format") else {}
    versions |= {"format": "llm-awq"} if settings.get("backend") == "llm-awq" else {}
    versions = {name: str(version).lower() for name, version in versions.items() if version is not None}
    expected = ("gptq", "gptq_v2") if method == "gptq" else ("gemm",)
    for name, version in versions.items():
        if version not in expected or version != next(iter(versions.values())):
            faults.append(f"quantization_config.{name}: expected {' or '.join(expected)}, found {version!r}")
    ignored = _names(settings, "modules_to_not_convert", faults)
    hints = replace(
        _groups(settings), zero_plus_one="gptq_v2" not in versions.values(), ordered=settings.get("desc_act") is True
    )
    return QuantisationSettings(method, frozenset({method}), hints, ignored)


def _groups(settings: Mapping[str, Any]) -> Hints:
    size = settings.get("group_size", settings.get("q_group_size"))
    return Hints(groups=frozenset([size] if is_size(size) else []))


def _auto_round(settings: Mapping[str, Any], faults: list[str]) -> QuantisationSettings:
    packing = str(settings.get("packing_format", ""))
    if packing.endswith("auto_awq"):
        return QuantisationSettings("auto-round", frozenset({"awq"}), _groups(settings))
    if packing.endswith("auto_gptq"):
        return QuantisationSettings("auto-round", frozenset({"gptq"}), _groups(settings))
    if packing != "llm_compressor":
        expected = "auto_round:auto_gptq, auto_round:auto_awq or llm_compressor"
        faults.append(f"quantization_config.packing_format: expected {expected}, found {packing!r}")
    return QuantisationSettings("auto-round")


def _of_library(
    settings: Mapping[str, Any], schemes: frozenset[str] | None, plain: str, faults: list[str]
) -> QuantisationSettings:
    return QuantisationSettings(settings["quant_method"], schemes, ignored=_names(settings, plain, faults))


def _names(settings: Mapping[str, Any], key: str, faults: list[str]) -> tuple[str, ...]:
    names = settings.get(key) or []
    if not isinstance(names, list) or not all(isinstance(name, str) and len(name) <= MAX_PATTERN for name in names):
        faults.append(f"{key}: expected a list of module names")
        return ()
    return tuple(map(_without_mark, names))


def _without_mark(name: str) -> str:
    """Return a modelopt name without the mark that modelopt 0.47 leaves behind NUL."""
    return re.sub(r"\.\0[^*]*", "", name)
