"""Packed weights of every form, with every code there is."""

from typing import Literal

import jax.numpy as jnp
import numpy as np

from models.ops.quantised_codes import TWO_IN_A_BYTE, Codes
from models.ops.quantised_weight import QuantisedWeight

Form = tuple[Codes, bool, bool | Literal["offsets"]]
FORMS: list[Form] = [("int8", False, False), ("int8", False, True), ("int4", False, False), ("int4", False, True)]
FORMS.extend([("int8", False, "offsets"), ("int4", False, "offsets")])
FORMS.extend([("int8", True, False), ("e4m3", False, False), ("e2m1", False, False), ("e2m1", True, False)])
"""Kind of codes, whether there are second scales, and whether zero points or offsets."""


def weight_of(
    shape: tuple[int, ...],
    groups: int,
    form: Form,
    dtype: str = "bfloat16",
    scales: str = "bfloat16",
) -> QuantisedWeight:
    """Every code there is, but NaN; scales of many magnitudes."""
    kind, full, zero = form
    rng = np.random.default_rng(sum(shape) + groups)
    width = shape[-1] // 2 if kind in TWO_IN_A_BYTE else shape[-1]
    codes = rng.integers(0, 256, (*shape[:-1], width)).astype(np.uint8)
    if kind == "e4m3":
        codes = np.where(codes & 127 == 127, 3, codes).astype(np.uint8)
    codes = codes.view(np.int8) if kind == "int8" else codes
    scale = rng.normal(size=(*shape[:-1], groups)) * 2.0 ** rng.integers(-9, 9, (*shape[:-1], groups))
    zeros = rng.integers(0, 16, scale.shape).astype(codes.dtype)
    offsets = (rng.normal(size=scale.shape) * np.abs(scale) * 20).astype(np.float32)
    return QuantisedWeight(
        jnp.asarray(codes),
        jnp.asarray(scale, scales),
        jnp.asarray(rng.normal(size=(*shape[:-1], 1)), jnp.float32) if full else None,
        None if not zero else jnp.asarray(offsets if zero == "offsets" else zeros),
        kind,
        dtype,
    )
