"""The parameters of the shared layers and the checkpoint tensors they come from, by the names that a family uses."""

from collections.abc import Mapping

from models.attention import AttentionConfig
from models.moe import MoeConfig
from models.weights import Weight, expert_matrices, tensor

Names = Mapping[str, str]
Path = tuple[str | int, ...]


def attention_weights(c: AttentionConfig, hidden: int, at: Path, name: str, names: Names | None = None) -> list[Weight]:
    """Parameters of an attention layer.

    Args:
        c: its config.
        hidden: width of the residual stream.
        at: path of the layer in the model.
        name: what its tensors' names begin with.
        names: names of the parameters that the checkpoint calls otherwise than we do.
    """
    names = names or {}
    width = c.heads * c.head_dim
    shapes = {
        "q_proj": (2 * width if c.output_gate else width, hidden),
        "k_proj": (c.kv_heads * c.head_dim, hidden),
        "v_proj": (c.kv_heads * c.head_dim, hidden),
        "o_proj": (hidden, width),
    }
    weights = [tensor((*at, part), f"{name}.{names.get(part, part)}.weight", shape) for part, shape in shapes.items()]
    if c.qk_norm is not None:
        for part, heads in (("q_norm", c.heads), ("k_norm", c.kv_heads)):
            found, size = f"{name}.{names.get(part, part)}.weight", c.qk_norm.size(heads, c.head_dim)
            weights.append(tensor((*at, part, "weight"), found, (size,), float32=True))
    return weights


def mlp_weights(width: int, hidden: int, at: Path, name: str, names: Names | None = None) -> list[Weight]:
    """Parameters of a gated feed-forward layer; arguments as for `attention_weights`."""
    names = names or {}
    shapes = {"gate_proj": (width, hidden), "up_proj": (width, hidden), "down_proj": (hidden, width)}
    return [tensor((*at, part), f"{name}.{names.get(part, part)}.weight", shape) for part, shape in shapes.items()]


def moe_weights(
    c: MoeConfig,
    hidden: int,
    at: Path,
    name: str,
    names: Names | None = None,
    bias: str = "gate.e_score_correction_bias",
    shared: str = "shared_experts",
) -> list[Weight]:
    """Parameters of a mixture of gated experts, whose matrices lie in one tensor or in one tensor each.

    Args:
        c, hidden, at, name: as for `attention_weights`.
        names: names of an expert's three matrices where the checkpoint calls them otherwise.
        bias: the router's correction bias.
        shared: the layer that every token visits.
    """
    count, experts = c.router.experts, f"{name}.experts"
    gate, up, down = (dict(names or {}).get(part, part) for part in ("gate_proj", "up_proj", "down_proj"))
    gate_up = expert_matrices(f"{experts}.gate_up_proj", experts, (gate, up), count, (c.width, hidden))
    weights = [
        tensor((*at, "router", "weight"), f"{name}.gate.weight", (count, hidden)),
        Weight((*at, "gate_up_proj"), (count, 2 * c.width, hidden), gate_up),
        Weight(
            (*at, "down_proj"),
            (count, hidden, c.width),
            expert_matrices(f"{experts}.down_proj", experts, (down,), count, (hidden, c.width)),
        ),
    ]
    if c.router.bias:
        weights.append(tensor((*at, "router", "bias"), f"{name}.{bias}", (count,), float32=True))
    if c.shared_gate:
        weights.append(tensor((*at, "shared_expert_gate"), f"{name}.{shared}_gate.weight", (1, hidden)))
    if c.shared_width:
        weights += mlp_weights(c.shared_width, hidden, (*at, "shared_expert"), f"{name}.{shared}")
    return weights
