"""Config fields and tensors common to Kimi-Linear, Ling and others: KDA, MLA, sigmoid-routed MoE.

Not shared with other families: the tensors of these two mixers. Three convolutions become one, rows of latent
attention are split into compressed and shared entries, and rotated pairs are de-interleaved.
"""

from collections.abc import Sequence

import numpy as np

from models.config.experts import read_groups
from models.config.fields import read_kinds, spelled
from models.config.reader import ConfigReader
from models.layers.mlp import MlpConfig
from models.layers.moe import MoeConfig
from models.layers.rope import Rope
from models.layers.router import RouterConfig
from models.mixers.kimi_delta_attention import KimiDeltaAttentionConfig
from models.mixers.latent_attention import LatentAttentionConfig
from models.weights.layer_weights import NORM_GATE, Path, branch_weights
from models.weights.sources import Weight, WeightSource, joined, rows


def read_moe(reader: ConfigReader, grouped: tuple[int, int], scale: float) -> MoeConfig:
    """Read the MoE: sigmoid router with correction bias and groups, and a wide shared expert."""
    names = ("num_experts", "num_local_experts", "n_routed_experts")
    experts = reader.integer(spelled(reader, *names))
    name = spelled(reader, "num_experts_per_token", "num_experts_per_tok")
    per_token = reader.integer(name)
    group_names = spelled(reader, "num_expert_group", "n_group"), name
    groups, chosen_groups, per_token = read_groups(reader, experts, per_token, group_names, grouped)
    shared = reader.integer(spelled(reader, "num_shared_experts", "n_shared_experts"), 1, minimum=0)
    width = reader.integer("moe_intermediate_size")
    reader.fixed(
        {
            "moe_router_activation_func": "sigmoid",
            "score_function": "sigmoid",
            "moe_layer_freq": 1,
            "use_grouped_topk": True,
        }
    )
    router = RouterConfig(
        experts,
        per_token,
        scores="sigmoid",
        bias=True,
        groups=groups,
        groups_kept=chosen_groups,
        normalise=reader.flag(spelled(reader, "moe_renormalize", "norm_topk_prob"), True),
        epsilon=1e-20,
        scale=reader.number("routed_scaling_factor", scale),
    )
    return MoeConfig(router, width, shared_width=shared * width)


def read_feed_forward(
    reader: ConfigReader, layers: int, dense: int, groups: tuple[int, int], scale: float
) -> list[MlpConfig | MoeConfig]:
    """Read the feed-forward layers by `mlp_layer_types`; without it the first `dense` layers are dense."""
    dense = reader.integer("first_k_dense_replace", dense, minimum=0)
    first_dense = ["dense" if i < dense else "sparse" for i in range(layers)]
    kinds = read_kinds(reader, "mlp_layer_types", ["dense", "sparse"], layers, first_dense)
    mlp = MlpConfig(reader.integer("intermediate_size"))
    moe = read_moe(reader, groups, scale) if "sparse" in kinds else mlp
    return [mlp if kind == "dense" else moe for kind in kinds]


def read_latent_attention(reader: ConfigReader, rope: Rope | None, head_gate: bool) -> LatentAttentionConfig:
    """Read the sizes of latent attention; a null `q_lora_rank` means uncompressed queries."""
    reader.choice("attention_bias", [False], False)
    heads = reader.integer("num_attention_heads")
    # The default in transformers is 32.
    if reader.integer("num_key_value_heads", 32 if reader.absent("num_key_value_heads") else heads) != heads:
        reader.fault("num_key_value_heads", f"num_attention_heads ({heads}): all heads share the compressed rows")
    return LatentAttentionConfig(
        heads,
        reader.integer("kv_lora_rank"),
        reader.integer("qk_rope_head_dim"),
        reader.integer("qk_nope_head_dim"),
        reader.integer("v_head_dim"),
        rope,
        head_gate,
        query_rank=None if reader.get("q_lora_rank") is None else reader.integer("q_lora_rank"),
    )


