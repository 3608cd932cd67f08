"""The mixture of experts: a router, many small feed-forward layers, and what every token passes besides."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx

from models.activations import silu_gated
from models.expert_dot import expert_dot
from models.initial import matrix
from models.linear import linear
from models.mlp import Activation, MlpConfig, Stateless, relu_squared
from models.router import RouterConfig
from models.shapes import Activations, LaneInfo


@dataclass(frozen=True)
class MoeConfig:
    """Sizes of a mixture of experts.

    Attributes:
        router: how experts are chosen.
        width: width of each expert (`moe_intermediate_size`).
        shared_width: width of the feed-forward layer that every token visits, 0 where there is none.
        shared_gate: its output is multiplied by the sigmoid of a learned projection of the token.
        activation: of the experts and of the shared layer.
        latent: the routed experts work on a projection of the token to this width; None where they see it whole.
    """

    router: RouterConfig
    width: int
    shared_width: int = 0
    shared_gate: bool = False
    activation: Activation = "swiglu"
    latent: int | None = None

    def build(self, hidden: int, rngs: nnx.Rngs) -> "Moe":
        return Moe(self, hidden, rngs)


class Moe(Stateless):
    """The chosen experts' outputs by their weights, plus the shared layer's.

    The experts' matrices lie in `gate_up_proj` [expert, gate rows then up rows, in] with SwiGLU, in `up_proj` without a
    gate, and in `down_proj` [expert, in, width].
    """

    def __init__(self, config: MoeConfig, hidden: int, rngs: nnx.Rngs):
        c = config
        self.config = config
        self.router = c.router.build(hidden, rngs)
        inner = hidden if c.latent is None else c.latent
        if c.activation == "swiglu":
            self.gate_up_proj = matrix(rngs, c.router.experts, 2 * c.width, inner)
        else:
            self.up_proj = matrix(rngs, c.router.experts, c.width, inner)
        self.down_proj = matrix(rngs, c.router.experts, inner, c.width)
        if c.latent is not None:
            self.latent_in, self.latent_out = matrix(rngs, c.latent, hidden), matrix(rngs, hidden, c.latent)
        shared = MlpConfig(c.shared_width, c.activation) if c.shared_width else None
        self.shared_expert = None if shared is None else shared.build(hidden, rngs)
        self.shared_expert_gate = matrix(rngs, 1, hidden) if c.shared_gate else None

    def __call__(self, x: Activations, info: LaneInfo, state: None) -> tuple[Activations, None]:
        c = self.config
        rows = x.reshape((-1, x.shape[-1]))
        weight, expert = self.router(rows)
        expert = expert.reshape((-1,))
        seen = rows if c.latent is None else linear(rows, self.latent_in[...])
        visits = jnp.repeat(seen, c.router.per_token, axis=0)
        if c.activation == "swiglu":
            gate, up = jnp.split(expert_dot(visits, self.gate_up_proj[...], expert), 2, -1)
            inner = silu_gated(gate, up)
        else:
            inner = relu_squared(expert_dot(visits, self.up_proj[...], expert))
        routed = expert_dot(inner, self.down_proj[...], expert)
        out = jnp.sum(routed.reshape((-1, c.router.per_token, seen.shape[-1])) * weight[:, :, None], axis=1)
        if c.latent is not None:
            out = linear(out, self.latent_out[...])
        if self.shared_expert is not None:
            shared = self.shared_expert.project(rows)
            if self.shared_expert_gate is not None:
                shared = jax.nn.sigmoid(linear(rows, self.shared_expert_gate[...])) * shared
            out = out + shared
        return out.reshape(x.shape), None
