"""Variants of a matrix product, and those that are possible for a product."""

from dataclasses import dataclass
from typing import Literal

from jax import Array
from jaxtyping import Float, Float32, UInt32

from hybridlm.cpu_tuning.packed_u32 import SHARED_TERMS, VECTOR, groups_of_terms, multiply_packed
from models.ops.linear import MAX_WEIGHT_FIRST_ROWS, dot

MAX_TUNED_ROWS = 64
"""Row counts up to this many are tuned individually; products of more rows have their default variant."""
MAX_PACKED_ROWS = 4
"""Maximum row count for which a variant that reads packed uint32 can be the fastest."""
MIN_TERMS = 16
"""Minimum terms per partial sum of a packed weight: with fewer, XLA recomputes the inputs in each sum."""

Variant = Literal["rows x weight", "weight x rows", "packed, by row", "packed, for all rows", "int8 head"]
"""Operand order of a library matmul, or sums over packed uint32, which are unpacked for each row or once for all. The
int8 head computes no product: it finds the highest output of each row, and has the dtype "int8"."""
PACKED: tuple[Variant, ...] = ("packed, by row", "packed, for all rows")
INT8_HEAD: Variant = "int8 head"


@dataclass(frozen=True, order=True)
class Product:
    """A product with a weight of narrow dtype.

    Attributes:
        rows: row count of the input.
        outputs, inputs: the dimensions of the weight.
        dtype: dtype of the weight.
    """

    rows: int
    outputs: int
    inputs: int
    dtype: str

    @classmethod
    def of(cls, rows: int, weight: Array) -> "Product":
        """Return the product of this many rows with a weight."""
        return cls(rows, weight.shape[0], weight.shape[1], str(weight.dtype))

    @property
    def default(self) -> Variant:
        """The variant of `models.ops.linear.dot` itself."""
        return "weight x rows" if self.rows <= MAX_WEIGHT_FIRST_ROWS else "rows x weight"

    @property
    def variants(self) -> tuple[Variant, ...]:
        """The variants that are worth measuring."""
        if self.dtype == "int8":
            return (INT8_HEAD,)
        found: list[Variant] = ["rows x weight", "weight x rows"]
        terms, rest = divmod(self.inputs, 2 * VECTOR)
        enough = terms > 0 and not rest and terms // groups_of_terms(terms) >= MIN_TERMS
        if enough and self.rows <= MAX_PACKED_ROWS and self.dtype == "bfloat16":
            found.append("packed, by row")
            if self.rows > 1 and terms % SHARED_TERMS == 0:
                found.append("packed, for all rows")
        return tuple(found)

    def __str__(self) -> str:
        return f"{self.rows}x{self.inputs}x{self.outputs} {self.dtype}"


def multiply(
    x: Float32[Array, "row in"], weight: Float[Array, "out in"], variant: Variant
) -> Float32[Array, "row out"]:
    """Return `x @ weight.T` in a variant that reads a plain array."""
    return dot(x, weight, weight_first=variant == "weight x rows")


def multiply_packed_variant(
    x: Float32[Array, "row in"], packed: UInt32[Array, "out half"], variant: Variant
) -> Float32[Array, "row out"]:
    """Return `x @ weight.T` in a variant that reads packed uint32."""
    return multiply_packed(x, packed, shared=variant == "packed, for all rows")
