"""Mesh axes of a model's devices, and the collectives of sharded layers.

Each device of a sharded model runs a decoder of local sizes (`DecoderConfig.shard`) inside `jax.shard_map` over a mesh
with the axes `model` (tensor parallel) and `expert` (expert parallel); the partial sums of each layer are all-reduced.
An axis of one device causes no equation.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float32, Int32

MODEL = "model"
"""Tensor parallel mesh axis: shards heads, channels of a convolution, widths and rows of the vocabulary."""
EXPERT = "expert"
"""Expert parallel mesh axis: shards the experts of MoE layers."""


class Devices(NamedTuple):
    """Devices of a model: their numbers along the mesh axes, platform and kernels.

    Attributes:
        model, expert: devices along each mesh axis of that name.
        platform: "cpu", "gpu" or "tpu"; it selects the forms of operations.
        kernels: "off", "auto" (the platform's kernels) or "interpret".
    """

    model: int = 1
    expert: int = 1
    platform: str = "cpu"
    kernels: str = "off"

    @property
    def interpret(self) -> bool:
        """True if Pallas' interpreter runs kernels."""
        return self.kernels == "interpret"

    @property
    def sharded(self) -> bool:
        """True if parameters are sharded over several devices."""
        return self.model > 1 or self.expert > 1

    def along(self, axis: str) -> int:
        """Devices along one mesh axis."""
        return {MODEL: self.model, EXPERT: self.expert}[axis]

    def several(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        """Return the axes with more than one device."""
        return tuple(axis for axis in axes if self.along(axis) > 1)


SINGLE_DEVICE = Devices()
"""One CPU."""


def all_reduce(part: Array, axes: tuple[str, ...]) -> Array:
    """Sum partial sums over the devices along mesh axes.

    Raises:
        ValueError: the devices along an axis have equal values, so the sum would count them several times.
    """
    if not axes:
        return part
    equal = sorted(set(axes) - jax.typeof(part).mat.varying)
    if equal:
        raise ValueError(
            f"the sum over the devices along {', '.join(axes)}: expected a part from each of them, found a value that "
            f"is the same along {', '.join(equal)}. Run the step under jax.shard_map with check_vma=True, with every "
            "parameter sharded by `Decoder.sharded_dims`; a layer that is not sharded has `summed_over = ()`."
        )
    return lax.psum(part, axes)


def local_rows(
    number: Int32[Array, "*rows"], axis: str, count: int
) -> tuple[Bool[Array, "*rows"], Int32[Array, "*rows"]]:
    """Return the mask of this device's row numbers, and their local numbers.

    Args:
        number: global row numbers of an array sharded over `axis`.
        count: rows of each device.
    """
    local = number - lax.axis_index(axis) * count
    return (local >= 0) & (local < count), local


def mean_over_group(
    x: Float32[Array, "*rows one"], devices: Devices, group_devices: int
) -> Float32[Array, "*rows one"]:
    """Average over each group of `group_devices` adjacent devices along `model`.

    Args:
        x: of this device, the last dimension 1.
        devices: of the model; `group_devices` divides those along `model`.
        group_devices: 1 gives x itself.
    """
    if group_devices == 1:
        return x
    # shard_map cannot type a psum over some devices of an axis: each group sums in a separate entry instead.
    group = jnp.arange(devices.model // group_devices) == lax.axis_index(MODEL) // group_devices
    group = group.reshape((1,) * (x.ndim - 1) + group.shape)
    sums = lax.psum(jnp.where(group, x, 0.0), MODEL)
    return jnp.sum(jnp.where(group, sums, 0.0), axis=-1, keepdims=True) / group_devices
