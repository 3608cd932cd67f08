"""RMS norm, computed in float32, and RMS norm with a learned gate."""

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array, lax
from jaxtyping import Float32

from models.layers.initial import matrix, parameter
from models.ops.float32 import silu
from models.ops.linear import linear
from models.ops.rms_norm_gpu import KERNEL
from models.ops.rms_norm_gpu import rms_norm as rms_norm_gpu
from models.sharding.devices import SINGLE_DEVICE, Devices, mean_over_group
from models.sharding.sharded_dim import ShardedDim
from models.state.shapes import over_last


def rms_norm(
    x: Float32[Array, "*rows size"],
    weight: Float32[Array, "size"],
    eps: float,
    devices: Devices = SINGLE_DEVICE,
    group_devices: int = 1,
) -> Float32[Array, "*rows size"]:
    """Return `x * rsqrt(mean(x^2) + eps) * weight` over the last dimension (RMSNorm, arXiv:1910.07467).

    Args:
        group_devices: adjacent devices along `model` with equal shards.
    """
    mean = mean_over_group(jnp.mean(x * x, axis=-1, keepdims=True), devices, group_devices)
    return x * lax.rsqrt(mean + eps) * over_last(weight, x)


def grouped_rms_norm(
    x: Float32[Array, "*rows inner"],
    weight: Float32[Array, "inner"],
    groups: int,
    eps: float,
    devices: Devices,
    group_devices: int,
) -> Float32[Array, "*rows inner"]:
    """Norm each group of the last dimension; the weight covers the whole dimension."""
    grouped = x.reshape((*x.shape[:-1], groups, x.shape[-1] // groups))
    scale = jnp.ones((grouped.shape[-1],), jnp.float32)
    return rms_norm(grouped, scale, eps, devices, group_devices).reshape(x.shape) * over_last(weight, x)


class RMSNorm(nnx.Module):
    """RMS norm with a learned weight; `offset` 1 for checkpoints with weights minus one.

    `sharded`: one norm over all devices.
    """

    def __init__(
        self,
        size: int,
        eps: float,
        offset: float = 0.0,
        sharded: tuple[ShardedDim, ...] = (),
        devices: Devices = SINGLE_DEVICE,
    ):
        self.weight = parameter(jnp.full((size,), 1.0 - offset, jnp.float32), *sharded)
        self.eps = eps
        self.offset = offset
        self.devices = devices
        self.group_devices = devices.model if sharded else 1

    def __call__(
        self, x: Float32[Array, "*rows size"], terms: Sequence[Float32[Array, "*rows size"]] = ()
    ) -> Float32[Array, "*rows size"]:
        """Norm the last dimension.

        Args:
            terms: of a residual stream, with the sum x, which a kernel adds itself.
        """
        if terms and KERNEL.chosen(self.devices, x):
            return rms_norm_gpu(terms, self.weight[...], self.eps, self.offset, interpret=self.devices.interpret)
        return rms_norm(x, self.weight[...] + self.offset, self.eps, self.devices, self.group_devices)


GATE_WIDTH = 16
"""Width between the two matrices of a norm's gate, in every published model."""


class GatedRMSNorm(RMSNorm):
    """RMS norm with a learned gate, `ZeroCenteredGatedNorm` of GigaChat3.5.

    It is `n * factor * sigmoid(gate_out silu(gate_in n))`, with n the normed input.
    """

    def __init__(self, size: int, eps: float, factor: float, rngs: nnx.Rngs, offset: float, devices: Devices):
        super().__init__(size, eps, offset, devices=devices)
        self.gate_in, self.gate_out = matrix(rngs, GATE_WIDTH, size), matrix(rngs, size, GATE_WIDTH)
        self.factor = factor

    def __call__(
        self, x: Float32[Array, "*rows size"], terms: Sequence[Float32[Array, "*rows size"]] = ()
    ) -> Float32[Array, "*rows size"]:
        normed = super().__call__(x, terms)
        inner = silu(linear(normed, self.gate_in[...], self.devices))
        return normed * (self.factor * jax.nn.sigmoid(linear(inner, self.gate_out[...], self.devices)))


@dataclass(frozen=True)
class NormConfig:
    """Options of a norm.

    Attributes:
        eps: `rms_norm_eps`.
        offset: 1 if checkpoints store weights minus one.
        gate: `layernorm_gating_weight`, factor on the gate of `GatedRMSNorm`; None for a norm without a gate.
    """

    eps: float
    offset: float = 0.0
    gate: float | None = None

    def build(self, size: int, rngs: nnx.Rngs, devices: Devices = SINGLE_DEVICE) -> RMSNorm:
        if self.gate is None:
            return RMSNorm(size, self.eps, self.offset, devices=devices)
        return GatedRMSNorm(size, self.eps, self.gate, rngs, self.offset, devices)
