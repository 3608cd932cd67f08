"""Over how many devices a model is spread, and what the devices that hold parts of one layer tell each other.

A model of several devices is the same code as that of one: each device runs a decoder whose sizes are its own share's
(`DecoderConfig.share`) inside `jax.shard_map` over a mesh with the axes `model` and `expert`, and what its layers give
is its part of a sum. An axis of one device causes no equation.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float32, Int32

MODEL = "model"
"""Mesh axis that heads, channels of a convolution, widths and rows of the vocabulary are split over."""
EXPERT = "expert"
"""Mesh axis that experts are split over."""


class Devices(NamedTuple):
    """How many devices a model's parameters are split over.

    Attributes:
        model, expert: devices along each mesh axis of that name.
    """

    model: int = 1
    expert: int = 1

    def along(self, axis: str) -> int:
        """Devices along one mesh axis."""
        return {MODEL: self.model, EXPERT: self.expert}[axis]

    def several(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        """Those of the axes that have more than one device."""
        return tuple(axis for axis in axes if self.along(axis) > 1)


SINGLE_DEVICE = Devices()
"""One device, which has the whole model."""


def all_reduce(part: Array, axes: tuple[str, ...]) -> Array:
    """The sum over the devices along mesh axes of what each of them has; `part` itself where there are no axes.

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
            "parameter split as `Decoder.sharded_dims` has it; a layer that is not split has `summed_over = ()`."
        )
    return lax.psum(part, axes)


def local_rows(
    number: Int32[Array, "*rows"], axis: str, local: int
) -> tuple[Bool[Array, "*rows"], Int32[Array, "*rows"]]:
    """Which numbers of something split over `axis`, `local` to a device, are this device's, and their numbers here.

    The second means nothing where the first is false.
    """
    here = number - lax.axis_index(axis) * local
    return (here >= 0) & (here < local), here


def mean_over_group(
    x: Float32[Array, "*rows one"], devices: Devices, group_devices: int
) -> Float32[Array, "*rows one"]:
    """The mean over each `group_devices` devices that lie side by side along `model`.

    Args:
        x: of this device, the last dimension 1.
        devices: of the model; `group_devices` divides those along `model`.
        group_devices: 1 gives x itself.
    """
    if group_devices == 1:
        return x
    # a psum over some of the devices of an axis is none that shard_map can follow: each group has a place of its own
    mine = jnp.arange(devices.model // group_devices) == lax.axis_index(MODEL) // group_devices
    mine = mine.reshape((1,) * (x.ndim - 1) + mine.shape)
    every = lax.psum(jnp.where(mine, x, 0.0), MODEL)
    return jnp.sum(jnp.where(mine, every, 0.0), axis=-1, keepdims=True) / group_devices
