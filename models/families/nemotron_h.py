"""Nemotron-H and pure Mamba2: each layer is Mamba2, attention without RoPE, an MLP or MoE.

`mamba2` checkpoints have Nemotron-H's tensor names and other config fields. `time_step_limit` bounds time steps, as in
the published code. transformers applies `time_step_min`, a bound of initial values, as a floor in prefill only, so its
results depend on the steps. `"hf_compat_dt_floor": true` in config.json applies it to every token.

Not shared with other families: letters of a layer pattern and tensor names of layers without a gate.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from models.config.experts import read_groups
from models.config.fields import OLDER_KINDS, read_decoder_config, read_heads, spelled
from models.config.reader import ConfigReader
from models.decoder.decoder import BranchConfig, DecoderConfig
from models.families.family import text_family
from models.families.mamba.mamba2_fields import mamba2_weights, read_mamba2, with_floor
from models.layers.mlp import MlpConfig
from models.layers.moe import MoeConfig
from models.layers.router import RouterConfig
from models.mixers.attention import AttentionConfig
from models.mixers.mamba2 import Mamba2Config
from models.weights.layer_weights import (
    HEAD_NAMES,
    backbone_weights,
    branch_weights,
    by_kind,
    head_weights,
    moe_weights,
    norm_weights,
)
from models.weights.sources import Weight

DEFAULT_POSITIONS = 4_096
NEMOTRON_H_FIELDS = {
    "heads": "mamba_num_heads",
    "head_size": "mamba_head_dim",
    "groups": "n_groups",
    "state_size": "ssm_state_size",
    "kernel": "conv_kernel",
    "conv_bias": "use_conv_bias",
    "step_limits": "time_step_limit",
}
OLDER_FIELDS = {
    "groups": "mamba_n_groups",
    "kernel": "mamba_d_conv",
    "conv_bias": "mamba_conv_bias",
    "step_limits": "mamba_dt_limit",
}
"""Older names of fields, which transformers prefers."""
MAMBA2_FIELDS = NEMOTRON_H_FIELDS | {"heads": "num_heads", "head_size": "head_dim", "state_size": "state_size"}
MAX_MAMBA2_POSITIONS = 1 << 30
"""Positions without attention, limited by int32 only."""
PATTERN = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
HEAD = r"mtp\..*"
"""Tensor names of the MTP head."""
HEAD_KINDS = {"full_attention": AttentionConfig, "moe": MoeConfig}
"""Kinds of the head's branches, as in vLLM."""
# Unused settings of RoPE, of MTP heads (`read_head`), and of training.
UNUSED = """rope_theta partial_rotary_factor rope_scaling rope_parameters num_nextn_predict_layers hidden_dropout
    mtp_layers_block_type mtp_hybrid_override_pattern moe_shared_expert_overlap attention_head_dim
    mamba_dt_min mamba_dt_max mamba_dt_init_floor""".split()


def kinds_of(value: Any) -> list[Any]:
    """Return the layer kinds of a letter pattern or list; None for unknown ones."""
    if isinstance(value, str):
        return [PATTERN.get(letter) for letter in value]
    return [OLDER_KINDS.get(str(kind), kind) for kind in value] if isinstance(value, list) else []


def read_layer_types(reader: ConfigReader) -> list[str]:
    """Read `layers_block_type` or `layer_types`, or the letters of `hybrid_override_pattern`."""
    name = next((name for name in ("layers_block_type", "layer_types") if name in reader), "hybrid_override_pattern")
    types = kinds_of(reader.get(name))
    reader.get("hybrid_override_pattern")
    if not types or any(kind not in PATTERN.values() for kind in types):
        reader.fault(name, f"letters {', '.join(PATTERN)} or a list of {', '.join(PATTERN.values())}")
        return ["mlp"]
    if reader.integer("num_hidden_layers", len(types)) != len(types):
        reader.fault("num_hidden_layers", f"the number of layers in {name} ({len(types)})")
    return [kind for kind in types if kind]


def read_moe(reader: ConfigReader) -> MoeConfig:
    """Read the MoE: experts without gates, sigmoid router with bias and groups."""
    experts, per_token = (
        reader.integer(spelled(reader, "n_routed_experts", "num_local_experts")),
        reader.integer("num_experts_per_tok"),
    )
    groups, chosen_groups, per_token = read_groups(reader, experts, per_token, ("n_group", "num_experts_per_tok"))
    reader.choice("n_shared_experts", [1], 1)
    router = RouterConfig(
        experts,
        per_token,
        "sigmoid",
        bias=True,
        groups=groups,
        groups_kept=chosen_groups,
        normalise=reader.flag("norm_topk_prob", True),
        epsilon=1e-20,
        scale=reader.number("routed_scaling_factor", 1.0),
    )
    return MoeConfig(
        router,
        reader.integer("moe_intermediate_size"),
        reader.integer("moe_shared_expert_intermediate_size"),
        activation="relu2",
        latent=reader.integer("moe_latent_size") if reader.get("moe_latent_size") is not None else None,
    )


