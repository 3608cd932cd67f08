"""Mesh axes of a model's devices, and the collectives of sharded layers.

Each device runs a decoder of local sizes (`DecoderConfig.shard`) inside `jax.shard_map` over the axes `model` (tensor
parallel) and `expert` (expert parallel). An axis of one device causes no equation.
"""

from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float32, Int32

T = TypeVar("T")
MODEL = "model"
"""Tensor parallel axis: shards heads, channels, widths and vocabulary rows."""
EXPERT = "expert"
"""Expert parallel axis: shards experts."""


class Devices(NamedTuple):
    """Devices of a model: numbers along mesh axes, platform and kernels.

    Attributes:
        platform: "cpu", "gpu" or "tpu"; selects forms of operations.
        kernels: "off", "auto" (the platform's kernels) or "interpret".
    """

    model: int = 1
    expert: int = 1
    platform: str = "cpu"
    kernels: str = "off"

    @property
    def interpret(self) -> bool:
        return self.kernels == "interpret"

    @property
    def sharded(self) -> bool:
        """True if parameters are sharded over several devices."""
        return self.model > 1 or self.expert > 1

    def along(self, axis: str) -> int:
        return {MODEL: self.model, EXPERT: self.expert}[axis]

    def several(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        """Return the axes with more than one device."""
        return tuple(axis for axis in axes if self.along(axis) > 1)


SINGLE_DEVICE = Devices()


def all_reduce(part: Array, axes: tuple[str, ...]) -> Array:
    """Sum over the devices along mesh axes.

    Raises:
        ValueError: equal values along an axis would count several times.
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
        number: of an array sharded over `axis`.
        count: per device.
    """
    local = number - lax.axis_index(axis) * count
    return (local >= 0) & (local < count), local


def mean_over_group(
    x: Float32[Array, "*rows one"], devices: Devices, group_devices: int
) -> Float32[Array, "*rows one"]:
    """Average over groups of `group_devices` adjacent devices along `model`; the last dimension is 1."""
    if group_devices == 1:
        return x
    # shard_map cannot type a psum over some devices of an axis: each group sums in a separate entry instead.
    group = jnp.arange(devices.model // group_devices) == lax.axis_index(MODEL) // group_devices
    group = group.reshape((1,) * (x.ndim - 1) + group.shape)
    sums = lax.psum(jnp.where(group, x, 0.0), MODEL)
    return jnp.sum(jnp.where(group, sums, 0.0), axis=-1, keepdims=True) / group_devices


def varying_like(start: T, *like: Any) -> T:
    """Mark `start` as varying over devices like other arrays, for a loop's carry.

    Without varying arrays, this is no equation.

    Arrays with varying indices need the mark too: JAX does not mark them automatically, and the gradient would come
    from one device instead of the sum.

    Args:
        start: pytree, such as a loop's initial carry.
        like: pytrees of other arrays.
    """
    axes = frozenset[str]().union(*(jax.typeof(leaf).mat.varying for leaf in jax.tree.leaves(like)))

    def marked(leaf: Any) -> Any:
        new = tuple(sorted(axes - jax.typeof(leaf).mat.varying))
        return lax.pcast(leaf, new, to="varying") if new else leaf

    return jax.tree.map(marked, start)


def result_like(shape: tuple[int, ...], dtype: Any, like: Array) -> jax.ShapeDtypeStruct:
    """Return the type of a kernel's result that varies over devices like an operand."""
    return jax.ShapeDtypeStruct(shape, dtype, manual_axis_type=jax.typeof(like).mat)
