"""Zamba2: Mamba2 layers, some after a call of a shared transformer block.

Not shared with other families: attention over residual stream and embedding; block parameters that files name after
any calling layer; adapters of each call.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from models.config.fields import read_decoder_config, read_kinds, read_kv_heads, spelled
from models.config.reader import ConfigReader
from models.config.rope import read_rope
from models.decoder.decoder import DecoderConfig
from models.families.family import text_family
from models.families.mamba.mamba2_fields import mamba2_weights, read_mamba2, with_floor
from models.layers.mlp import MlpConfig
from models.mixers.attention import AttentionConfig
from models.mixers.mamba2 import Mamba2Config
from models.mixers.shared_block import SharedBlockConfig
from models.weights.layer_weights import Path, branch_weights, by_kind, decoder_weights, norm_weights
from models.weights.sources import Weight, WeightSource, split_rows

DEFAULT_POSITIONS = 4096
GATED_NORM_EPS = 1e-5
"""Of the Mamba2 layers' gated norm; no field changes it."""
FIELDS = {
    "heads": "n_mamba_heads",
    "head_size": "mamba_headdim",
    "groups": "mamba_ngroups",
    "state_size": "mamba_d_state",
    "kernel": "mamba_d_conv",
    "conv_bias": "use_conv_bias",
    "step_limits": "time_step_limit",
}
# Kernels, and sizes that follow from others.
UNUSED = ("use_mem_eff_path", "kv_channels", "num_query_groups")


def _read_attention(reader: ConfigReader, hidden: int) -> AttentionConfig:
    heads = reader.integer("num_attention_heads")
    kv_heads = read_kv_heads(reader, heads, heads)
    if 2 * hidden % heads:
        reader.fault("num_attention_heads", f"a divisor of twice hidden_size ({2 * hidden})")
    size = max(2 * hidden // heads, 1)
    for name, expected in {"attention_head_dim": size, "head_dim": size, "attention_hidden_size": 2 * hidden}.items():
        reader.choice(name, [expected], expected)
    rope = read_rope(reader, size, 1e4, None, DEFAULT_POSITIONS)
    rotated = reader.flag("use_mem_rope", False)
    return AttentionConfig(heads, kv_heads, size, rope if rotated else None, scale=(size / 2) ** -0.5)


def read_config(config: Mapping[str, Any]) -> DecoderConfig:
    reader = ConfigReader("zamba2", config)
    eps, hidden = reader.number("rms_norm_eps", 1e-5), reader.integer("hidden_size")
    attention = _read_attention(reader, hidden)
    mlp = MlpConfig(reader.integer("intermediate_size", 4 * hidden), "geglu")
    width = int(reader.number("mamba_expand", 2.0) * hidden)
    mamba = with_floor(reader, read_mamba2(reader, FIELDS, GATED_NORM_EPS, width))
    adapters, rank = reader.flag("use_shared_attention_adapter", False), reader.integer("adapter_rank", 128)
    if adapters and attention.kv_heads != attention.heads:
        reader.fault("num_key_value_heads", f"as many as heads ({attention.heads}) with use_shared_attention_adapter")
    name = spelled(reader, "layers_block_type", "layer_types")
    kinds = read_kinds(reader, name, ["linear_attention", "hybrid"], reader.integer("num_hidden_layers"))
    calls = [i for i, kind in enumerate(kinds) if kind == "hybrid"]
    reader.choice("hybrid_layer_ids", [calls], calls)
    blocks = reader.integer("num_mem_blocks", 1)
    layers = tuple(
        (SharedBlockConfig(attention, mlp, mamba, calls.index(i) % blocks, rank, adapters, eps),)
        if i in calls
        else (mamba,)
        for i in range(len(kinds))
    )
    reader.fixed({"hidden_act": "gelu", "add_bias_linear": False, "use_conv_bias": True})
    # Versions of transformers differ in the base of the rotary frequencies.
    reader.choice("use_long_context", [False], False)
    # Every model of transformers has these adapters.
    reader.choice("use_shared_mlp_adapter", [True], True)
    reader.ignore(UNUSED)
    # With false, transformers ties no parameters: each call has a block for itself.
    tied = reader.choice("tie_word_embeddings", [True], True)
    return read_decoder_config(reader, layers, eps, tied, DEFAULT_POSITIONS, attention.rope)


def _mamba(config: DecoderConfig, c: Mamba2Config, hidden: int, path: Path, layer: str) -> list[Weight]:
    norm = norm_weights(config, (*path[:-1], "norm"), "input_layernorm", layer)
    return norm + mamba2_weights(c, hidden, path, f"{layer}.mamba")


def _call(config: DecoderConfig, c: SharedBlockConfig, hidden: int, path: Path, layer: str) -> list[Weight]:
    """List the parameters of a calling layer.

    The first call of a block also has the parameters of the block.
    """
    calls = {i: call for i, (call,) in enumerate(config.layers) if isinstance(call, SharedBlockConfig)}
    number, users = int(path[1]), [i for i, user in calls.items() if user.block == c.block]
    call, mamba = list(calls).index(number), f"{number}.mamba_decoder.mamba"

    def stored(module: str) -> list[str]:
        return [f"{i}.shared_transformer.{module}" for i in users]

    fused = {
        "block.mlp.{}": ("feed_forward.gate_up_proj", hidden),
        "mlp_adapters.{}.up": (f"feed_forward.gate_up_proj_adapter_list.{call}.1", c.rank),
    }
    sources: dict[str, list[WeightSource]] = {}
    for part, (module, inputs) in fused.items():
        sizes = {part.format(name): c.mlp.width for name in ("gate_proj", "up_proj")}
        for name in stored(module):
            for half, options in split_rows(f"model.layers.{name}.weight", sizes, inputs).items():
                sources.setdefault(half, []).extend(options)
    names = {
        "block.attention": stored("self_attn"),
        "block.mlp": stored("feed_forward"),
        "block.norm": stored("input_layernorm"),
        "block.mlp_norm": stored("pre_ff_layernorm"),
        "mlp_adapters.gate_proj.down": stored(f"feed_forward.gate_up_proj_adapter_list.{call}.0"),
        "linear": f"{number}.linear",
        "norm": f"{number}.mamba_decoder.input_layernorm",
        "mamba": mamba,
        "mamba.conv_bias": f"{mamba}.conv1d.bias",
    }
    for part in ("q_proj", "k_proj", "v_proj"):
        adapter = f"self_attn.linear_{part[0]}_adapter_list.{call}"
        names |= {f"attention_adapters.{part}.{end}": stored(f"{adapter}.{i}") for i, end in enumerate(("down", "up"))}
    weights = branch_weights(c, hidden, path, "model.layers", names, sources=sources)
    return [weight for weight in weights if number == users[0] or "block" not in weight.path]


def weights(config: DecoderConfig) -> list[Weight]:
    describe = by_kind({Mamba2Config: ("", partial(_mamba, config)), SharedBlockConfig: ("", partial(_call, config))})
    return decoder_weights(config, describe, norms=(), final_norm="model.final_layernorm.weight")


ZAMBA2 = text_family("zamba2", "Zamba2", read_config, weights, Mamba2Config, SharedBlockConfig)
