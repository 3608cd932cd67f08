"""Mesh axes of a model's devices, and the collectives of layers that are sharded over them.

A sharded model is the same code as a whole one: each device runs a decoder of its local sizes (`DecoderConfig.shard`)
inside `jax.shard_map` over a mesh with the axes `model` (tensor parallel) and `expert` (expert parallel), and each
layer gives a partial sum that is all-reduced. An axis of one device causes no equation.
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
    """Devices that a model runs on: the numbers that its parameters are sharded over, and what they are.

    Attributes:
        model, expert: devices along each mesh axis of that name.
        platform: "cpu", "gpu" or "tpu"; layers compute in forms that are fast there.
        kernels: whether operations run kernels: "off", "auto" (where the platform has them) or "interpret".
    """

    model: int = 1
    expert: int = 1
    platform: str = "cpu"
    kernels: str = "off"

    @property
    def interpret(self) -> bool:
        """Whether Pallas' interpreter runs kernels."""
        return self.kernels == "interpret"

    @property
    def sharded(self) -> bool:
        """Whether parameters are sharded over several devices."""
        return self.model > 1 or self.expert > 1

    def along(self, axis: str) -> int:
        """Devices along one mesh axis."""
        return {MODEL: self.model, EXPERT: self.expert}[axis]

    def several(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        """Return those of the axes that have more than one device."""
        return tuple(axis for axis in axes if self.along(axis) > 1)


SINGLE_DEVICE = Devices()
"""The device of a model that is not sharded, a CPU."""


def all_reduce(part: Array, axes: tuple[str, ...]) -> Array:
    """Sum the partial sums of all devices along mesh axes; return `part` itself where there are no axes.

    Raises:
        ValueError: the devices along an axis have the same value, so that the sum would count it several times.
    """
    if not axes:
        return part
    same = sorted(set(axes) - jax.typeof(part).mat.varying)
    if same:
        raise ValueError(
            f"the sum over the devices along {', '.join(axes)}: expected a part from each of them, found a value that "
            f"is the same along {', '.join(same)}. Run the step under jax.shard_map with check_vma=True, with every "
            "parameter sharded as `Decoder.sharded_dims` has it; a layer that is not sharded has `summed_over = ()`."
        )
    return lax.psum(part, axes)


def local_rows(
    number: Int32[Array, "*rows"], axis: str, count: int
) -> tuple[Bool[Array, "*rows"], Int32[Array, "*rows"]]:
    """Return the mask of row numbers that this device holds, and their local numbers, undefined elsewhere.

    Args:
        number: global row numbers of an array sharded over `axis`.
        axis: mesh axis.
        count: rows that each device holds.
    """
    here = number - lax.axis_index(axis) * count
    return (here >= 0) & (here < count), here


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
    # shard_map cannot type a psum over some devices of an axis: each group sums in an entry of its own instead.
    mine = jnp.arange(devices.model // group_devices) == lax.axis_index(MODEL) // group_devices
    mine = mine.reshape((1,) * (x.ndim - 1) + mine.shape)
    every = lax.psum(jnp.where(mine, x, 0.0), MODEL)
    return jnp.sum(jnp.where(mine, every, 0.0), axis=-1, keepdims=True) / group_devices
