"""Linear projections: products of rows with a weight, plain or packed."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from types import EllipsisType
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import DTypeLike
from jaxtyping import Float, Float32, Int

from models.ops.kernels import fastest
from models.ops.layout import materialized_transpose
from models.ops.row_product import KERNEL, row_product
from models.ops.row_product_gpu import KERNEL as GPU_KERNEL
from models.ops.row_product_gpu import row_product as row_product_gpu
from models.sharding.devices import SINGLE_DEVICE, Devices
from models.state.shapes import over_last

MAX_WEIGHT_FIRST_ROWS = 32
"""Maximum rows with a narrow weight as the left operand: 1.0 to 2.2 times as fast (ops/layout: operands)."""
PROJECTION = "projection"
"""Named scope of the products in profiles."""


class LinearWeight(ABC):
    """A matrix `[out, in]` in another form than an array.

    It is a parameter, and must be a pytree (`jax.tree_util.register_dataclass`): the traced program depends on its
    static fields.

    Attributes:
        tiles: True if equal rows and whole groups of columns of all its arrays form such a matrix.
    """

    tiles: ClassVar[bool] = False

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Shape of the plain array."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes in memory."""

    @abstractmethod
    def multiply(self, x: Float32[Array, "row in"], devices: Devices = SINGLE_DEVICE) -> Float32[Array, "row out"]:
        """Return `x @ weight.T`, each row by itself, accumulated in float32."""

    @abstractmethod
    def take(self, ids: Int[Array, "*place"]) -> Float32[Array, "*place in"]:
        """Return rows of the matrix, as `embedding_rows`."""

    @abstractmethod
    def astype(self, dtype: DTypeLike) -> Float[Array, "out in"]:
        """Return the matrix as a plain array."""

    def __getitem__(self, index: EllipsisType) -> "LinearWeight":
        """Return the matrix itself, for `parameter[...]`."""
        return self


def linear(
    x: Float[Array, "*rows in"], weight: Float[Array, "out in"] | LinearWeight, devices: Devices = SINGLE_DEVICE
) -> Float32[Array, "*rows out"]:
    """Return `x @ weight.T`, each row by itself, accumulated in float32.

    A plain array keeps the dtype and the orientation `[out, in]` of the checkpoint; the input is rounded to its dtype.
    """
    with jax.named_scope(PROJECTION):
        if GPU_KERNEL.chosen(devices, x, weight):
            return row_product_gpu(x, [weight], interpret=devices.interpret)
        rows = x.reshape((-1, x.shape[-1])).astype(jnp.float32)
        if isinstance(weight, LinearWeight):
            product = weight.multiply(rows, devices)
        elif KERNEL.chosen(devices, rows, weight):
            product = _by_kernel(rows, weight)
        elif devices.platform == "gpu" and len(weight) == 1:
            # A sum is one operation; for a product XLA:GPU would pad the weight. XLA drops a rounding by two calls of
            # `astype`.
            kind = jnp.finfo(weight.dtype)
            rounded = lax.reduce_precision(rows, kind.nexp, kind.nmant)
            product = jnp.sum(rounded * weight.astype(jnp.float32), axis=1, keepdims=True)
        else:
            product = dot(rows, weight)
        return product.reshape((*x.shape[:-1], weight.shape[0]))


def joined_linear(
    x: Float32[Array, "*rows in"],
    weights: Sequence[Float[Array, "out in"] | LinearWeight],
    vectors: Sequence[Float32[Array, "out"]] = (),
    devices: Devices = SINGLE_DEVICE,
    *,
    joined: Callable[..., Any],
    dtype: DTypeLike = jnp.float32,
) -> Any:
    """Return a function of `x @ weight.T`, for some weights, and of vectors.

    Args:
        weights: of equal shapes.
        vectors: a number of each output.
        joined: elementwise function of the products and the vectors; returns one array or a tuple.
        dtype: input dtype of the next product; the kernel rounds its results to it, other forms return float32.
    """
    if not all(GPU_KERNEL.chosen(devices, x, weight) for weight in weights):
        products = [linear(x, weight, devices) for weight in weights]
        return joined(*products, *(over_last(vector, x) for vector in vectors))
    with jax.named_scope(PROJECTION):
        return row_product_gpu(x, weights, vectors, joined=joined, dtype=dtype, interpret=devices.interpret)


@jax.custom_jvp
def _by_kernel(x: Float32[Array, "row in"], weight: Float[Array, "out in"]) -> Float32[Array, "row out"]:
    """Return the product by the kernel, with the derivatives of `dot`."""
    return row_product(x, weight, instructions=fastest())


@_by_kernel.defjvp
def _derivative(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    return _by_kernel(*primals), jax.jvp(dot, primals, tangents)[1]


def dot(x: Float32[Array, "row in"], weight: Float[Array, "out in"]) -> Float32[Array, "row out"]:
    """Return `x @ weight.T` of a plain array, accumulated in float32.

    Rows are rounded to the weight's dtype. A single narrow row and a single output are computed as two (ops/layout:
    operands).
    """
    count, outputs = len(x), len(weight)
    weight = _at_least_two(weight)
    if weight.dtype == jnp.float32:
        return _dot(x, weight, lax.Precision.HIGHEST)[:, :outputs]
    rows = _at_least_two(x.astype(weight.dtype))
    if count <= MAX_WEIGHT_FIRST_ROWS:
        return materialized_transpose(_dot(weight, rows))[:count, :outputs]
    return _dot(rows, weight)[:count, :outputs]


def _dot(left: Array, right: Array, precision: lax.Precision | None = None) -> Array:
    contracted = (((1,), (1,)), ((), ()))
    return lax.dot_general(left, right, contracted, precision=precision, preferred_element_type=jnp.float32)


def _at_least_two(matrix: Float[Array, "row in"]) -> Float[Array, "padded in"]:
    return jnp.concatenate([matrix, jnp.zeros_like(matrix)]) if len(matrix) == 1 else matrix