def delta_attention_weights(
    c: KimiDeltaAttentionConfig,
    hidden: int,
    path: Path,
    name: str,
    *,
    outputs: Sequence[str],
    rate: str = "A_log",
    rank: int = 1,
    float32_conv: bool = False,
) -> list[Weight]:
    """List the parameters of a KDA layer at `path`, with joined q, k and v.

    Args:
        outputs: names of the output projection.
        rate: name of the tensor of decay rates, of `rank` dimensions.
        float32_conv: keep the convolution in float32, as transformers in Ling.
    """
    heads = (c.heads,) if rank == 1 else (1, 1, c.heads, 1)
    rates = WeightSource({f"{name}.{rate}": heads}, take=lambda tensor, window: tensor.reshape(-1)[window])
    sources = {
        "in_proj_qkv": [joined({f"{name}.{part}_proj.weight": (c.width, hidden) for part in "qkv"})],
        "conv1d": [joined({f"{name}.{part}_conv1d.weight": (c.width, 1, c.kernel) for part in "qkv"})],
        "A_log": [rates],
    }
    names = {"in_proj_b": "b_proj", "norm": "o_norm", "out_proj": outputs}
    for module, letter in (("decay", "f"), ("gate", "g")):
        up = f"{letter}_proj" if c.bottleneck is None else f"{letter}_b_proj"
        names |= {f"{module}.down": f"{letter}_a_proj", f"{module}.up": up}
    float32 = ("conv1d",) if float32_conv else ()
    return branch_weights(c, hidden, path, name, names, sources=sources, float32=float32)


def latent_attention_weights(
    c: LatentAttentionConfig, hidden: int, path: Path, name: str, *, outputs: Sequence[str], interleaved: bool
) -> list[Weight]:
    """List the parameters of a latent attention layer at `path`.

    Args:
        outputs: names of the output projection.
        interleaved: rotated pairs are neighbours in the checkpoint; as halves they give the same scores.
    """
    pairs = np.arange(c.shared_size)
    if interleaved:
        pairs = pairs.reshape(-1, 2).T.reshape(-1)
    of_head = np.concatenate([np.arange(c.key_size), c.key_size + pairs])
    of_queries = (np.arange(c.heads)[:, None] * c.query_size + of_head).reshape(-1)
    of_row = np.concatenate([np.arange(c.rank), c.rank + pairs])
    up = {f"{name}.kv_b_proj.weight": (c.heads * (c.key_size + c.value_size), c.rank)}

    def heads(tensor: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Split into keys `[head, rank, key_size]` and values `[head, value_size, rank]`."""
        matrices = tensor.reshape((c.heads, c.key_size + c.value_size, c.rank))
        return np.swapaxes(matrices[:, : c.key_size], 1, 2), matrices[:, c.key_size :]

    query = f"{name}.{'q_proj' if c.query_rank is None else 'q_b_proj'}.weight"
    sources = {
        "q_proj": [rows(query, (len(of_queries), c.query_rank or hidden), of_queries)],
        "row_proj": [rows(f"{name}.kv_a_proj_with_mqa.weight", (c.row_size, hidden), of_row)],
        "key_up": [WeightSource(up, take=lambda tensor, window: heads(tensor)[0][window])],
        "value_up": [WeightSource(up, take=lambda tensor, window: heads(tensor)[1][window])],
    }
    names = {"row_norm": "kv_a_layernorm", "query_norm": "q_a_layernorm", "query_down": "q_a_proj", "o_proj": outputs}
    # Of norms in GigaChat.
    for norm in ("row_norm", "query_norm"):
        names |= {f"{norm}.{part}": f"{names[norm]}.{stored}" for part, stored in NORM_GATE.items()}
    names["gate"] = "g_proj" if c.head_gate else "gate_proj"
    return branch_weights(c, hidden, path, name, names, sources=sources)
