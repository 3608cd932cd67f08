"""Matrices that stay quantised in memory: codes, one scale for each group of a row's entries, and their products.

One form holds every scheme of `hybridlm.quantised`: a row has its own scales, so rows can be taken, permuted and
sharded like those of a plain matrix.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import DTypeLike
from jaxtyping import Float, Float32, Int, Int32, Shaped, UInt8

from models.ops.linear import LinearWeight, dot
from models.ops.packed_product import EXPERTS_KERNEL, KERNEL, packed_expert_product, packed_product
from models.ops.quantised_codes import TWO_IN_A_BYTE, Codes
from models.ops.row_product import fastest
from models.sharding.devices import SINGLE_DEVICE, Devices
from models.sharding.varying import varying_like

MAX_BLOCK_NUMBERS = 1 << 19
"""Numbers that a product on a CPU dequantises at a time: they stay in the cache of a core."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class QuantisedWeight(LinearWeight):
    """A matrix `[out, in]`, or one for each expert, as codes and scales.

    The numbers are `(code - zero) * scale * whole` in float32, or `code * scale - zero`, rounded once to `dtype`.

    Attributes:
        codes: uint8 or int8 `[..., out, stored]`: one byte for each entry, or for two of a row, the even one in the low
            four bits.
        scale: floats `[..., out, group]`, of each group of a row's entries.
        whole: float32 `[..., out, 1]`, a second scale of each row, or None.
        zero: `[..., out, group]`: of the dtype of the codes, the code of zero; of float32, what is subtracted from the
            product with the scale; None: a code of 8 for "int4", of 0 for others.
        kind: of the codes.
        dtype: that numbers are rounded to.
        in_blocks: a product dequantises a block of rows at a time, as a CPU has to; other compilers dequantise inside
            of the product.
    """

    tiles: ClassVar[bool] = True

    # A pytree holds other things than arrays in these places, too: contracts, types.
    codes: Any
    scale: Any
    whole: Any
    zero: Any
    kind: Codes = field(metadata={"static": True})
    dtype: str = field(metadata={"static": True})
    in_blocks: bool = field(default=True, metadata={"static": True})

    @property
    def inputs(self) -> int:
        """Entries of a row."""
        return self.codes.shape[-1] * (2 if self.kind in TWO_IN_A_BYTE else 1)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array of numbers, `[.., out, in]`."""
        return (*self.codes.shape[:-1], self.inputs)

    @property
    def has_offsets(self) -> bool:
        """Whether `zero` is subtracted from the product with the scale."""
        return self.zero is not None and self.zero.dtype == jnp.float32

    @property
    def size(self) -> int:
        """Number of entries."""
        return math.prod(self.shape)

    @property
    def ndim(self) -> int:
        """Number of dimensions, 3 for the weights of experts."""
        return self.codes.ndim

    @property
    def nbytes(self) -> int:
        """Bytes of codes and scales."""
        arrays = (one for one in (self.codes, self.scale, self.whole, self.zero) if one is not None)
        return sum(math.prod(one.shape) * one.dtype.itemsize for one in arrays)

    def numbers(self) -> Float[Array, "*expert out in"]:
        """Return all of the matrix in `dtype`."""
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
        """Return the weight with its arrays changed alike, in places and leading dimensions."""
        arrays = (None if one is None else change(one) for one in (self.codes, self.scale, self.whole, self.zero))
        codes, scale, whole, zero = arrays
        assert codes is not None and scale is not None
        return QuantisedWeight(codes, scale, whole, zero, self.kind, self.dtype, self.in_blocks)

    def multiply(self, x: Float32[Array, "row in"], devices: Devices = SINGLE_DEVICE) -> Float32[Array, "row out"]:
        """Compute `x @ numbers.T`, by a kernel where one is chosen."""
        if KERNEL.chosen(devices, x, self):
            return _by_kernel(x, self)
        return self.multiply_numbers(x)

    def multiply_numbers(self, x: Float32[Array, "row in"]) -> Float32[Array, "row out"]:
        """Return the product by XLA, a block of rows at a time where that is asked for."""
        outputs = self.shape[0]
        block = max(1, MAX_BLOCK_NUMBERS // self.inputs)
        if not self.in_blocks or outputs <= block:
            return dot(x, self.numbers())
        count = -(-outputs // block)

        def one(index: Array, y: Float32[Array, "row out"]) -> Float32[Array, "row out"]:
            start = jnp.minimum(index * block, outputs - block)  # the last block overlaps the one before
            return lax.dynamic_update_slice_in_dim(
                y, dot(x, self.each(lambda one: lax.dynamic_slice_in_dim(one, start, block)).numbers()), start, axis=1
            )

        empty = varying_like(jnp.zeros((len(x), outputs), jnp.float32), x, self.codes, self.scale)
        return lax.fori_loop(0, count, one, empty)

    def multiply_experts(self, x: Float32[Array, "row in"], expert: Int32[Array, " row"]) -> Float32[Array, "row out"]:
        """Return `y[r] = weight[expert[r]] @ x[r]` by a kernel."""
        return packed_expert_product(
            x, *self.operands(), expert, kind=self.kind, dtype=self.dtype, instructions=fastest()
        )

    def takes_experts(self, x: Float32[Array, "row in"], devices: Devices) -> bool:
        """Whether a kernel computes the product of these rows."""
        return EXPERTS_KERNEL.chosen(devices, x, self)

    def operands(self) -> tuple[Array, Array, Array, Array]:
        """Return the arrays as kernels take them, without entries for those that there are not."""
        none = (*self.codes.shape[:-1], 0)
        whole = jnp.zeros(none, jnp.float32) if self.whole is None else self.whole
        zero = jnp.zeros(none, self.codes.dtype) if self.zero is None else self.zero
        return self.codes, self.scale, whole, zero

    def take(self, ids: Int[Array, "*place"]) -> Float32[Array, "*place in"]:
        """Look up rows, as of an embedding; NaN for ids out of bounds."""
        known = (ids >= 0) & (ids < self.shape[0])
        at = jnp.where(known, ids, 0)
        found = self.each(lambda one: one[at]).numbers().astype(jnp.float32)
        return jnp.where(known[..., None], found, jnp.nan)

    def astype(self, dtype: DTypeLike) -> Float[Array, "*expert out in"]:
        """Return the numbers as an array of this dtype."""
        return self.numbers().astype(dtype)


@jax.custom_jvp
def _by_kernel(x: Float32[Array, "row in"], weight: QuantisedWeight) -> Float32[Array, "row out"]:
    """Return the product by the kernel; its derivatives are those of `multiply_numbers`."""
    return packed_product(x, *weight.operands(), kind=weight.kind, dtype=weight.dtype, instructions=fastest())


@_by_kernel.defjvp
def _derivative(primals: tuple[Array, Any], tangents: tuple[Array, Any]) -> tuple[Array, Array]:
    x, weight = primals
    return _by_kernel(x, weight), jax.jvp(weight.multiply_numbers, (x,), tangents[:1])[1]


def _values(codes: Shaped[Array, "*row stored"], kind: Codes) -> Float32[Array, "*row in"]:
    """Return the numbers that codes stand for, without their scales."""
    if kind == "int8":
        return codes.astype(jnp.float32)
    if kind == "e4m3":
        return _e4m3(codes)
    pair = jnp.stack([codes & 15, codes >> 4], axis=-1)
    nibbles = pair.reshape(*codes.shape[:-1], 2 * codes.shape[-1])
    return nibbles.astype(jnp.float32) if kind == "int4" else _e2m1(nibbles)


def _e4m3(codes: UInt8[Array, "*row in"]) -> Float32[Array, "*row in"]:
    """Return float8 numbers by integer arithmetic: a denormal float32 on the way could be flushed to zero."""
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
    """Return the dtype of an array; of a packed weight, its codes, the entries of a group and the dtype of products."""
    if not isinstance(weight, QuantisedWeight):
        return str(weight.dtype)
    return f"{weight.kind} in groups of {weight.inputs // weight.scale.shape[-1]} as {weight.dtype}"
