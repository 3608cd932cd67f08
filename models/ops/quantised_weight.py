"""Quantised matrices: codes, scales of groups of a row's entries, and products.

One form for all schemes of `hybridlm.quantised`. Rows have separate scales, so they can be taken, permuted and sharded.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import DTypeLike
from jaxtyping import Float, Float32, Int, Shaped, UInt8

from models.ops.kernels import fastest
from models.ops.linear import LinearWeight, dot
from models.ops.packed_product import KERNEL, PackedForm, packed_product
from models.ops.quantised_codes import TWO_IN_A_BYTE, Codes
from models.sharding.devices import SINGLE_DEVICE, Devices, varying_like

MAX_BLOCK_NUMBERS = 1 << 19
"""Numbers that a CPU product dequantises at a time, for a core's cache."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class QuantisedWeight(LinearWeight):
    """A matrix `[out, in]`, or one per expert, as codes and scales.

    Numbers: `(code - zero) * scale * whole` or `code * scale - zero` in float32, rounded once to `dtype`.

    Attributes:
        codes: uint8 or int8 `[..., out, stored]`: a byte per entry, or per two, the even one in the low bits.
        scale: floats `[..., out, group]`.
        whole: float32 `[..., out, 1]`, second row scale, or None.
        zero: `[..., out, group]`: code of zero, in the codes' dtype; or float32 offset to subtract after the scale;
            None: 8 for "int4", else 0.
        in_blocks: products dequantise a block of rows at a time, for CPUs.
    """

    tiles: ClassVar[bool] = True

    # Any: a pytree may also hold contracts or types here.
    codes: Any
    scale: Any
    whole: Any
    zero: Any
    kind: Codes = field(metadata={"static": True})
    dtype: str = field(metadata={"static": True})
    in_blocks: bool = field(default=True, metadata={"static": True})

    @property
    def inputs(self) -> int:
        return self.codes.shape[-1] * (2 if self.kind in TWO_IN_A_BYTE else 1)

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.codes.shape[:-1], self.inputs)

    @property
    def has_offsets(self) -> bool:
        return self.zero is not None and self.zero.dtype == jnp.float32

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def ndim(self) -> int:
        return self.codes.ndim

    @property
    def nbytes(self) -> int:
        arrays = (array for array in (self.codes, self.scale, self.whole, self.zero) if array is not None)
        return sum(math.prod(array.shape) * array.dtype.itemsize for array in arrays)

    def numbers(self) -> Float[Array, "*expert out in"]:
        """Return the whole matrix in `dtype`."""
        values = _values(self.codes, self.kind)
        groups = self.scale.shape[-1]
        grouped = values.reshape(*values.shape[:-1], groups, self.inputs // groups)
        zero = None if self.zero is None else self.zero.astype(jnp.float32)[..., None]
        if zero is None:
            grouped = grouped - 8.0 if self.kind == "int4" else grouped
        elif not self.has_offsets:
            grouped = grouped - zero
        grouped = grouped * self.scale.astype(jnp.float32)[..., None]
        if self.has_offsets:
            grouped = grouped - zero
        if self.whole is not None:
            grouped = grouped * self.whole[..., None]
        return grouped.reshape(values.shape).astype(self.dtype)

    def each(self, change: Callable[[Array], Array]) -> "QuantisedWeight":
        return jax.tree.map(change, self)

    def multiply(self, x: Float32[Array, "row in"], devices: Devices = SINGLE_DEVICE) -> Float32[Array, "row out"]:
        if KERNEL.chosen(devices, x, self):
            return _by_kernel(x, self)
        return self.multiply_numbers(x)

    def multiply_numbers(self, x: Float32[Array, "row in"]) -> Float32[Array, "row out"]:
        """Return the product by XLA."""
        outputs = self.shape[0]
        block = max(1, MAX_BLOCK_NUMBERS // self.inputs)
        if not self.in_blocks or outputs <= block:
            return dot(x, self.numbers())
        count = -(-outputs // block)

        def multiply(index: Array, y: Float32[Array, "row out"]) -> Float32[Array, "row out"]:
            start = jnp.minimum(index * block, outputs - block)  # the last two blocks may overlap
            part = self.each(lambda array: lax.dynamic_slice_in_dim(array, start, block))
            return lax.dynamic_update_slice_in_dim(y, dot(x, part.numbers()), start, axis=1)

        empty = varying_like(jnp.zeros((len(x), outputs), jnp.float32), x, self.codes, self.scale)
        return lax.fori_loop(0, count, multiply, empty)

    def form(self) -> PackedForm:
        """Return the kernels' form, with the fastest instructions."""
        return self.kind, self.dtype, fastest()

    def operands(self) -> tuple[Array, Array, Array, Array]:
        """Return the kernels' arrays, empty for None."""
        empty = (*self.codes.shape[:-1], 0)
        whole = jnp.zeros(empty, jnp.float32) if self.whole is None else self.whole
        zero = jnp.zeros(empty, self.codes.dtype) if self.zero is None else self.zero
        return self.codes, self.scale, whole, zero

    def take(self, ids: Int[Array, "*place"]) -> Float32[Array, "*place in"]:
        """Look up rows; NaN for ids out of bounds."""
        valid = (ids >= 0) & (ids < self.shape[0])
        index = jnp.where(valid, ids, 0)
        rows = self.each(lambda array: array[index]).numbers().astype(jnp.float32)
        return jnp.where(valid[..., None], rows, jnp.nan)

    def astype(self, dtype: DTypeLike) -> Float[Array, "*expert out in"]:
        return self.numbers().astype(dtype)


@jax.custom_jvp
def _by_kernel(x: Float32[Array, "row in"], weight: QuantisedWeight) -> Float32[Array, "row out"]:
    return packed_product(x, *weight.operands(), form=weight.form())


@_by_kernel.defjvp
def _derivative(primals: tuple[Array, Any], tangents: tuple[Array, Any]) -> tuple[Array, Array]:
    x, weight = primals
    return _by_kernel(x, weight), jax.jvp(weight.multiply_numbers, (x,), tangents[:1])[1]


def _values(codes: Shaped[Array, "*row stored"], kind: Codes) -> Float32[Array, "*row in"]:
    if kind == "int8":
        return codes.astype(jnp.float32)
    if kind == "e4m3":
        return _e4m3(codes)
    pair = jnp.stack([codes & 15, codes >> 4], axis=-1)
    nibbles = pair.reshape(*codes.shape[:-1], 2 * codes.shape[-1])
    return nibbles.astype(jnp.float32) if kind == "int4" else _e2m1(nibbles)


def _e4m3(codes: UInt8[Array, "*row in"]) -> Float32[Array, "*row in"]:
    """Decode float8 by integer arithmetic: float32 denormals could be flushed to zero."""
    wide = codes.astype(jnp.int32)
    magnitude = wide & 0x7F
    normal = lax.bitcast_convert_type((magnitude << 20) + (120 << 23), jnp.float32)
    value = jnp.where(magnitude < 8, magnitude.astype(jnp.float32) * 2.0**-9, normal)
    return jnp.where(wide >= 128, -value, value)


def _e2m1(codes: UInt8[Array, "*row in"]) -> Float32[Array, "*row in"]:
    wide = codes.astype(jnp.int32)
    magnitude = wide & 7
    normal = lax.bitcast_convert_type((magnitude << 22) + (126 << 23), jnp.float32)
    value = jnp.where(magnitude < 2, magnitude.astype(jnp.float32) * 0.5, normal)
    return jnp.where(wide >= 8, -value, value)


def stored_form(weight: Array | QuantisedWeight) -> str:
    """Describe a weight: the dtype, or codes, group size and dtype of products."""
    if not isinstance(weight, QuantisedWeight):
        return str(weight.dtype)
    return f"{weight.kind} in groups of {weight.inputs // weight.scale.shape[-1]} as {weight.dtype}"
