"""The fastest variant of each large matrix product on this machine, measured once and stored."""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp

from hybridlm.cpu_tuning.product_times import compiled_variants, seconds_of
from hybridlm.cpu_tuning.store import TimeStore
from hybridlm.cpu_tuning.variants import MAX_TUNED_ROWS, Product, Variant
from hybridlm.devices.machine import cores
from hybridlm.progress import counting_progress

MIN_ELEMENTS = 1 << 17
"""Minimum elements of a weight for its product to be measured."""
MIN_SHARE = 0.005
"""Minimum share of the bytes of all large weights for a shape to be measured."""
MIN_GAIN = 1.05
"""Minimum speed-up over the default variant."""


def large_products(params: Iterable[jax.Array], rows: Iterable[int]) -> dict[Product, list[jax.Array]]:
    """Return the products of a model that are worth measuring, with their weights.

    Args:
        params: its parameters; an embedding counts as the head that it may be.
        rows: row counts of the model's steps.
    """
    weights: dict[tuple[int, int, str], list[jax.Array]] = {}
    for one in params:
        if (
            isinstance(one, jax.Array)
            and one.ndim == 2
            and one.size >= MIN_ELEMENTS
            and one.dtype in (jnp.bfloat16, jnp.float16)
        ):
            weights.setdefault((one.shape[0], one.shape[1], str(one.dtype)), []).append(one)
    least = MIN_SHARE * sum(one.nbytes for same in weights.values() for one in same)
    return {
        Product(count, *shape): same
        for shape, same in weights.items()
        if sum(one.nbytes for one in same) >= least
        for count in sorted(set(rows))
        if count <= MAX_TUNED_ROWS
    }


def chosen_variants(
    products: Mapping[Product, Sequence[jax.Array]], store: TimeStore, progress: bool | None = None
) -> dict[Product, Variant]:
    """Return the fastest variants of products, by their stored times, or else measured and stored now.

    Args:
        products: with their weights.
        store: store of times.
        progress: show a bar if anything is measured; None shows one if standard error is a terminal.
    """
    times = {product: store.find(product) for product in products}
    missing = [product for product, found in times.items() if found is None]
    if missing:
        store.announce(f"{len(missing)} matrix products")
        with counting_progress(progress, "measuring products", len(missing)) as done:
            with ThreadPoolExecutor(cores()) as pool:
                programs = list(pool.map(compiled_variants, missing))
            for count, product in enumerate(missing):
                times[product] = measured = seconds_of(product, products[product], programs[count])
                store.keep(product, measured)
                done(count + 1, str(product))
    return {product: fastest(product, found) for product, found in times.items() if found is not None}


def fastest(product: Product, seconds: Mapping[Variant, float]) -> Variant:
    """Return the variant of minimum time, or the default if that is about as fast."""
    best, default = min(seconds, key=lambda variant: seconds[variant]), product.default
    return default if default in seconds and seconds[default] <= seconds[best] * MIN_GAIN else best


def describe_variants(variants: Mapping[Product, Variant]) -> str:
    """Describe the variants that differ from the default, as part of what the bits of results depend on."""
    return ", ".join(f"{one} as {form}" for one, form in sorted(variants.items()) if form != one.default) or "default"
