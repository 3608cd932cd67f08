"""Quantised weights of a checkpoint, recognised by their tensors' names."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from hybridlm.quantised.bitsandbytes import BLOCKS, STATE, bitsandbytes_tensor
from hybridlm.quantised.schemes import QuantisedTensor, Read
from hybridlm.quantised.shapes import ADVICE, Hints, Mismatch, TensorInfo, Tensors
from hybridlm.quantised.torchao import PART, UNUSED, torchao_tensor

# Wrappers in tensor names; lists in configurations use any.
_WRAPPERS = ("model", "language_model", "backbone")


def module_name(name: str) -> str:
    """Return a module's name without `.weight` and wrappers."""
    parts = name.removesuffix(".weight").split(".")
    while len(parts) > 1 and parts[0] in _WRAPPERS:
        parts = parts[1:]
    return ".".join(parts)


_CODES = frozenset({"U8", "I8", "I32", "F8_E4M3"})
# Scales of activations and of the KV cache: neither is quantised here.
_IGNORED = ("input_scale", "input_global_scale", "input_scale_ub", "activation_scale", "output_scale")
_IGNORED += ("k_scale", "v_scale", "q_scale", "kv_scale", "prob_scale", "prob_output_scale")
# Unsupported changes of a weight's numbers, by the tensor name's last part.
_REFUSED = {
    "pre_quant_scale": "a scale of input columns (AWQ in modelopt files)",
    "svdquant_lora_a": "a low-rank part (SVDQuant)",
    "svdquant_lora_b": "a low-rank part (SVDQuant)",
    "biases": "affine groups of MLX",
    "W_q": "codes of HQQ",
    "_data": "codes of Quanto",
}
_STATES = tuple(STATE + scheme for scheme in ("nf4", "fp4"))
_BITSANDBYTES = (*BLOCKS.values(), *_STATES, ".SCB", ".weight_format")
_COMPANIONS = ("_scale_inv", "_scale_2", "_global_scale", "_scale", "_zero_point", "_g_idx", "_shape", "_bmm_scale")


@dataclass(frozen=True)
class GroupedTensors:
    """The tensors of a checkpoint, grouped by quantised weight.

    Attributes:
        parts: weight by stored tensor.
        faults: reason, by weight that its tensors do not form.
    """

    quantised: Mapping[str, QuantisedTensor] = field(default_factory=dict)
    parts: Mapping[str, str] = field(default_factory=dict)
    faults: Mapping[str, str] = field(default_factory=dict)


def group_tensors(
    tensors: Mapping[str, TensorInfo],
    read: Read,
    hints: Hints,
    metadata: Callable[[str], Mapping[str, str]] = lambda name: {},
) -> GroupedTensors:
    """Group tensors by quantised weight, in linear time.

    Args:
        read: for tensors that hold a shape.
        metadata: free-form strings of a tensor's file.
    """
    grouped: dict[str, QuantisedTensor] = {}
    parts: dict[str, str] = {}
    faults: dict[str, str] = {}
    for name in tensors:
        weight, members = _members(name, tensors)
        if weight is None:
            continue
        parts.update(dict.fromkeys(members.values(), weight))
        if weight in grouped or weight in faults:
            faults[weight] = f"stored twice: {members['codes']} beside another form of {weight}"
        elif weight in tensors and members["codes"] != weight:
            faults[weight] = f"stored twice: {members['codes']} and {weight}"
        else:
            try:
                parts_of_weight = Tensors(members, tensors, read, hints)
                if members.get("scale", "").endswith((".absmax", ".SCB")):
                    grouped[weight] = bitsandbytes_tensor(parts_of_weight)
                elif name.endswith("_qdata"):
                    grouped[weight] = torchao_tensor(parts_of_weight, weight, metadata(name))
                else:
                    grouped[weight] = parts_of_weight.weight()
            except Mismatch as error:
                faults[weight] = str(error)
    for name in [name for name in tensors if name not in parts]:
        concerned = _concerned(name, tensors)
        if concerned is not None:
            parts[name], fault = concerned
            if fault:
                faults[parts[name]] = fault
    for weight in faults.keys() & grouped.keys():
        del grouped[weight]
    return GroupedTensors(MappingProxyType(grouped), MappingProxyType(parts), MappingProxyType(faults))


