"""Parameters of tuned steps: weights with the chosen variants of their products."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import jax
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float, Float32, Int, UInt32

from hybridlm.cpu_tuning.packed_u32 import packed_u32
from hybridlm.cpu_tuning.variants import PACKED, Product, Variant, multiply, multiply_packed_variant
from models.layers.embedding import embedding_rows
from models.ops.linear import LinearWeight, dot


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TunedWeight(LinearWeight):
    """A weight whose products have variants by their number of rows.

    Attributes:
        array: the weight as it was loaded.
        packed: its bytes as packed uint32; None if no variant reads them.
        variants: by number of rows; other products have the default variant.
    """

    array: Float[Array, "out in"]
    packed: UInt32[Array, "out half"] | None
    variants: tuple[tuple[int, Variant], ...] = field(metadata={"static": True})

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def nbytes(self) -> int:
        return self.array.nbytes

    def multiply(self, x: Float32[Array, "row in"]) -> Float32[Array, "row out"]:
        variant = dict(self.variants).get(len(x))
        if variant is None:
            return dot(x, self.array)
        if variant not in PACKED:
            return multiply(x, self.array, variant)
        assert self.packed is not None, f"the variant {variant!r} has no packed weight"
        return multiply_packed_variant(x, self.packed, variant)

    def take(self, ids: Int[Array, "*place"]) -> Float32[Array, "*place in"]:
        return embedding_rows(self.array, ids)

    def astype(self, dtype: DTypeLike) -> Float[Array, "out in"]:
        return self.array.astype(dtype)


def tuned_weight(param: Array, variants: Mapping[Product, Variant]) -> Array | TunedWeight:
    """Return a parameter with its variants, or unchanged if all are the default.

    Args:
        param: any parameter of a model.
        variants: variants by product. Those that read packed uint32 are left out if the bytes cannot be shared.
    """
    if param.ndim != 2 or isinstance(param, LinearWeight):
        return param
    chosen: list[tuple[int, Variant]] = [
        (one.rows, variant)
        for one, variant in sorted(variants.items())
        if one == Product.of(one.rows, param) and variant != one.default
    ]
    packed = packed_u32(param) if any(variant in PACKED for _, variant in chosen) else None
    usable = tuple(one for one in chosen if packed is not None or one[1] not in PACKED)
    return TunedWeight(param, packed, usable) if usable else param
