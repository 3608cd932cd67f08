"""Mamba2 layers after a transformer block with shared parameters (Zamba2, arXiv:2411.15242)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float, Float32, Int

from models.layers.initial import matrix
from models.layers.mlp import Mlp, MlpConfig
from models.layers.norms import RMSNorm
from models.mixers.attention import Attention, AttentionConfig
from models.mixers.kv_cache import KVCache
from models.mixers.mamba2 import Mamba2Config
from models.ops.linear import LinearWeight, linear
from models.sharding.devices import MODEL, SINGLE_DEVICE, Devices, all_reduce
from models.sharding.shard_sizes import ShardingError, try_shard_configs
from models.sharding.sharded_dim import Segment, shard_outputs
from models.state.shapes import Activations, LaneInfo
from models.state.state import ConvRecurrentState, Stateful


@dataclass(frozen=True)
class SharedBlockConfig:
    """A Mamba2 layer after a call of a transformer block.

    Attributes:
        attention: of the block; reads residual stream and embedding, so its input has twice the width.
        block: its number; layers with equal numbers share parameters.
        rank: of each call's adapters.
        attention_adapters: queries, keys and values have adapters, too.
    """

    attention: AttentionConfig
    mlp: MlpConfig
    mamba: Mamba2Config
    block: int
    rank: int
    attention_adapters: bool
    eps: float
    devices: Devices = SINGLE_DEVICE

    def shard(self, devices: Devices) -> "SharedBlockConfig":
        parts = {"attention": self.attention, "mlp": self.mlp, "mamba": self.mamba}
        local, faults = try_shard_configs(parts.values(), devices)
        if faults:
            raise ShardingError(devices, faults)
        return replace(self, devices=devices, **{name: local[part] for name, part in parts.items()})

    def build(self, hidden: int, rngs: nnx.Rngs) -> "SharedBlockMamba":
        return SharedBlockMamba(self, hidden, rngs)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class AdaptedMatrix(LinearWeight):
    """A matrix plus the product of an adapter's two (LoRA, arXiv:2106.09685)."""

    base: Any
    down: Any
    up: Any

    @property
    def shape(self) -> tuple[int, ...]:
        return self.base.shape

    @property
    def nbytes(self) -> int:
        return self.base.nbytes + self.down.nbytes + self.up.nbytes

    def multiply(self, x: Float32[Array, "row in"], devices: Devices = SINGLE_DEVICE) -> Float32[Array, "row out"]:
        return linear(x, self.base, devices) + linear(linear(x, self.down, devices), self.up, devices)

    def take(self, ids: Int[Array, "*place"]) -> Float32[Array, "*place in"]:
        return self.astype(jnp.float32)[ids]

    def astype(self, dtype: DTypeLike) -> Float[Array, "out in"]:
        base, down, up = (part.astype(jnp.float32) for part in (self.base, self.down, self.up))
        return (base + jnp.matmul(up, down, precision="highest")).astype(dtype)


def _adapted(layer: Any, adapters: Mapping[str, Any]) -> Any:
    """Return a layer with the matrices that adapters change."""
    graph, state = nnx.split(layer)
    for name, adapter in adapters.items():
        state[name] = nnx.Param(AdaptedMatrix(getattr(layer, name)[...], adapter["down"][...], adapter["up"][...]))
    return nnx.merge(graph, state)


class SharedBlockState(NamedTuple):
    """Keys and values of the layer's block call, and its Mamba2 layer's state."""

    attention: KVCache
    mamba: ConvRecurrentState


class SharedBlockMamba(Stateful):
    """`mamba(norm(x + linear(block([x | embedding]))))`; calls have separate states and adapters.

    The block, with shared parameters, is `mlp(norm(attention(norm([x | embedding]))))` without residual connections.
    """

    norms_input = True
    reads_embedding = True

    def __init__(self, config: SharedBlockConfig, hidden: int, rngs: nnx.Rngs):
        self.config, self.shared_as = config, config.block
        self.block: Any = nnx.Dict(
            norm=RMSNorm(2 * hidden, config.eps),
            attention=Attention(config.attention, 2 * hidden, rngs, outputs=hidden),
            mlp_norm=RMSNorm(hidden, config.eps),
            mlp=Mlp(config.mlp, hidden, rngs),
        )
        self.linear = matrix(rngs, hidden, hidden)
        self.norm = RMSNorm(hidden, config.eps)
        self.mamba = config.mamba.build(hidden, rngs)
        c, rank = config.attention, config.rank
        width, heads = Segment(config.mlp.width, config.mlp.width), Segment(c.heads * c.head_dim, c.heads)

        def adapter(down: nnx.Param, outputs: Segment) -> Any:
            """Return the matrices `[rank, in]` and `[out, rank]` of an adapter."""
            return nnx.Dict(down=down, up=matrix(rngs, outputs.size, rank, sharded=(shard_outputs(outputs),)))

        down = matrix(rngs, rank, hidden)
        self.mlp_adapters = nnx.Dict({name: adapter(down, width) for name in ("gate_proj", "up_proj")})
        names = ("q_proj", "k_proj", "v_proj") if config.attention_adapters else ()
        self.attention_adapters = nnx.Dict({name: adapter(matrix(rngs, rank, 2 * hidden), heads) for name in names})

    def state_arrays(self) -> SharedBlockState:
        return SharedBlockState(self.block.attention.state_arrays(), self.mamba.state_arrays())

    def sites(self) -> dict[str, int]:
        return self.block.attention.sites() | self.mamba.sites()

    def __call__(self, x: Activations, info: LaneInfo, state: SharedBlockState) -> tuple[Activations, SharedBlockState]:
        assert info.embedded is not None, "a layer that reads the embedding: expected it in info.embedded"
        axes = self.config.devices.several((MODEL,))
        block = self.block
        attention = _adapted(block.attention, self.attention_adapters)
        y, cache = attention(block.norm(jnp.concatenate([x, info.embedded], axis=-1)), info, state.attention)
        y = block.mlp_norm(all_reduce(y, axes))
        y = _adapted(block.mlp, self.mlp_adapters).project(y)
        y = linear(all_reduce(y, axes), self.linear[...], self.config.devices)
        y, mamba = self.mamba(self.norm(x + y), info, state.mamba)
        return y, SharedBlockState(cache, mamba)

    def commit(self, pending: SharedBlockState, info: LaneInfo, state: SharedBlockState) -> SharedBlockState:
        cache = self.block.attention.commit(pending.attention, info, state.attention)
        return SharedBlockState(cache, self.mamba.commit(pending.mamba, info, state.mamba))
