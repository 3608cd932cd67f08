"""config.json of a GGUF file, from llama.cpp's metadata."""

import re
from collections.abc import Mapping
from typing import Any

from hybridlm.errors import CheckpointError
from hybridlm.gguf_files.header import GgufHeader
from models.config.reader import ConfigReader

ARCHITECTURES = ("qwen35", "qwen35moe", "lfm2")
MAX_EXPERTS = 65_536
MAX_SIZE, MAX_FAULT = 2**31, 400
"""Bounds of sizes and of a fault's characters."""
_END = ("eos_token_id", "eot_token_id", "eom_token_id")
_FACTORS = ("rope.scaling.factor", "rope.scale_linear")
"""They stretch RoPE in llama.cpp."""
_FIXED: Mapping[str, tuple[float, ...]] = {
    **dict.fromkeys(("rope.scaling.attn_factor", "embedding_scale", "residual_scale", "expert_gating_func"), (1,)),
    **dict.fromkeys(("expert_weights_scale", "logit_scale", "expert_group_count"), (1, 0)),
    **dict.fromkeys(("attn_logit_softcapping", "final_logit_softcapping", "router_logit_softcapping"), (0,)),
    **dict.fromkeys(("attention.scale", "attention.sliding_window", "attention.clamp_kqv"), (0,)),
    **dict.fromkeys(("expert_weights_norm", "attention.causal"), (True,)),  # not causal: encoders
}
"""Key -> implemented values, first the default."""
_UNUSED = ("vocab_size", "full_attention_interval", "feed_forward_length", "rope.scaling.original_context_length")


class ArchitectureMetadata(ConfigReader):
    """Metadata of an architecture; their keys begin with its name."""

    def __init__(self, header: GgufHeader) -> None:
        self.header, self.architecture = header, header.metadata.get("general.architecture")
        prefix = f"{self.architecture}."
        fields = {key.removeprefix(prefix): value for key, value in header.metadata.items() if key.startswith(prefix)}
        super().__init__(str(self.architecture), fields, prefix)

    def integer(self, name: str, default: int | None = None, minimum: int = 1) -> int:
        """Read an integer below `MAX_SIZE`; a larger one is a fault."""
        value = super().integer(name, default, minimum)
        if value >= MAX_SIZE:
            self.fault(name, f"a whole number below {MAX_SIZE}")
            return max(minimum, 1)
        return value

    def fault(self, name: str, expected: str) -> None:
        super().fault(name, expected)
        self.faults[-1] = self.faults[-1][:MAX_FAULT]  # an array may have millions of items