def read_nemotron_h(config: Mapping[str, Any]) -> DecoderConfig:
    """Read config.json of `nemotron_h`, from NVIDIA or transformers."""
    reader = ConfigReader("nemotron_h", config)
    eps = reader.number("layer_norm_epsilon" if "layer_norm_epsilon" in reader else "norm_eps", 1e-5)
    reader.get("norm_eps")
    types = read_layer_types(reader)
    fields = NEMOTRON_H_FIELDS | {
        part: spelled(reader, older, NEMOTRON_H_FIELDS[part]) for part, older in OLDER_FIELDS.items()
    }
    mixer = read_mamba2(reader, fields, eps, default_groups=8)
    mixer = with_floor(reader, mixer)
    mixers: dict[str, BranchConfig] = {"linear_attention": mixer}
    if "full_attention" in types:
        heads, kv_heads, _ = read_heads(reader, 8)
        size = reader.integer("head_dim" if "head_dim" in reader else "attention_head_dim", 128)
        mixers["full_attention"] = AttentionConfig(heads, kv_heads, size)
    if "mlp" in types:
        mixers["mlp"] = MlpConfig(reader.integer("intermediate_size"), "relu2")
    if "moe" in types:
        mixers["moe"] = read_moe(reader)
    reader.fixed(
        {
            "mamba_hidden_act": "silu",
            "mlp_hidden_act": "relu2",
            "mamba_ssm_cache_dtype": "float32",
            "sliding_window": None,
        }
    )
    reader.fixed(dict.fromkeys(("use_bias", "mamba_proj_bias", "attention_bias", "mlp_bias"), False))
    reader.ignore((*UNUSED, *unused_sizes(types)))
    tied = reader.flag("tie_word_embeddings", False)
    return read_decoder_config(reader, tuple((mixers[kind],) for kind in types), eps, tied, DEFAULT_POSITIONS)


def read_head(fields: Mapping[str, Any]) -> DecoderConfig:
    """Read config.json with the MTP head, a layer of the decoder's attention and experts.

    Raises:
        ConfigError: no head, or an unsupported head.
    """
    config = read_nemotron_h(fields)
    reader = ConfigReader("nemotron_h", fields)
    reader.choice("num_nextn_predict_layers", [1], 1)
    pattern = "mtp_hybrid_override_pattern"
    name = "mtp_layers_block_type" if reader.get("mtp_layers_block_type") is not None else pattern
    kinds = kinds_of(["full_attention", "moe"] if reader.get(name) is None else reader.get(name))
    head = []
    for kind in kinds:
        branch = config.first(HEAD_KINDS.get(str(kind), ()))
        if branch is None:
            reader.fault(name, f"{' and '.join(HEAD_KINDS)}, each with a layer of this kind in the decoder")
            break
        head.append(branch)
    if not kinds:
        reader.fault(name, f"a list of {' and '.join(HEAD_KINDS)}")
    reader.close()
    return replace(config, head=tuple(head))


def read_pure_mamba2(config: Mapping[str, Any]) -> DecoderConfig:
    reader = ConfigReader("mamba2", config)
    eps = reader.number("layer_norm_epsilon", 1e-5)
    width = reader.integer("expand", 2) * reader.integer("hidden_size")
    mixer = read_mamba2(reader, MAMBA2_FIELDS, eps, width, default_groups=8)
    reader.fixed({"hidden_act": "silu", "use_bias": False})
    layers = ((mixer,),) * reader.integer("num_hidden_layers")
    decoder = read_decoder_config(reader, layers, eps, reader.flag("tie_word_embeddings", False), MAX_MAMBA2_POSITIONS)
    return replace(decoder, max_position_embeddings=MAX_MAMBA2_POSITIONS)


def unused_sizes(types: list[str]) -> list[str]:
    """List size fields without a layer."""
    names = {
        "full_attention": "num_attention_heads num_key_value_heads head_dim",
        "mlp": "intermediate_size",
        "moe": """n_routed_experts num_experts_per_tok n_group topk_group n_shared_experts norm_topk_prob
            moe_latent_size routed_scaling_factor moe_intermediate_size moe_shared_expert_intermediate_size""",
    }
    return [name for kind, fields in names.items() if kind not in types for name in fields.split()]


_describe = by_kind(
    {
        Mamba2Config: ("mixer", mamba2_weights),
        AttentionConfig: ("mixer", branch_weights),
        MlpConfig: ("mixer", branch_weights),
        MoeConfig: ("mixer", partial(moe_weights, float32_router=True)),
    }
)


def weights(config: DecoderConfig) -> list[Weight]:
    decoder = backbone_weights(config, _describe)
    if config.head is None:
        return decoder
    # Each branch is stored as a layer.
    names = {part: f"0.{stored}" for part, stored in HEAD_NAMES.items()}
    names["norm"] = f"{len(config.head) - 1}.{HEAD_NAMES['norm']}"
    head = head_weights(config.hidden_size, "mtp.layers", names)
    for index, branch in enumerate(config.head):
        path, layer = ("mtp", "layer", "branches", index), f"mtp.layers.{index}"
        head += norm_weights(config, (*path, "norm"), "norm", layer)
        head += _describe(branch, config.hidden_size, (*path, "inner"), layer)
    return [*decoder, *head]


# Published files have `backbone.`, transformers `model.`.
NEMOTRON_H = text_family(
    "nemotron_h",
    "NemotronH",
    read_nemotron_h,
    weights,
    Mamba2Config,
    AttentionConfig,
    skipped=(HEAD,),
    prefixes=("model.",),
    root="backbone.",
).with_mtp(read_head)
MAMBA2 = text_family("mamba2", "Mamba2", read_pure_mamba2, weights, Mamba2Config, root="backbone.")
