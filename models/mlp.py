"""Feed-forward layers: the gated MLP and the mixture of experts."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array, lax
from jaxtyping import Float32

from models.expert_dot import expert_dot
from models.initial import matrix
from models.linear import linear
from models.shapes import Activations, LaneInfo


class Stateless(nnx.Module):
    """A layer that keeps nothing between steps."""

    def init_state(self, lanes: int, context: int, dtype: object) -> None:
        return None


@dataclass(frozen=True)
class MlpConfig:
    """Width of a gated MLP (`intermediate_size`)."""

    width: int

    def build(self, hidden: int, rngs: nnx.Rngs) -> "Mlp":
        return Mlp(self.width, hidden, rngs)


class Mlp(Stateless):
    """`down(silu(gate x) * up x)` (arXiv:2002.05202)."""

    def __init__(self, width: int, hidden: int, rngs: nnx.Rngs):
        self.gate_proj = matrix(rngs, width, hidden)
        self.up_proj = matrix(rngs, width, hidden)
        self.down_proj = matrix(rngs, hidden, width)

    def project(self, x: Float32[Array, "*rows hidden"]) -> Float32[Array, "*rows hidden"]:
        gate, up = linear(x, self.gate_proj[...]), linear(x, self.up_proj[...])
        return linear(jax.nn.silu(gate) * up, self.down_proj[...])

    def __call__(self, x: Activations, info: LaneInfo, state: None) -> tuple[Activations, None]:
        return self.project(x), None


@dataclass(frozen=True)
class MoeConfig:
    """Sizes of a mixture of experts.

    Attributes:
        experts, per_token: `num_experts`, `num_experts_per_tok`.
        width: `moe_intermediate_size` of each expert.
        shared_width: `shared_expert_intermediate_size` of the expert that every token visits.
        normalise: divide the chosen probabilities by their sum (`norm_topk_prob`).
    """

    experts: int
    per_token: int
    width: int
    shared_width: int
    normalise: bool

    def build(self, hidden: int, rngs: nnx.Rngs) -> "Moe":
        return Moe(self, hidden, rngs)


class Moe(Stateless):
    """Softmax router, `per_token` experts for each token, and one shared expert behind a sigmoid gate.

    The router is computed in float32: a rounding there would send a token to another expert.
    """

    def __init__(self, config: MoeConfig, hidden: int, rngs: nnx.Rngs):
        c = config
        self.config = config
        self.gate = matrix(rngs, c.experts, hidden)
        self.gate_up_proj = matrix(rngs, c.experts, 2 * c.width, hidden)
        self.down_proj = matrix(rngs, c.experts, hidden, c.width)
        self.shared_expert = Mlp(c.shared_width, hidden, rngs)
        self.shared_expert_gate = matrix(rngs, 1, hidden)

    def __call__(self, x: Activations, info: LaneInfo, state: None) -> tuple[Activations, None]:
        c = self.config
        rows = x.reshape((-1, x.shape[-1]))
        probability = jax.nn.softmax(linear(rows, self.gate[...].astype(jnp.float32)), axis=-1)
        chosen, expert = lax.top_k(probability, c.per_token)
        if c.normalise:
            chosen = chosen / jnp.sum(chosen, axis=-1, keepdims=True)
        expert = expert.reshape((-1,)).astype(jnp.int32)
        gate, up = jnp.split(expert_dot(jnp.repeat(rows, c.per_token, axis=0), self.gate_up_proj[...], expert), 2, -1)
        routed = expert_dot(jax.nn.silu(gate) * up, self.down_proj[...], expert)
        routed = jnp.sum(routed.reshape((-1, c.per_token, x.shape[-1])) * chosen[:, :, None], axis=1)
        shared = jax.nn.sigmoid(linear(rows, self.shared_expert_gate[...])) * self.shared_expert.project(rows)
        return (routed + shared).reshape(x.shape), None