def _members(name: str, tensors: Mapping[str, TensorInfo]) -> tuple[str | None, dict[str, str]]:
    """Return the weight of a tensor of codes and its tensors by role."""
    if name.endswith("_packed"):
        stem = name.removesuffix("_packed")
        suffixes = {"scale": "_scale", "global": "_global_scale", "zero": "_zero_point", "order": "_g_idx"}
        roles = {role: stem + suffix for role, suffix in (suffixes | {"shape": "_shape"}).items()}
        weight = stem
    elif name.endswith(".qweight"):
        stem = name.removesuffix("qweight")
        roles = {"scale": stem + "scales", "zero": stem + "qzeros", "order": stem + "g_idx"}
        weight = stem + "weight"
    elif name.endswith("_qdata") and (match := PART.fullmatch(name)):
        stem = name.removesuffix("qdata")
        roles = {"scale": stem + "scale", "zero": stem + "zero_point", "input scale": stem + "act_pre_scale"}
        weight = _weight_of(match)
    elif f"{name}.absmax" in tensors:
        roles = {role: name + suffix for role, suffix in BLOCKS.items()}
        roles["state"] = next((name + state for state in _STATES if name + state in tensors), name + STATE)
        weight = name
    elif name.endswith(".weight") and (rows := name.removesuffix("weight") + "SCB") in tensors:
        roles = {"scale": rows, "format": f"{name}_format"}
        weight = name
    elif tensors[name].dtype in _CODES and not name.endswith(_COMPANIONS):
        roles = {"scale": "_scale", "inverse": "_scale_inv", "global": "_scale_2", "zero": "_zero_point"}
        roles = {role: name + suffix for role, suffix in roles.items()}
        weight = name
    else:
        return None, {}
    members = {role: other for role, other in roles.items() if other in tensors}
    # The check of headers reports these.
    return (weight, {"codes": name, **members}) if members or weight != name else (None, {})


def _concerned(name: str, tensors: Mapping[str, TensorInfo]) -> tuple[str, str] | None:
    """Return the weight of a tensor outside all groups, and why it is unreadable.

    "" for unused scales of activations and caches; None for a plain tensor.
    """
    last = name.rpartition(".")[2]
    if last in _IGNORED or "_bmm" in last:
        return name, ""
    base = name.rpartition(".")[0]
    for key, change in _REFUSED.items():
        # Scales without biases are AWQ's or GPTQ's.
        if name.endswith("." + key) or (key == "biases" and last == "scales" and f"{base}.biases" in tensors):
            base = name.removesuffix("." + key) if name.endswith("." + key) else base
            weight = base if base.endswith(".weight") or base in tensors else base + ".weight"
            return weight, f"{name}: {change}, which is not implemented: {ADVICE}"
    if UNUSED.fullmatch(name):
        return name, ""
    if match := PART.fullmatch(name):
        codes = f"{name.removesuffix(match[3])}qdata"
        return _weight_of(match), "" if codes in tensors else f"{name}: a leftover of torchao: expected {codes}"
    for key in _BITSANDBYTES:
        if name.endswith(key):
            base = name.removesuffix(key)
            weight = base if base.endswith(".weight") or base in tensors else f"{base}.weight"
            return weight, f"{name}: a leftover of bitsandbytes: expected all tensors of its weight"
    for suffix in _COMPANIONS:
        stem = name.removesuffix(suffix)
        if stem != name and (stem in tensors or stem.endswith(".weight")):
            context = f"beside {tensors[stem].dtype} numbers" if stem in tensors else "without a weight"
            return stem, f"{name}: a leftover, {context}: expected the codes that it belongs to"
    if last in ("scales", "qzeros", "g_idx"):
        stem = name.removesuffix(last)
        return stem + "weight", f"{name}: a leftover: expected {stem}qweight beside it"
    if last.endswith(("_blocks", "_scales")) and tensors[name].dtype == "U8":
        weight = name.rpartition("_")[0]
        return weight, f"{name}: MXFP4 in blocks of GPT-OSS is not implemented: {ADVICE}"
    return None


def _weight_of(match: re.Match[str]) -> str:
    return match[2] if match[1] is None else f"{match[1]}.{match[2]}"
