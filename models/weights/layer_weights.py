"""Parameters of the common layers and their checkpoint tensors, under the names of a family."""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from typing import Any

from flax import nnx

from models.decoder.decoder import BranchConfig, DecoderConfig, PostNorm, Wrapped
from models.layers.initial import ZeroRngs
from models.layers.mlp import MlpConfig
from models.layers.moe import MoeConfig
from models.layers.norms import NormConfig
from models.mixers.attention import AttentionConfig
from models.weights.sources import Weight, WeightSource, expert_matrices, tensor

Names = Mapping[str, str | Sequence[str]]
Sources = Mapping[str, Sequence[WeightSource]]
Path = tuple[str | int, ...]
LayerWeights = Callable[[Any, int, Path, str], list[Weight]]
HEAD_NAMES = {
    "fc": "eh_proj",
    "pre_fc_norm_embedding": "enorm",
    "pre_fc_norm_hidden": "hnorm",
    "norm": "final_layernorm",
}
"""Tensors of an MTP head stored as a layer (DeepSeek-V3)."""
NUMBERED = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
"""Tensors of a gated MLP or an expert under numbers (Llama, Mixtral)."""
NORM_GATE = {"gate_in": "gate_up_projection", "gate_out": "gate_down_projection"}
"""Tensors of the gate of a norm."""
MOE_NAMES = {
    "shared_expert": "shared_experts",
    "router": "gate",
    "router.bias": "gate.e_score_correction_bias",
    "latent_in": "fc1_latent_proj",
    "latent_out": "fc2_latent_proj",
}
"""Modules of an MoE layer (DeepSeek-V3, Nemotron-H)."""
NORMS = ("input_layernorm", "post_attention_layernorm")
Describe = Callable[[BranchConfig, int, Path, str], list[Weight]]


def decoder_weights(
    config: DecoderConfig,
    describe: Describe,
    norms: Sequence[str | Sequence[str]] = NORMS,
    embedding: str | Sequence[str] = "model.embed_tokens.weight",
    final_norm: str = "model.norm.weight",
    layers: str = "model.layers",
    post_norms: Sequence[str | Sequence[str]] = (),
) -> list[Weight]:
    """List every parameter of a decoder.

    Args:
        describe: `(branch, hidden, path, layer)` -> parameters of a layer at `path` with tensor prefix `layer`.
        norms, post_norms: before a layer's branches, and after them (`PostNorm`), under one name or several; () if the
            caller describes them.
    """
    table = config.vocab_size, config.hidden_size
    weights = [tensor(("embed_tokens",), embedding, table)]
    weights += norm_weights(config, ("norm",), final_norm.removesuffix(".weight"))
    if not config.tied:
        weights.append(tensor(("lm_head",), "lm_head.weight", table))
    for i, branches in enumerate(config.layers):
        weights += layer_weights(config, branches, ("layers", i), f"{layers}.{i}", describe, norms, post_norms)
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
    config: DecoderConfig,
    branches: Sequence[BranchConfig],
    path: Path,
    layer: str,
    describe: Describe,
    norms: Sequence[str | Sequence[str]] = NORMS,
    post_norms: Sequence[str | Sequence[str]] = (),
) -> list[Weight]:
    """List the parameters of a layer at `path` with tensor prefix `layer`."""
    weights = []
    for j, branch in enumerate(branches):
        place, post = (*path, "branches", j), branch if isinstance(branch, PostNorm) else None
        if j < len(norms) and (post is None or post.in_front):
            weights += norm_weights(config, (*place, "norm"), norms[j], layer)
        if j < len(post_norms) and post is not None:
            weights += norm_weights(config, (*place, "post_norm"), post_norms[j], layer)
        weights += describe(branch, config.hidden_size, (*place, "inner"), layer)
    return weights


def norm_weights(config: DecoderConfig, path: Path, names: str | Sequence[str], layer: str = "") -> list[Weight]:
    """List the parameters of a norm at `path`, under one name or several below `layer`."""
    stored = [f"{layer}.{name}" if layer else name for name in ((names,) if isinstance(names, str) else names)]
    vectors = [WeightSource({f"{name}.weight": (config.hidden_size,)}) for name in stored]
    return branch_weights(config.norm, config.hidden_size, path, stored[0], NORM_GATE, sources={"weight": vectors})


def head_weights(hidden: int, name: str, names: Names | None = None) -> list[Weight]:
    """List the parameters of an MTP head outside its layer; arguments as for `branch_weights`."""
    stored = {part: part for part in ("fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")} | dict(names or {})
    norms = {("mtp", part, "weight"): f"{name}.{stored[part]}.weight" for part in stored if part != "fc"}
    return [
        tensor(("mtp", "fc"), f"{name}.{stored['fc']}.weight", (hidden, 2 * hidden)),
        *(tensor(path, norm, (hidden,), float32=True) for path, norm in norms.items()),
    ]