def read_architecture(header: GgufHeader) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the original config.json, and unused keys.

    Raises:
        CheckpointError: another architecture, or missing or contradictory metadata.
    """
    fields = ArchitectureMetadata(header)
    if fields.architecture not in ARCHITECTURES:
        raise CheckpointError(
            header.path,
            f"is of architecture {fields.architecture!r}, which is not read from GGUF files, expected one of "
            + ", ".join(ARCHITECTURES),
            "Load the safetensors release of the model.",
        )
    kind = header.metadata.get("general.type", "model")
    if kind != "model":
        raise CheckpointError(header.path, f"holds {kind!r:.80} (general.type), expected a model")
    config = _common(fields) | (_lfm2(fields) if fields.architecture == "lfm2" else _qwen35(fields))
    if fields.faults:
        raise CheckpointError(header.path, fields.faults)
    return config, fields.close()


def decoder_layers(header: GgufHeader) -> int:
    """Return the number of decoder layers, without the MTP block."""
    fields = ArchitectureMetadata(header)
    return fields.integer("block_count") - fields.integer("nextn_predict_layers", 0, minimum=0)


def _common(fields: ArchitectureMetadata) -> dict[str, Any]:
    header = fields.header
    embedding = header.tensors.get("token_embd.weight")
    rows = embedding.shape[0] if embedding is not None else 1
    tokens = header.metadata.get("tokenizer.ggml.tokens", [])
    if embedding is None:
        fields.faults.append("token_embd.weight: missing")
    elif isinstance(tokens, list) and len(tokens) > rows:
        fields.faults.append(f"tokenizer.ggml.tokens: {len(tokens)} tokens, token_embd.weight has {rows} rows")
    for name in _FACTORS if "rope.scaling.type" not in fields else ():
        fields.choice(name, (1, 0), 1)
    fields.choice("rope.scaling.type", ["none"], "none")
    for name, values in _FIXED.items():
        fields.choice(name, values, values[0])
    fields.ignore((*_FACTORS, *_UNUSED))
    blocks = {match[1] for name in header.tensors if (match := re.match(r"blk\.(\d+)\.", name))}
    if fields.integer("block_count") > len(blocks):
        fields.faults.append(
            f"{fields.architecture}.block_count: {fields.integer('block_count')} layers, the file has {len(blocks)}"
        )
    end = [header.metadata.get(f"tokenizer.ggml.{role}") for role in _END]
    return {
        "hidden_size": fields.integer("embedding_length"),
        "max_position_embeddings": fields.integer("context_length"),
        "num_attention_heads": fields.integer("attention.head_count"),
        "num_hidden_layers": decoder_layers(header),
        "vocab_size": rows,
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "bos_token_id": header.metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": list(dict.fromkeys(token for token in end if token is not None)) or None,
    }


def _layer_types(fields: ArchitectureMetadata, mark: str, kind: str) -> list[str]:
    """Return the kind of each layer: `kind` with a tensor `mark`, else attention."""
    tensors, layers = fields.header.tensors, decoder_layers(fields.header)
    if layers > len(tensors):
        return []
    return [kind if f"blk.{i}.{mark}" in tensors else "full_attention" for i in range(layers)]


def _qwen35(fields: ArchitectureMetadata) -> dict[str, Any]:
    head_dim, value_heads = fields.integer("attention.key_length"), fields.integer("ssm.time_step_rank")
    inner = fields.integer("ssm.inner_size")
    if inner % value_heads:
        fields.fault("ssm.inner_size", f"a multiple of ssm.time_step_rank ({value_heads})")
    if value_heads % fields.integer("ssm.group_count"):
        fields.fault("ssm.time_step_rank", "a multiple of ssm.group_count")
    fields.choice("attention.value_length", [head_dim], head_dim)
    if "rope.dimension_sections" not in fields:
        fields.fault("rope.dimension_sections", "a list of whole numbers")
    config: dict[str, Any] = {
        "model_type": "qwen3_5_text",
        "num_key_value_heads": fields.integer("attention.head_count_kv"),
        "head_dim": head_dim,
        "rms_norm_eps": fields.number("attention.layer_norm_rms_epsilon"),
        "layer_types": _layer_types(fields, "ssm_a", "linear_attention"),
        "linear_conv_kernel_dim": fields.integer("ssm.conv_kernel"),
        "linear_key_head_dim": fields.integer("ssm.state_size"),
        "linear_num_key_heads": fields.integer("ssm.group_count"),
        "linear_num_value_heads": value_heads,
        "linear_value_head_dim": inner // value_heads,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": fields.number("rope.freq_base"),
            "mrope_section": [size for size in fields.integers("rope.dimension_sections") if size],
            "mrope_interleaved": True,
            "partial_rotary_factor": fields.integer("rope.dimension_count") / head_dim,
        },
    }
    if fields.architecture == "qwen35":
        return config | {"intermediate_size": fields.integer("feed_forward_length")}
    experts = fields.integer("expert_count")
    if experts > MAX_EXPERTS:
        fields.fault("expert_count", f"at most {MAX_EXPERTS}")
    return config | {
        "model_type": "qwen3_5_moe_text",
        "num_experts": experts,
        "num_experts_per_tok": fields.integer("expert_used_count"),
        "moe_intermediate_size": fields.integer("expert_feed_forward_length"),
        "shared_expert_intermediate_size": fields.integer("expert_shared_feed_forward_length"),
    }


def _lfm2(fields: ArchitectureMetadata) -> dict[str, Any]:
    heads = fields.integers("attention.head_count_kv")
    types = _layer_types(fields, "shortconv.conv.weight", "conv")
    if ["full_attention" if count else "conv" for count in heads] != types or len(set(heads) - {0}) > 1:
        fields.fault("attention.head_count_kv", f"one number for the layers of attention of {types}")
    head_dim = fields.integer("embedding_length") // fields.integer("attention.head_count")
    for name in ("attention.key_length", "attention.value_length", "rope.dimension_count"):
        fields.choice(name, [head_dim], head_dim)
    return {
        "model_type": "lfm2",
        "intermediate_size": fields.integer("feed_forward_length"),
        "block_auto_adjust_ff_dim": False,
        "num_key_value_heads": max(heads, default=1),
        "layer_types": types,
        "norm_eps": fields.number("attention.layer_norm_rms_epsilon"),
        "conv_L_cache": fields.integer("shortconv.l_cache"),
        "conv_bias": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": fields.number("rope.freq_base")},
    }
