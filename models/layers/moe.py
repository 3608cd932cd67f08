"""Mixture of experts (MoE): a router, routed experts, and a shared expert for every token."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array, lax
from jaxtyping import Float32

from models.layers.activations import SwigluLimit, bounded_silu_gated
from models.layers.initial import matrix
from models.layers.mlp import Activation, MlpConfig, relu_squared
from models.layers.router import RouterConfig
from models.ops.linear import linear
from models.ops.quantised_experts import experts_product
from models.sharding.devices import EXPERT, MODEL, SINGLE_DEVICE, Devices, local_rows
from models.sharding.shard_sizes import ShardedSize, shard_config
from models.sharding.sharded_dim import Segment, ShardedDim, shard_experts
from models.state.shapes import Activations, LaneInfo
from models.state.state import Stateful


@dataclass(frozen=True)
class MoeConfig:
    """Sizes of a mixture of experts.

    Attributes:
        width: of each expert (`moe_intermediate_size`).
        shared_width: of the shared expert, or 0.
        shared_gate: sigmoid of a projection, on the shared expert's output.
        latent: width of a projection of the token for routed experts; None for the token.
        limit, shared_limit: as for `MlpConfig`, of routed experts and of the shared expert.
    """

    router: RouterConfig
    width: int
    shared_width: int = 0
    shared_gate: bool = False
    activation: Activation = "swiglu"
    latent: int | None = None
    limit: SwigluLimit | None = None
    shared_limit: SwigluLimit | None = None
    devices: Devices = SINGLE_DEVICE

    @property
    def local_experts(self) -> int:
        """Experts of each device (expert parallel)."""
        return self.router.experts // self.devices.expert

    def shard(self, devices: Devices) -> "MoeConfig":
        experts = ShardedSize("RouterConfig.experts", self.router.experts, EXPERT)
        return shard_config(self, devices, "width", "shared_width", others=(experts,))

    def build(self, hidden: int, rngs: nnx.Rngs) -> "Moe":
        return Moe(self, hidden, rngs)


class Moe(Stateful):
    """Weighted sum of the chosen experts' outputs, plus the shared expert's.

    Matrices: `gate_up_proj` [expert, gate rows then up rows, in] with SwiGLU, `up_proj` without a gate, `down_proj`
    [expert, in, width]. Each device along `expert` computes its experts for every token. Padding and idle lanes visit
    no routed expert.
    """

    summed_over = (EXPERT, MODEL)

    def __init__(self, config: MoeConfig, hidden: int, rngs: nnx.Rngs):
        c = config
        self.config = config
        self.router = c.router.build(hidden, rngs)
        inner = hidden if c.latent is None else c.latent
        width, experts, count = Segment(c.width, c.width), shard_experts(c.router.experts), c.local_experts
        if c.activation == "swiglu":
            sharded = experts, ShardedDim(1, MODEL, (width, width))
            self.gate_up_proj = matrix(rngs, count, 2 * c.width, inner, sharded=sharded)
        else:
            self.up_proj = matrix(rngs, count, c.width, inner, sharded=(experts, ShardedDim(1, MODEL, (width,))))
        self.down_proj = matrix(rngs, count, inner, c.width, sharded=(experts, ShardedDim(2, MODEL, (width,))))
        if c.latent is not None:
            self.latent_in, self.latent_out = matrix(rngs, c.latent, hidden), matrix(rngs, hidden, c.latent)
        shared = MlpConfig(c.shared_width, c.activation, limit=c.shared_limit, devices=c.devices)
        self.shared_expert = shared.build(hidden, rngs) if c.shared_width else None
        self.shared_expert_gate = matrix(rngs, 1, hidden) if c.shared_gate else None

    def sites(self) -> dict[str, int]:
        return {"expert": self.config.router.experts}

    def __call__(self, x: Activations, info: LaneInfo, state: None) -> tuple[Activations, None]:
        c = self.config
        rows = x.reshape((-1, x.shape[-1]))
        weight, expert = self.router(rows)
        if info.hooks is not None:
            chosen = (*x.shape[:2], c.router.per_token)
            hooked = info.hooks.experts(weight.reshape(chosen), expert.reshape(chosen), info.layer)
            weight = hooked.reshape(weight.shape)
        visits = info.valid.reshape((-1, 1))
        if c.devices.expert > 1:
            local, expert = local_rows(expert, EXPERT, c.local_experts)
            visits = visits & local
        # Padding, idle lanes and experts of other devices: no expert.
        expert = jnp.where(visits, expert, c.local_experts)
        # `linear` gets rows lane by lane if possible: a kernel's tile has whole lanes.
        latents = rows if c.latent is None else linear(x, self.latent_in[...], c.devices).reshape((len(rows), -1))
        if c.activation == "swiglu" and c.limit is None:
            inner = experts_product(latents, self.gate_up_proj[...], expert, c.devices, gated=True)
        elif c.activation == "swiglu":
            gate, up = jnp.split(experts_product(latents, self.gate_up_proj[...], expert, c.devices), 2, axis=-1)
            inner = bounded_silu_gated(gate, up, c.limit)
        else:
            inner = relu_squared(experts_product(latents, self.up_proj[...], expert, c.devices))
        inner = inner.reshape((expert.size, -1))
        routed = experts_product(inner, self.down_proj[...], expert.reshape((-1,)), c.devices)
        out = jnp.sum(routed.reshape((-1, c.router.per_token, latents.shape[-1])) * weight[:, :, None], axis=1)
        if c.latent is not None:
            out = linear(out.reshape((*x.shape[:-1], -1)), self.latent_out[...], c.devices).reshape(rows.shape)
        if self.shared_expert is not None:
            shared = self.shared_expert.project(x)
            if self.shared_expert_gate is not None:
                shared = jax.nn.sigmoid(linear(x, self.shared_expert_gate[...], c.devices)) * shared
            out = out + self._once(shared.reshape(rows.shape))
        return out.reshape(x.shape), None

    def _once(self, shared: Float32[Array, "row hidden"]) -> Float32[Array, "row hidden"]:
        """Return the shared expert's output on the first device along `expert`, else zero."""
        if self.config.devices.expert == 1:
            return shared
        return jnp.where(lax.axis_index(EXPERT) == 0, shared, 0.0)
