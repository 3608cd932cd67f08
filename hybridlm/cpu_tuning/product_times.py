"""Times of a matrix product in each of its variants."""

import logging
import math
import time
from collections.abc import Mapping, Sequence
from itertools import cycle, islice

import jax
import numpy as np

from hybridlm.cpu_tuning.packed_u32 import packed_u32
from hybridlm.cpu_tuning.variants import PACKED, Product, Variant, multiply, multiply_packed_variant

ROUNDS = 9
READ_BYTES = 64 << 20
"""Bytes of weights that a round reads: more than the caches hold."""
MAX_DIFFERENCE = 1e-3
"""Maximum difference between variants, relative to the largest number: they add in different orders."""

_log = logging.getLogger("hybridlm")


def compiled_variants(product: Product) -> dict[Variant, jax.stages.Compiled]:
    """Return the programs of a product, by variant; they take float32 rows, and the weight or its packed uint32."""
    rows = jax.ShapeDtypeStruct((product.rows, product.inputs), "float32")
    weight = jax.ShapeDtypeStruct((product.outputs, product.inputs), product.dtype)
    packed = jax.ShapeDtypeStruct((product.outputs, product.inputs // 2), "uint32")
    found: dict[Variant, jax.stages.Compiled] = {}
    for variant in product.variants:
        fn, given = (multiply_packed_variant, packed) if variant in PACKED else (multiply, weight)
        found[variant] = jax.jit(fn, static_argnums=2).lower(rows, given, variant).compile()
    return found


def seconds_of(
    product: Product, weights: Sequence[jax.Array], programs: Mapping[Variant, jax.stages.Compiled]
) -> dict[Variant, float]:
    """Return the minimum time of a product in each variant, measured in turns over uncached weights.

    Args:
        product: the product that the programs compute.
        weights: some weights of this shape.
        programs: of `compiled_variants`.

    Returns:
        By variants; those of packed uint32 only if the bytes can be shared. A variant with wrong numbers is left out,
            with a warning.
    """
    needed = max(1, math.ceil(READ_BYTES / weights[0].nbytes))
    several = [one if i < len(weights) else one.copy() for i, one in enumerate(islice(cycle(weights), needed))]
    rows = jax.random.normal(jax.random.key(0), (product.rows, product.inputs))
    packed = list(map(packed_u32, several)) if set(PACKED) & set(programs) else []
    read: dict[Variant, Sequence[jax.Array | None]] = {one: packed if one in PACKED else several for one in programs}
    shared: list[Variant] = [variant for variant in read if all(one is not None for one in read[variant])]
    expected = np.asarray(programs["rows x weight"](rows, several[0]))
    least: dict[Variant, float] = {
        variant: math.inf
        for variant in shared
        if variant == "rows x weight" or _agrees(product, variant, programs[variant](rows, read[variant][0]), expected)
    }
    for _ in range(ROUNDS):
        for variant in least:
            start = time.perf_counter()
            jax.block_until_ready([programs[variant](rows, one) for one in read[variant]])
            least[variant] = min(least[variant], (time.perf_counter() - start) / needed)
    return least


def _agrees(product: Product, variant: Variant, result: jax.Array, expected: np.ndarray) -> bool:
    """Whether a variant gives the numbers of the product."""
    most = np.abs(expected[np.isfinite(expected)]).max(initial=0.0)
    differ = int(
        (~np.isclose(np.asarray(result), expected, rtol=0.0, atol=MAX_DIFFERENCE * most, equal_nan=True)).sum()
    )
    if differ:
        _log.warning(
            "%s: XLA computes %d of %d numbers otherwise as %r than as 'rows x weight', by more than %.3g; that "
            "variant is not used",
            product,
            differ,
            expected.size,
            variant,
            MAX_DIFFERENCE * most,
        )
    return not differ
