"""Tensors of a GGUF file under Hugging Face names, without llama.cpp's changes.

The converter stores zero-centred norms as w + 1, `A_log` as -exp(A_log), convolutions without their unit dimension, and
value heads by number within a key head instead of by key head.
"""

import math
import re
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import numpy as np

from hybridlm.errors import CheckpointError
from hybridlm.gguf_files.blocks import PACKED_TYPES
from hybridlm.gguf_files.config import MAX_EXPERTS, decoder_layers
from hybridlm.gguf_files.header import BLOCK_TYPES, GgufHeader
from hybridlm.quantised.packed import PackedArrays, PackedForm, codes_dtype, packed_arrays, pairs
from hybridlm.quantised.shapes import TensorInfo
from models.ops.quantised_codes import TWO_IN_A_BYTE

Change = Literal["", "minus one", "log of minus"]
_NUMBERS = 1 << 20


class Heads(NamedTuple):
    """Value heads along a dimension of a tensor.

    Attributes:
        key_heads, per_key: key heads, and value heads for each.
        size: entries of a head along the dimension.
        offset: entries before the first head.
        columns: in the last dimension instead of the first.
    """

    key_heads: int
    per_key: int
    size: int
    offset: int = 0
    columns: bool = False


class NamedTensor(NamedTuple):
    """A tensor, or one expert of a tensor.

    Attributes:
        name, shape: llama.cpp's, and in Hugging Face form.
        change, heads: converter's changes, to be undone.
    """

    name: str
    stored: TensorInfo
    shape: tuple[int, ...]
    begin: int
    end: int
    change: Change = ""
    heads: Heads | None = None

    def numbers(self, raw: np.ndarray, where: Any) -> np.ndarray:
        """Return the tensor, in float32 if stored numbers are not final.

        Raises:
            CheckpointError: a scale that is not finite, or a number without a logarithm.
        """
        columns = self.stored.shape[-1]
        if self.stored.dtype in BLOCK_TYPES:
            values = self._dequantised(raw.reshape(-1, len(raw) // (math.prod(self.shape) // columns)), columns, where)
        else:
            import ml_dtypes

            kinds = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype(ml_dtypes.bfloat16)}
            values = raw.view(kinds[self.stored.dtype]).reshape(-1, columns)
        if self.change:
            values = values.astype(np.float32)
        if self.change == "minus one":
            values -= np.float32(1)
        elif self.change == "log of minus":
            if not (values < 0).all():
                raise CheckpointError(where, f"{self.name}: expected negative numbers, -exp(A_log)")
            values = np.log(-values.astype(np.float64)).astype(np.float32)
        if self.heads is not None:
            values = _by_key_head(values if self.heads.columns else values.reshape(self.stored.shape), self.heads)
        return values.reshape(self.shape)

    def packed_form(self) -> PackedForm | None:
        kind = PACKED_TYPES.get(self.stored.dtype)
        columns = self.stored.shape[-1]
        if kind is None or self.change or len(self.shape) != 2 or self.shape[-1] != columns:
            return None
        if self.heads is not None and self.heads.columns and self.heads.size % kind.group:
            return None
        return kind.form(columns)

    def packed(self, raw: np.ndarray, form: PackedForm, where: Any) -> PackedArrays:
        """Return the packed form; raises CheckpointError for scales that are not finite."""
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

        kind, (rows, columns) = PACKED_TYPES[self.stored.dtype], self.shape
        size = GGML_QUANT_SIZES[GGMLQuantizationType[self.stored.dtype]][1]
        codes = np.empty((rows, columns), codes_dtype(form.kind))
        scale = np.empty((rows, form.groups), form.scale_dtype)
        zero = None if form.zero is None else np.empty((rows, form.groups), form.zero)
        step = max(1, _NUMBERS // columns)
        for start in range(0, rows, step):
            part = slice(start, start + step)
            with np.errstate(all="ignore"):
                blocks = kind.parts(raw.reshape(rows, -1)[part].reshape(-1, size))
            for target, numbers in zip((codes, scale, zero), blocks, strict=False):
                if target is not None:
                    target[part] = numbers.reshape(target[part].shape)
        if not np.isfinite(scale).all() or (zero is not None and not np.isfinite(zero).all()):
            raise self._not_finite(where)
        if self.heads is not None:
            group = kind.group if self.heads.columns else 1
            codes = _by_key_head(codes, self.heads)
            of_groups = self.heads._replace(size=self.heads.size // group)
            scale = _by_key_head(scale, of_groups)
            zero = None if zero is None else _by_key_head(zero, of_groups)
        return packed_arrays(pairs(codes) if form.kind in TWO_IN_A_BYTE else codes, scale, zero=zero)

    def _not_finite(self, where: Any) -> CheckpointError:
        return CheckpointError(where, f"{self.name}: a scale is not finite", "The file is damaged: get it again.")

    def _dequantised(self, raw: np.ndarray, columns: int, where: Any) -> np.ndarray:
        from gguf.constants import GGMLQuantizationType
        from gguf.quants import dequantize

        kind = GGMLQuantizationType[self.stored.dtype]
        result = np.empty((len(raw), columns), np.float32)
        step = max(1, _NUMBERS // columns)
        for start in range(0, len(raw), step):
            with np.errstate(all="ignore"):
                part = dequantize(raw[start : start + step], kind)
            if not np.isfinite(part).all():
                raise self._not_finite(where)
            result[start : start + step] = part
        return result


def _by_key_head(values: np.ndarray, heads: Heads) -> np.ndarray:
    along = values.T if heads.columns else values
    result = along.copy()
    tiled = along[heads.offset :].reshape(heads.per_key, heads.key_heads, heads.size, *along.shape[1:])
    result[heads.offset :] = tiled.swapaxes(0, 1).reshape(along[heads.offset :].shape)
    return np.ascontiguousarray(result.T) if heads.columns else result


class _Rule(NamedTuple):
    """Name in a layer, and changes to undo; `unit_dims` are dropped by the converter."""

    name: str
    change: Change = ""
    heads: str = ""
    unit_dims: tuple[int, ...] = ()


_ATTENTION = {"attn_q.weight": _Rule("self_attn.q_proj.weight"), "attn_k.weight": _Rule("self_attn.k_proj.weight")}
_ATTENTION |= {"attn_v.weight": _Rule("self_attn.v_proj.weight")}
_QWEN = _ATTENTION | {
    "attn_norm.weight": _Rule("input_layernorm.weight", "minus one"),
    "post_attention_norm.weight": _Rule("post_attention_layernorm.weight", "minus one"),
    "attn_q_norm.weight": _Rule("self_attn.q_norm.weight", "minus one"),
    "attn_k_norm.weight": _Rule("self_attn.k_norm.weight", "minus one"),
    "attn_output.weight": _Rule("self_attn.o_proj.weight"),
    "attn_qkv.weight": _Rule("linear_attn.in_proj_qkv.weight", heads="channels"),
    "attn_gate.weight": _Rule("linear_attn.in_proj_z.weight", heads="values"),
    "ssm_alpha.weight": _Rule("linear_attn.in_proj_a.weight", heads="heads"),
    "ssm_beta.weight": _Rule("linear_attn.in_proj_b.weight", heads="heads"),
    "ssm_conv1d.weight": _Rule("linear_attn.conv1d.weight", heads="channels", unit_dims=(1,)),
    "ssm_norm.weight": _Rule("linear_attn.norm.weight"),
    "ssm_out.weight": _Rule("linear_attn.out_proj.weight", heads="columns"),
    "ssm_a": _Rule("linear_attn.A_log", "log of minus", "heads"),
    "ssm_dt.bias": _Rule("linear_attn.dt_bias", heads="heads"),
    "ffn_gate.weight": _Rule("mlp.gate_proj.weight"),
    "ffn_up.weight": _Rule("mlp.up_proj.weight"),
    "ffn_down.weight": _Rule("mlp.down_proj.weight"),
    "ffn_gate_inp.weight": _Rule("mlp.gate.weight"),
    "ffn_gate_inp_shexp.weight": _Rule("mlp.shared_expert_gate.weight", unit_dims=(0,)),
    "ffn_gate_shexp.weight": _Rule("mlp.shared_expert.gate_proj.weight"),
    "ffn_up_shexp.weight": _Rule("mlp.shared_expert.up_proj.weight"),
    "ffn_down_shexp.weight": _Rule("mlp.shared_expert.down_proj.weight"),
    # One tensor for all experts; an expert is a run of bytes.
    "ffn_gate_exps.weight": _Rule("mlp.experts.{}.gate_proj.weight"),
    "ffn_up_exps.weight": _Rule("mlp.experts.{}.up_proj.weight"),
    "ffn_down_exps.weight": _Rule("mlp.experts.{}.down_proj.weight"),
}
_LFM2 = _ATTENTION | {
    "attn_norm.weight": _Rule("operator_norm.weight"),
    "ffn_norm.weight": _Rule("ffn_norm.weight"),
    "attn_q_norm.weight": _Rule("self_attn.q_layernorm.weight"),
    "attn_k_norm.weight": _Rule("self_attn.k_layernorm.weight"),
    "attn_output.weight": _Rule("self_attn.out_proj.weight"),
    "ffn_gate.weight": _Rule("feed_forward.w1.weight"),
    "ffn_up.weight": _Rule("feed_forward.w3.weight"),
    "ffn_down.weight": _Rule("feed_forward.w2.weight"),
    "shortconv.in_proj.weight": _Rule("conv.in_proj.weight"),
    "shortconv.out_proj.weight": _Rule("conv.out_proj.weight"),
    "shortconv.conv.weight": _Rule("conv.conv.weight", unit_dims=(1,)),
}
_OUTER = {"token_embd.weight": _Rule("model.embed_tokens.weight"), "output.weight": _Rule("lm_head.weight")}
_OUTER_OF = {
    "qwen35": _OUTER | {"output_norm.weight": _Rule("model.norm.weight", "minus one")},
    "lfm2": _OUTER | {"token_embd_norm.weight": _Rule("model.embedding_norm.weight")},
}
_OUTER_OF["qwen35moe"] = _OUTER_OF["qwen35"]
_HEAD = {
    "nextn.eh_proj.weight": _Rule("mtp.fc.weight"),
    "nextn.enorm.weight": _Rule("mtp.pre_fc_norm_embedding.weight", "minus one"),
    "nextn.hnorm.weight": _Rule("mtp.pre_fc_norm_hidden.weight", "minus one"),
    "nextn.shared_head_norm.weight": _Rule("mtp.norm.weight", "minus one"),
}
"""Further tensors of the MTP block."""


def named_tensors(header: GgufHeader, config: dict[str, Any]) -> dict[str, NamedTensor]:
    """Return tensors by Hugging Face name; others keep llama.cpp's."""
    architecture, layers = header.metadata["general.architecture"], decoder_layers(header)
    blocks = header.metadata[f"{architecture}.block_count"]
    inner = _LFM2 if architecture == "lfm2" else _QWEN
    named: dict[str, NamedTensor] = {}
    for name, tensor in header.tensors.items():
        layer = re.fullmatch(r"blk\.(\d+)\.(.+)", name)
        prefix = ""
        if layer is None:
            rule = _OUTER_OF[architecture].get(name)
        elif int(layer[1]) < layers:
            rule, prefix = inner.get(layer[2]), f"model.layers.{int(layer[1])}."
        elif int(layer[1]) == blocks - 1 and layer[2] in _HEAD:
            rule = _HEAD[layer[2]]
        else:
            rule, prefix = inner.get(layer[2]), f"mtp.layers.{int(layer[1]) - layers}."
            rule = rule if int(layer[1]) < blocks else None
        if rule is None:
            named[name] = NamedTensor(name, tensor, tensor.shape, tensor.begin, tensor.end)
            continue
        tensor = NamedTensor(name, tensor, tensor.shape, tensor.begin, tensor.end)
        for full, part in _parts(prefix + rule.name, tensor, rule, config):
            if full in named:
                raise CheckpointError(header.path, f"{name}: is there twice")
            named[full] = part
    return named


def _parts(name: str, tensor: NamedTensor, rule: _Rule, config: dict[str, Any]) -> Iterator[tuple[str, NamedTensor]]:
    if "{}" in name and len(tensor.shape) == 3 and tensor.shape[0] <= MAX_EXPERTS:
        size = (tensor.end - tensor.begin) // tensor.shape[0]
        for expert in range(tensor.shape[0]):
            begin = tensor.begin + expert * size
            yield name.format(expert), tensor._replace(shape=tensor.shape[1:], begin=begin, end=begin + size)
        return
    shape = list(tensor.shape)
    for dim in rule.unit_dims:
        if len(shape) == (1 if dim == 0 else 2):
            shape.insert(dim, 1)
    heads = _heads(rule.heads, config) if rule.heads else None
    if heads is not None:
        along = tensor.shape[-1] if heads.columns else tensor.shape[0]
        # The check of headers names it.
        if along != heads.offset + heads.key_heads * heads.per_key * heads.size:
            heads = None
    yield name, tensor._replace(shape=tuple(shape), change=rule.change, heads=heads)


def _heads(kind: str, config: dict[str, Any]) -> Heads:
    keys, size = config["linear_num_key_heads"], config["linear_value_head_dim"]
    per_key, offset = config["linear_num_value_heads"] // keys, 2 * config["linear_key_head_dim"] * keys
    return {
        "channels": Heads(keys, per_key, size, offset),
        "values": Heads(keys, per_key, size),
        "heads": Heads(keys, per_key, 1),
        "columns": Heads(keys, per_key, size, columns=True),
    }[kind]
