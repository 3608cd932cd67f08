"""LFM2 and LFM2-MoE: gated short convolutions, some layers of attention, dense or sigmoid-routed feed-forward."""

from collections.abc import Mapping
from typing import Any

from models.attention import AttentionConfig, QkNorm
from models.config import ConfigReader
from models.decoder import DecoderConfig
from models.decoder_fields import read_decoder_config, read_heads
from models.family import Family
from models.gated_short_conv import GatedShortConvConfig
from models.layer_weights import attention_weights, mlp_weights, moe_weights
from models.mlp import MlpConfig
from models.moe import MoeConfig
from models.rope import read_rope
from models.router import RouterConfig
from models.weights import Weight, tensor

ATTENTION = {"o_proj": "out_proj", "q_norm": "q_layernorm", "k_norm": "k_layernorm"}
MLP = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
# Fields of published configs that say how the model was made, or what other fields say too.
UNUSED = """block_dim block_mlp_init_scale block_out_init_scale block_use_xavier_init block_norm_eps conv_dim
    conv_dim_out conv_use_xavier_init num_heads theta full_attn_idxs""".split()


def read_layer_types(reader: ConfigReader, layers: int) -> list[str]:
    """`layer_types`, or attention where `full_attn_idxs` says so and convolutions elsewhere."""
    types = reader.get("layer_types")
    if types is None:
        indices = reader.integers("full_attn_idxs") if "full_attn_idxs" in reader else tuple(range(layers))
        if any(i >= layers for i in indices):
            reader.fault("full_attn_idxs", f"indices of the {layers} layers")
        return ["full_attention" if i in indices else "conv" for i in range(layers)]
    if not isinstance(types, list) or len(types) != layers or any(t not in ("conv", "full_attention") for t in types):
        reader.fault("layer_types", f"a list of {layers} items, each 'conv' or 'full_attention'")
        return ["conv"] * layers
    return types


def read_mlp(reader: ConfigReader) -> MlpConfig:
    """The dense layer of `lfm2`: two thirds of the width that is given, up to a whole number of blocks."""
    width = reader.integer("block_ff_dim" if "block_ff_dim" in reader else "intermediate_size")
    multiplier = reader.number("block_ffn_dim_multiplier", 1.0)
    block = reader.integer("block_multiple_of", 256)
    if reader.flag("block_auto_adjust_ff_dim", True):
        width = -(-int(multiplier * int(2 * width / 3)) // block) * block
    return MlpConfig(width)


def read_moe(reader: ConfigReader) -> MoeConfig:
    """The sparse layers of `lfm2_moe`."""
    experts = reader.integer("num_experts", 32)
    per_token = reader.integer("num_experts_per_tok", 4)
    if per_token > experts:
        reader.fault("num_experts_per_tok", f"at most num_experts ({experts})")
    router = RouterConfig(
        experts,
        min(per_token, experts),
        scores="sigmoid",
        bias=reader.flag("use_expert_bias", True),
        normalise=reader.flag("norm_topk_prob", True),
        epsilon=1e-6,
        scale=reader.number("routed_scaling_factor", 1.0),
    )
    return MoeConfig(router, reader.integer("moe_intermediate_size"))


def _read_config(family: str, config: Mapping[str, Any]) -> DecoderConfig:
    reader = ConfigReader(family, config)
    layers = reader.integer("num_hidden_layers")
    eps = reader.number("norm_eps", 1e-5)
    heads, kv_heads, head_dim = read_heads(reader)
    rope = read_rope(reader, head_dim, 1e6, 1.0)
    attention = AttentionConfig(heads, kv_heads, head_dim, rope, QkNorm(eps))
    conv = GatedShortConvConfig(reader.integer("conv_L_cache", 3, minimum=2))
    mixers = [conv if kind == "conv" else attention for kind in read_layer_types(reader, layers)]
    if family == "lfm2":
        feed_forward: list[Any] = [read_mlp(reader)] * layers
    else:
        dense = reader.integer("num_dense_layers", 2, minimum=0)
        mlp, moe = MlpConfig(reader.integer("intermediate_size")), read_moe(reader)
        feed_forward = [mlp if i < dense else moe for i in range(layers)]
    reader.choice("conv_bias", [False], False)
    reader.choice("block_use_swiglu", [True], True)
    reader.choice("use_pos_enc", [True], True)
    for name in UNUSED:
        reader.get(name)
    return read_decoder_config(
        reader,
        layers=tuple(zip(mixers, feed_forward, strict=True)),
        eps=eps,
        tied=reader.flag("tie_embedding" if "tie_embedding" in reader else "tie_word_embeddings", True),
    )


def weights(config: DecoderConfig) -> list[Weight]:
    """Every parameter of the decoder with the names of the Hugging Face checkpoints."""
    hidden, vocab = config.hidden_size, config.vocab_size
    found = [
        tensor(("embed_tokens",), "model.embed_tokens.weight", (vocab, hidden)),
        tensor(("norm", "weight"), "model.embedding_norm.weight", (hidden,), float32=True),
    ]
    if not config.tied:
        found.append(tensor(("lm_head",), "lm_head.weight", (vocab, hidden)))
    for i, (mixer, forward) in enumerate(config.layers):
        layer, at = f"model.layers.{i}", ("layers", i, "branches")
        for j, norm in enumerate(("operator_norm", "ffn_norm")):
            found.append(tensor((*at, j, "norm", "weight"), f"{layer}.{norm}.weight", (hidden,), float32=True))
        if isinstance(mixer, AttentionConfig):
            found += attention_weights(mixer, hidden, (*at, 0, "inner"), f"{layer}.self_attn", ATTENTION)
        elif isinstance(mixer, GatedShortConvConfig):
            shapes = {"in_proj": (3 * hidden, hidden), "conv": (hidden, 1, mixer.kernel), "out_proj": (hidden, hidden)}
            for part, shape in shapes.items():
                found.append(tensor((*at, 0, "inner", part), f"{layer}.conv.{part}.weight", shape))
        forward_at, name = (*at, 1, "inner"), f"{layer}.feed_forward"
        if isinstance(forward, MlpConfig):
            found += mlp_weights(forward.width, hidden, forward_at, name, MLP)
        elif isinstance(forward, MoeConfig):
            found += moe_weights(forward, hidden, forward_at, name, MLP, bias="expert_bias")
    return found


def _family(name: str) -> Family:
    return Family(name, (name,), lambda config: _read_config(name, config), weights, (), ())


LFM2, LFM2_MOE = _family("lfm2"), _family("lfm2_moe")
