"""Quantisation by rounding to nearest, stored like compressed-tensors.

A scale is a group's largest magnitude over the largest code, as there.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from jaxtyping import Float32

from hybridlm.quantised.packed import PackedForm, packed_form, pairs
from hybridlm.quantised.schemes import QuantisedTensor

DEFAULT_INT4_GROUP = 128
_BLOCK = 128
_NVFP4_GROUP = 16
_E4M3, _E2M1, _BF16 = map(np.dtype, (ml_dtypes.float8_e4m3fn, ml_dtypes.float4_e2m1fn, ml_dtypes.bfloat16))
MAX_E4M3, MAX_E2M1 = 448.0, 6.0


@dataclass(frozen=True)
class RoundingScheme:
    """A way to quantise matrices.

    Attributes:
        name: "fp8-block", "int8", "int4" or "nvfp4".
        group: columns of an integer scale; None for a scale per row.
    """

    name: str
    group: int | None = None

    def fits(self, shape: tuple[int, ...]) -> bool:
        group = _NVFP4_GROUP if self.name == "nvfp4" else self.group or 1
        return shape[-1] % group == 0 and all(shape)

    def stored(self, shape: tuple[int, ...]) -> Mapping[str, tuple[tuple[int, ...], str]]:
        """Return shapes and dtypes by last part of a tensor name, for `[..., out, in]`."""
        *lead, rows, columns = shape
        if self.name == "fp8-block":
            grid = (*lead, -(-rows // _BLOCK), -(-columns // _BLOCK))
            return {"weight": (shape, _E4M3.name), "weight_scale": (grid, "bfloat16")}
        if self.name == "nvfp4":
            return {
                "weight_packed": ((*lead, rows, columns // 2), "uint8"),
                "weight_scale": ((*lead, rows, columns // _NVFP4_GROUP), _E4M3.name),
                "weight_global_scale": ((1,), "float32"),
            }
        words = -(-columns * self.bits // 32)
        return {
            "weight_packed": ((*lead, rows, words), "int32"),
            "weight_scale": ((*lead, rows, columns // (self.group or columns)), "bfloat16"),
            "weight_shape": ((len(shape),), "int64"),
        }

    @property
    def bits(self) -> int:
        return 4 if self.name in ("int4", "nvfp4") else 8

    def packed_form(self, shape: tuple[int, ...]) -> PackedForm | None:
        """Return the packed form of a weight `[..., out, in]`, or None."""
        scheme = self.name if self.name in ("fp8-block", "nvfp4") else "int-packed"
        groups = shape[-1] // (self.group or shape[-1]) if scheme == "int-packed" else None
        bits = self.bits if scheme == "int-packed" else 8
        tensor = QuantisedTensor(scheme, shape, {}, (_BLOCK, _BLOCK), bits, groups=groups)
        return packed_form(tensor, "F8_E4M3" if self.name == "nvfp4" else "BF16", lambda name: np.empty(0))

    def settings(self, ignored: list[str], head: "RoundingScheme | None" = None) -> dict[str, Any]:
        """Return `quantization_config`, with `ignored` plain modules."""
        groups = {"group_0": self._settings_of(["Linear"])}
        if head is not None:
            groups["group_1"] = head._settings_of(["Embedding", "re:.*lm_head$"])
        formats = {group["format"] for group in groups.values()}
        return {
            "quant_method": "compressed-tensors",
            "format": formats.pop() if len(formats) == 1 else "mixed-precision",
            "quantization_status": "compressed",
            "config_groups": groups,
            "ignore": ignored,
            "kv_cache_scheme": None,
        }

    def _settings_of(self, targets: list[str]) -> dict[str, Any]:
        weights: dict[str, Any] = {"num_bits": self.bits, "type": "float", "symmetric": True, "dynamic": False}
        activations = None
        if self.name == "fp8-block":
            form = "float-quantized"
            weights |= {"strategy": "block", "block_structure": [_BLOCK, _BLOCK]}
            # What engines need that multiply float8 by float8; activations are not quantised here.
            activations = {"num_bits": 8, "type": "float", "symmetric": True, "dynamic": True}
            activations |= {"strategy": "group", "group_size": _BLOCK}
        elif self.name == "nvfp4":
            form = "nvfp4-pack-quantized"
            weights |= {"strategy": "tensor_group", "group_size": _NVFP4_GROUP, "scale_dtype": "torch.float8_e4m3fn"}
        else:
            form = "pack-quantized"
            weights |= {"type": "int", "strategy": "group" if self.group else "channel", "group_size": self.group}
        return {
            "targets": targets,
            "weights": weights,
            "input_activations": activations,
            "output_activations": None,
            "format": form,
        }

    def quantise(
        self, weight: Float32[np.ndarray, "*expert out in"], largest: float | None = None
    ) -> dict[str, np.ndarray]:
        """Return arrays by last part of a tensor name, as in `stored`.

        Args:
            weight: finite.
            largest: of all weights with one matrix scale, for "nvfp4".
        """
        if self.name == "fp8-block":
            return _fp8_block(weight)
        if self.name == "nvfp4":
            return _nvfp4(weight, np.float32(np.abs(weight).max() if largest is None else largest))
        return _integers(weight, self.bits, self.group or weight.shape[-1])


def rounding_scheme(name: str, group_size: int | None = None) -> RoundingScheme:
    """Return a scheme; raises ValueError for an unknown name or group size."""
    names = ("fp8-block", "int8", "int4", "nvfp4")
    if name not in names:
        raise ValueError(f"scheme: expected one of {', '.join(names)}, got {name!r}")
    if group_size is not None and name in ("fp8-block", "nvfp4"):
        fixed = f"{_BLOCK} x {_BLOCK}" if name == "fp8-block" else f"{_NVFP4_GROUP}"
        raise ValueError(f"group_size: {name} has groups of {fixed}, got {group_size}")
    if group_size is not None and (group_size < 8 or group_size % 8):
        raise ValueError(f"group_size: expected a multiple of 8, got {group_size}")
    return RoundingScheme(name, DEFAULT_INT4_GROUP if name == "int4" and group_size is None else group_size)


def _scale(largest: np.ndarray, code: float) -> np.ndarray:
    """Return scales in bfloat16; one for a group of zeros."""
    scale = (largest / np.float32(code)).astype(_BF16)
    return np.where(scale == 0, np.ones((), _BF16), scale)


def _fp8_block(weight: np.ndarray) -> dict[str, np.ndarray]:
    *lead, rows, columns = weight.shape
    down, across = -(-rows // _BLOCK), -(-columns // _BLOCK)
    margins = [(0, 0)] * len(lead) + [(0, down * _BLOCK - rows), (0, across * _BLOCK - columns)]
    blocks = np.pad(weight, margins).reshape(*lead, down, _BLOCK, across, _BLOCK)
    scale = _scale(np.abs(blocks).max(axis=(-3, -1)), MAX_E4M3)
    blocks = blocks / scale.astype(np.float32)[..., :, None, :, None]
    codes = np.clip(blocks, -MAX_E4M3, MAX_E4M3).astype(_E4M3).reshape(*lead, down * _BLOCK, across * _BLOCK)
    return {"weight": np.ascontiguousarray(codes[..., :rows, :columns]), "weight_scale": scale}


def _integers(weight: np.ndarray, bits: int, group: int) -> dict[str, np.ndarray]:
    *lead, rows, columns = weight.shape
    half = 1 << (bits - 1)
    groups = weight.reshape(*lead, rows, columns // group, group)
    scale = _scale(np.abs(groups).max(axis=-1), half - 0.5)
    codes = np.clip(np.rint(groups / scale.astype(np.float32)[..., None]), -half, half - 1) + half
    codes = codes.astype(np.uint8).reshape(*lead, rows, columns)
    fill = -columns % (32 // bits)
    codes = np.pad(codes, [(0, 0)] * (len(lead) + 1) + [(0, fill)])
    packed = codes if bits == 8 else pairs(codes)
    return {
        "weight_packed": np.ascontiguousarray(packed).view("<i4"),
        "weight_scale": scale,
        "weight_shape": np.array(weight.shape, np.int64),
    }


def _nvfp4(weight: np.ndarray, largest: np.float32) -> dict[str, np.ndarray]:
    *lead, rows, columns = weight.shape
    with np.errstate(over="ignore"):
        matrix_scale = np.float32(MAX_E4M3 * MAX_E2M1) / largest if largest > 0 else np.float32(1)
    matrix_scale = matrix_scale if math.isfinite(matrix_scale) else np.finfo(np.float32).max
    groups = weight.reshape(*lead, rows, columns // _NVFP4_GROUP, _NVFP4_GROUP)
    scale = np.minimum(np.abs(groups).max(axis=-1) * (matrix_scale / np.float32(MAX_E2M1)), MAX_E4M3).astype(_E4M3)
    factor = scale.astype(np.float32) / matrix_scale
    factor = np.where(factor == 0, np.float32(np.inf), factor)
    codes = np.clip(groups / factor[..., None], -MAX_E2M1, MAX_E2M1).astype(_E2M1).view(np.uint8)
    codes = codes.reshape(*lead, rows, columns)
    return {
        "weight_packed": pairs(codes),
        "weight_scale": scale,
        "weight_global_scale": np.array([matrix_scale], np.float32),
    }
