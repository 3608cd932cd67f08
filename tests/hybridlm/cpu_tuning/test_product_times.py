"""The variants of a product and how long each takes."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hybridlm.cpu_tuning import product_times
from hybridlm.cpu_tuning.product_times import compiled_variants, seconds_of
from hybridlm.cpu_tuning.variants import INT8_HEAD, PACKED, Product, Variant

PRODUCT = Product(4, 24, 16, "bfloat16")


def test_packed_words_are_for_few_rows_and_a_number_of_inputs_that_can_be_summed() -> None:
    none, alone, both = PACKED[:0], PACKED[:1], PACKED
    for product, can in (
        (Product(1, 24, 512, "bfloat16"), alone),
        (Product(2, 24, 512, "bfloat16"), both),
        (Product(4, 24, 2304, "bfloat16"), both),
        (Product(5, 24, 512, "bfloat16"), none),
        (Product(1, 24, 480, "bfloat16"), none),
        (Product(1, 24, 528, "bfloat16"), none),
        (Product(1, 24, 2336, "bfloat16"), none),  # 146 terms, twice a prime
        (Product(4, 24, 2368, "bfloat16"), alone),  # 148 terms
        (Product(4, 24, 3584, "bfloat16"), both),
        (Product(1, 24, 16, "bfloat16"), none),
        (Product(1, 24, 512, "float16"), none),
    ):
        assert product.variants == ("rows x weight", "weight x rows", *can), product
    assert dataclasses.replace(PRODUCT, dtype="int8").variants == (INT8_HEAD,)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 3, 8])
def test_the_time_of_a_variant_is_the_least_of_several_over_weights_that_no_cache_holds(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    product, weights = Product(rows, 24, 512, "bfloat16"), [jnp.ones((24, 512), jnp.bfloat16)] * 3
    programs = compiled_variants(product)
    assert set(programs) == set(product.variants)
    called: list[tuple[Variant, int]] = []

    def counted(variant: Variant) -> Any:
        def run(rows: jax.Array, one: jax.Array) -> jax.Array:
            called.append((variant, one.unsafe_buffer_pointer()))
            return programs[variant](rows, one)

        return run

    monkeypatch.setattr(product_times, "READ_BYTES", 5 * weights[0].nbytes)
    seconds = seconds_of(product, weights, {variant: counted(variant) for variant in programs})
    assert set(seconds) == set(programs) and all(0 < one < 10 for one in seconds.values())
    for variant in programs:
        # one to compare the numbers
        assert len([one for one in called if one[0] == variant]) == 1 + 5 * product_times.ROUNDS
    monkeypatch.setattr(product_times, "packed_u32", lambda weight: None)
    assert set(seconds_of(product, weights, programs)) == set(product.variants) - set(PACKED)


def test_a_variant_with_other_numbers_is_left_out_and_named(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(product_times, "READ_BYTES", 1)
    rng = np.random.default_rng(0)
    product, weight = Product(4, 24, 512, "bfloat16"), jnp.asarray(rng.normal(size=(24, 512)), jnp.bfloat16)
    programs, wrong = compiled_variants(product), "packed, for all rows"
    assert set(seconds_of(product, [weight], programs)) == set(programs) and not caplog.text
    for broken in (lambda x, w: programs[wrong](x, w).at[3, 5].add(1.0), lambda x, w: programs[wrong](x, w) * jnp.nan):
        caplog.clear()
        found = seconds_of(product, [weight], programs | {wrong: broken})  # type: ignore[dict-item]  # no Compiled
        assert set(found) == set(programs) - {wrong}
        assert repr(wrong) in caplog.text and str(product) in caplog.text and "is not used" in caplog.text
