"""Parameters of the common layers and their checkpoint tensors, under the names of a family."""

from collections.abc import Callable, Mapping, Sequence

from models.decoder.decoder import BranchConfig, DecoderConfig
from models.layers.moe import MoeConfig
from models.mixers.attention import AttentionConfig
from models.weights.sources import Weight, expert_matrices, tensor

Names = Mapping[str, str]
Path = tuple[str | int, ...]
NORMS = ("input_layernorm", "post_attention_layernorm")
Describe = Callable[[BranchConfig, int, Path, str], list[Weight]]


def decoder_weights(
    config: DecoderConfig,
    describe: Describe,
    norms: Sequence[str] = NORMS,
    embedding: str | Sequence[str] = "model.embed_tokens.weight",
    final_norm: str = "model.norm.weight",
    layers: str = "model.layers",
) -> list[Weight]:
    """List every parameter of a decoder.

    Args:
        describe: `(branch, hidden, path, layer)` -> parameters of a layer at `path` with tensor prefix `layer`.
        norms: of a layer's branches; () if the caller describes them.
    """
    hidden, table = config.hidden_size, (config.vocab_size, config.hidden_size)
    weights = [
        tensor(("embed_tokens",), embedding, table),
        tensor(("norm", "weight"), final_norm, (hidden,), float32=True),
    ]
    if not config.tied:
        weights.append(tensor(("lm_head",), "lm_head.weight", table))
    for i, branches in enumerate(config.layers):
        weights += layer_weights(branches, hidden, ("layers", i), f"{layers}.{i}", describe, norms)
    return weights


def backbone_weights(config: DecoderConfig, describe: Describe) -> list[Weight]:
    """As `decoder_weights`, with tensor names `backbone.`."""
    return decoder_weights(
        config,
        describe,
        norms=("norm",),
        # Older checkpoints of Mamba and Mamba2 have the singular.
        embedding=("backbone.embeddings.weight", "backbone.embedding.weight"),
        final_norm="backbone.norm_f.weight",
        layers="backbone.layers",
    )


def layer_weights(
    branches: Sequence[BranchConfig],
    hidden: int,
    path: Path,
    layer: str,
    describe: Describe,
    norms: Sequence[str] = NORMS,
) -> list[Weight]:
    """List the parameters of a layer at `path` with tensor prefix `layer`."""
    weights = [norm_weight(hidden, (*path, "branches", j), f"{layer}.{norm}") for j, norm in enumerate(norms)]
    for j, branch in enumerate(branches):
        weights += describe(branch, hidden, (*path, "branches", j, "inner"), layer)
    return weights


def norm_weight(hidden: int, branch: Path, *names: str, post: bool = False) -> Weight:
    """Return the norm before a branch, or with `post` after it."""
    path = (*branch, "post_norm" if post else "norm", "weight")
    return tensor(path, [f"{name}.weight" for name in names], (hidden,), float32=True)


def head_weights(hidden: int, names: Names) -> list[Weight]:
    """List the parameters of an MTP head outside its layer."""
    norms = ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
    return [
        tensor(("mtp", "fc"), f"{names['fc']}.weight", (hidden, 2 * hidden)),
        *(tensor(("mtp", norm, "weight"), f"{names[norm]}.weight", (hidden,), float32=True) for norm in norms),
    ]


def attention_weights(
    c: AttentionConfig, hidden: int, path: Path, name: str, names: Names | None = None
) -> list[Weight]:
    """List the parameters of an attention layer."""
    names = names or {}
    width = c.heads * c.head_dim
    shapes = {
        "q_proj": (2 * width if c.output_gate else width, hidden),
        "k_proj": (c.kv_heads * c.head_dim, hidden),
        "v_proj": (c.kv_heads * c.head_dim, hidden),
        "o_proj": (hidden, width),
    }
    weights = [tensor((*path, part), f"{name}.{names.get(part, part)}.weight", shape) for part, shape in shapes.items()]
    if c.head_gate:
        weights.append(tensor((*path, "gate"), f"{name}.{names.get('gate', 'gate')}.weight", (c.heads, hidden)))
    if c.qk_norm is not None:
        for part, heads in (("q_norm", c.heads), ("k_norm", c.kv_heads)):
            size = c.qk_norm.size(heads, c.head_dim)
            source = f"{name}.{names.get(part, part)}.weight"
            weights.append(tensor((*path, part, "weight"), source, (size,), float32=True))
    return weights


def mlp_weights(width: int, hidden: int, path: Path, name: str, names: Names | None = None) -> list[Weight]:
    """List the parameters of a gated MLP; arguments as for `attention_weights`."""
    names = names or {}
    shapes = {"gate_proj": (width, hidden), "up_proj": (width, hidden), "down_proj": (hidden, width)}
    return [tensor((*path, part), f"{name}.{names.get(part, part)}.weight", shape) for part, shape in shapes.items()]


def moe_weights(
    c: MoeConfig,
    hidden: int,
    path: Path,
    name: str,
    names: Names | None = None,
    bias: str = "gate.e_score_correction_bias",
    shared: str = "shared_experts",
    router: str = "gate",
    float32_router: bool = False,
) -> list[Weight]:
    """List the parameters of an MoE layer with gated experts, joined or separate.

    Args:
        c, hidden, path, name: as for `attention_weights`.
        names: different checkpoint names of an expert's matrices.
        float32_router: keep the router's matrix in float32, as transformers in some families.
    """
    count, experts = c.router.experts, f"{name}.experts"
    gate, up, down = (dict(names or {}).get(part, part) for part in ("gate_proj", "up_proj", "down_proj"))
    gate_up = expert_matrices(f"{experts}.gate_up_proj", experts, (gate, up), count, (c.width, hidden))
    weights = [
        tensor((*path, "router", "weight"), f"{name}.{router}.weight", (count, hidden), float32_router),
        Weight((*path, "gate_up_proj"), (count, 2 * c.width, hidden), gate_up),
        Weight(
            (*path, "down_proj"),
            (count, hidden, c.width),
            expert_matrices(f"{experts}.down_proj", experts, (down,), count, (hidden, c.width)),
        ),
    ]
    if c.router.bias:
        weights.append(tensor((*path, "router", "bias"), f"{name}.{bias}", (count,), float32=True))
    if c.shared_gate:
        weights.append(tensor((*path, "shared_expert_gate"), f"{name}.{shared}_gate.weight", (1, hidden)))
    if c.shared_width:
        weights += mlp_weights(c.shared_width, hidden, (*path, "shared_expert"), f"{name}.{shared}")
    return weights