def branch_weights(
    c: BranchConfig | NormConfig,
    hidden: int,
    path: Path,
    name: str,
    names: Names | None = None,
    *,
    sources: Sources | None = None,
    adapted: Sources | None = None,
    float32: Collection[str] = (),
) -> list[Weight]:
    """List the parameters of a mixer, feed-forward layer or norm, as `c.build` makes them.

    Parameter `a.b` at `path` is tensor `{name}.a.b.weight`; biases, `A_log` and `D` have no suffix. Vectors and `A_log`
    are float32.

    Args:
        names: parameter or module, such as `a`, -> different name in files, or several.
        sources, adapted: parameter -> its `options` in place of a tensor, and its `Weight.adapted`.
        float32: further float32 parameters.
    """
    names, sources, adapted = names or {}, sources or {}, adapted or {}
    weights = []
    for place, shape in _built_shapes(c, hidden).items():
        part = ".".join(map(str, place)).removesuffix(".weight")
        options = sources.get(part) or [WeightSource({f"{name}.{stored}": shape}) for stored in _stored(part, names)]
        is_wide = len(shape) == 1 or part in float32 or part == "A_log"
        weights.append(Weight((*path, *place), shape, tuple(options), is_wide, tuple(adapted.get(part, ()))))
    return weights


@cache
def _built_shapes(c: BranchConfig | NormConfig, hidden: int) -> dict[Path, tuple[int, ...]]:
    layer = nnx.eval_shape(lambda: c.build(hidden, ZeroRngs()))
    flat: list[tuple[Any, nnx.Variable]] = list(nnx.to_flat_state(nnx.state(layer, nnx.Param)))
    return {place: variable.get_value().shape for place, variable in flat}


def _stored(part: str, names: Names) -> list[str]:
    """Return the names of a parameter in files, below the layer."""
    module, below = part, ""
    while module not in names and "." in module:
        module, _, last = module.rpartition(".")
        below = f".{last}{below}"
    new = names.get(module, module)
    stems = [f"{stem}{below}" for stem in ((new,) if isinstance(new, str) else new)]
    bare = [stem.endswith("bias") or stem.rpartition(".")[2] in ("A_log", "D") for stem in stems]
    return [stem if plain else f"{stem}.weight" for stem, plain in zip(stems, bare, strict=True)]


attention_weights = branch_weights


def mlp_weights(width: int, hidden: int, path: Path, name: str, names: Names | None = None) -> list[Weight]:
    """List the parameters of a gated MLP; arguments as for `branch_weights`."""
    return branch_weights(MlpConfig(width), hidden, path, name, names)


def moe_weights(
    c: MoeConfig,
    hidden: int,
    path: Path,
    name: str,
    names: Names | None = None,
    float32_router: bool = False,
) -> list[Weight]:
    """List the parameters of an MoE layer with joined or separate experts.

    Args:
        c, hidden, path, name: as for `branch_weights`.
        names: likewise, besides or in place of `MOE_NAMES`; also of an expert's matrices.
        float32_router: keep the router's matrix in float32, as transformers in some families.
    """
    count, experts, inner = c.router.experts, f"{name}.experts", c.latent or hidden
    names = {**MOE_NAMES, **(names or {})}
    gate, up, down = (names.get(part, part) for part in ("gate_proj", "up_proj", "down_proj"))
    matrices = {
        "gate_up_proj": ((gate, up), (c.width, inner)),
        "up_proj": ((up,), (c.width, inner)),
        "down_proj": ((down,), (inner, c.width)),
    }
    return branch_weights(
        c,
        hidden,
        path,
        name,
        names,
        sources={
            part: expert_matrices(f"{experts}.{part}", experts, stored, count, shape)
            for part, (stored, shape) in matrices.items()
        },
        float32=("router",) if float32_router else (),
    )


STANDARD: Mapping[type, tuple[str, LayerWeights]] = {
    AttentionConfig: ("self_attn", branch_weights),
    MlpConfig: ("mlp", branch_weights),
}


def by_kind(parts: Mapping[type, tuple[str, LayerWeights]]) -> Describe:
    """Return the argument `describe` of `decoder_weights`, from kinds of layers.

    Args:
        parts: config of a mixer or feed-forward layer -> its name below the layer, and the function that lists its
            parameters, with the first four arguments of `branch_weights`; besides or in place of `STANDARD`.
    """
    parts = {**STANDARD, **parts}

    def describe(c: BranchConfig, hidden: int, path: Path, layer: str) -> list[Weight]:
        inner = c.inner if isinstance(c, Wrapped) else c
        name, weights = parts[type(inner)]
        return weights(inner, hidden, path, f"{layer}.{name}" if name else layer)

    return describe
