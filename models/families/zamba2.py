"""Zamba2: Mamba2 layers, some after a call of a shared transformer block.

Not shared with other families: attention over residual stream and embedding; block parameters that files name after
any calling layer; adapters of each call.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from models.config.fields import read_decoder_config, read_kinds, spelled
from models.config.reader import ConfigReader
from models.config.rope import read_rope
from models.decoder.decoder import BranchConfig, DecoderConfig
from models.families.architectures import text_classes
from models.families.family import Family
from models.families.mamba.mamba2_fields import mamba2_weights, read_mamba2, with_floor
from models.layers.mlp import MlpConfig
from models.mixers.attention import AttentionConfig
from models.mixers.mamba2 import Mamba2Config
from models.mixers.samples import MAMBA2_MIXER, SHARED_BLOCK
from models.mixers.shared_block import SharedBlockConfig
from models.weights.layer_weights import Path, decoder_weights, norm_weight
from models.weights.sources import Weight, rows, tensor

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
    kv_heads = reader.integer("num_key_value_heads", heads)
    if heads % kv_heads:
        reader.fault("num_key_value_heads", f"a divisor of num_attention_heads ({heads})")
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


def _block(c: SharedBlockConfig, hidden: int, path: Path, names: list[str]) -> list[Weight]:
    a, width = c.attention, c.mlp.width
    queries, keys = a.heads * a.head_dim, a.kv_heads * a.head_dim
    shapes = {
        ("attention", "q_proj"): ("self_attn.q_proj", (queries, 2 * hidden)),
        ("attention", "k_proj"): ("self_attn.k_proj", (keys, 2 * hidden)),
        ("attention", "v_proj"): ("self_attn.v_proj", (keys, 2 * hidden)),
        ("attention", "o_proj"): ("self_attn.o_proj", (hidden, queries)),
        ("mlp", "down_proj"): ("feed_forward.down_proj", (hidden, width)),
        ("norm", "weight"): ("input_layernorm", (2 * hidden,)),
        ("mlp_norm", "weight"): ("pre_ff_layernorm", (hidden,)),
    }
    fused = [f"{name}.feed_forward.gate_up_proj.weight" for name in names]
    return [
        *(
            tensor((*path, *end), [f"{name}.{part}.weight" for name in names], shape, float32=len(shape) == 1)
            for end, (part, shape) in shapes.items()
        ),
        *_halves((*path, "mlp"), (), fused, width, hidden),
    ]


def _halves(path: Path, end: Path, names: list[str], width: int, inputs: int) -> list[Weight]:
    parts = zip(("gate_proj", "up_proj"), np.split(np.arange(2 * width), 2), strict=True)
    return [
        Weight((*path, part, *end), (width, inputs), tuple(rows(name, (2 * width, inputs), half) for name in names))
        for part, half in parts
    ]


def _adapters(c: SharedBlockConfig, hidden: int, path: Path, names: list[str], call: int) -> list[Weight]:
    lists = [f"{name}.feed_forward.gate_up_proj_adapter_list.{call}" for name in names]
    weights = [
        tensor((*path, "mlp_adapters", "gate_proj", "down"), [f"{name}.0.weight" for name in lists], (c.rank, hidden)),
        *_halves((*path, "mlp_adapters"), ("up",), [f"{name}.1.weight" for name in lists], c.mlp.width, c.rank),
    ]
    for part in ("q_proj", "k_proj", "v_proj") if c.attention_adapters else ():
        lists = [f"{name}.self_attn.linear_{part[0]}_adapter_list.{call}" for name in names]
        adapter, size = (*path, "attention_adapters", part), c.attention.heads * c.attention.head_dim
        weights += [
            tensor((*adapter, "down"), [f"{name}.0.weight" for name in lists], (c.rank, 2 * hidden)),
            tensor((*adapter, "up"), [f"{name}.1.weight" for name in lists], (size, c.rank)),
        ]
    return weights


def weights(config: DecoderConfig) -> list[Weight]:
    calls = {i: c for i, (c,) in enumerate(config.layers) if isinstance(c, SharedBlockConfig)}

    def describe(c: BranchConfig, hidden: int, path: Path, layer: str) -> list[Weight]:
        if isinstance(c, Mamba2Config):
            norm = norm_weight(hidden, path[:-1], f"{layer}.input_layernorm")
            return [norm, *mamba2_weights(c, hidden, path, f"{layer}.mamba")]
        assert isinstance(c, SharedBlockConfig)
        users = [i for i, call in calls.items() if call.block == c.block]
        names = [f"model.layers.{i}.shared_transformer" for i in users]
        first = f"model.layers.{users[0]}" == layer
        return [
            *(_block(c, hidden, (*path, "block"), names) if first else []),
            *_adapters(c, hidden, path, names, [f"model.layers.{i}" for i in calls].index(layer)),
            tensor((*path, "linear"), f"{layer}.linear.weight", (hidden, hidden)),
            norm_weight(hidden, path, f"{layer}.mamba_decoder.input_layernorm"),
            *mamba2_weights(c.mamba, hidden, (*path, "mamba"), f"{layer}.mamba_decoder.mamba"),
        ]

    return decoder_weights(config, describe, norms=(), final_norm="model.final_layernorm.weight")


ZAMBA2 = Family(
    "zamba2", ("zamba2",), read_config, weights, architectures=text_classes("Zamba2"),
    mixers=(MAMBA2_MIXER, SHARED_BLOCK),
)  # fmt: skip
