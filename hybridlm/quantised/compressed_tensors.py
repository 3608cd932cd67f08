"""`quantization_config` of compressed-tensors."""

from collections.abc import Mapping
from typing import Any, TypeGuard

from hybridlm.quantised.shapes import Hints

_MERGED = frozenset({"weight_input", "weight_output"})
"""Places of compressed-tensors' transforms that stored weights include."""


def _places(transforms: Any) -> set[str]:
    locations = set[str]()
    for scheme in transforms.values() if isinstance(transforms, dict) else [transforms]:
        applied = scheme.get("apply") if isinstance(scheme, dict) else None
        for entry in applied if isinstance(applied, list) else [scheme]:
            locations.add(str(entry.get("location")) if isinstance(entry, dict) else repr(entry))
    return locations


def described(settings: Mapping[str, Any], faults: list[str]) -> tuple[frozenset[str] | None, Hints]:
    """Return a configuration's schemes (None for any) and hints; append its faults."""
    groups = settings.get("config_groups") or {}
    if not isinstance(groups, dict):
        faults.append(f"quantization_config.config_groups: expected an object, found {groups!r}")
        groups = {}
    schemes, bits, blocks = set[str](), set[int](), set[tuple[int, int]]()
    integers: list[Mapping[str, Any]] = []
    for name, group in groups.items():
        weights = group.get("weights") if isinstance(group, dict) else None
        if not isinstance(weights, dict):
            faults.append(f"quantization_config.config_groups.{name}: expected an object with weights")
            continue
        kind, width, strategy = weights.get("type", "int"), weights.get("num_bits", 8), weights.get("strategy")
        size = weights.get("group_size")
        if kind == "float" and width == 8:
            block = weights.get("block_structure")
            if strategy == "block" and is_sizes(block) and len(block) == 2:
                blocks.add((block[0], block[1]))
            schemes |= {"fp8-block"} if strategy == "block" else {"fp8-tensor", "fp8-channel"}
            schemes |= {"mxfp8"} if size == 32 else set()
        elif kind == "float" and width == 4:
            schemes |= {"mxfp4"} if size == 32 else {"nvfp4"}
        elif kind == "int" and type(width) is int and 1 <= width <= 8:
            schemes |= {"int-packed", "int8"} if width == 8 else {"int-packed"}
            bits.add(width)
            integers.append(weights)
        else:
            faults.append(
                f"quantization_config.config_groups.{name}.weights: {width} bits of type {kind!r} are not known"
            )
    if len(blocks) > 1:
        faults.append(f"quantization_config.config_groups: expected one block_structure, found {sorted(blocks)}")
    hints = Hints(
        *([min(blocks), True] if blocks else []),
        bits=frozenset(bits),
        groups=frozenset(filter(is_size, (weights.get("group_size") for weights in integers))),
        ordered=bool(integers) and all(weights.get("actorder") in (True, "group", "dynamic") for weights in integers),
        zeros=bool(integers) and all(weights.get("symmetric") is False for weights in integers),
    )
    sparsity = settings.get("sparsity_config") or {}
    if not isinstance(sparsity, dict) or sparsity.get("format", "dense") != "dense":
        faults.append("quantization_config.sparsity_config: sparse weights are not implemented")
    transforms = settings.get("transform_config") or {}
    places = _places(transforms.get("config_groups") or {}) if isinstance(transforms, dict) else {repr(transforms)}
    if not places <= _MERGED:
        unsupported = ", ".join(sorted(places - _MERGED))
        faults.append(f"quantization_config.transform_config: rotations at run time are not implemented: {unsupported}")
    return frozenset(schemes) or None, hints


def is_size(value: Any) -> TypeGuard[int]:
    return type(value) is int and value > 0


def is_sizes(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(map(is_size, value))
