"""The forms of a product and how long each takes."""

import dataclasses
import gc
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hybridlm import _product_times
from hybridlm._product_times import CONVERTED, can_fuse, compiled_forms, forms_of, seconds_of
from hybridlm._words import words_of
from models.linear import MANY_ROWS, PAIRS, WORDS, Form, Product

PRODUCT = Product(4, 24, 16, "bfloat16")


def test_words_are_a_form_of_few_rows_and_a_number_of_inputs_that_can_be_summed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    none, alone, both = WORDS[:0], WORDS[:1], WORDS
    usual = ("rows x weight", "weight x rows", *CONVERTED, PAIRS)
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
        assert forms_of(product) == (*usual, *can), product
    assert forms_of(dataclasses.replace(PRODUCT, rows=MANY_ROWS)) == ("rows x weight", "rows x converted weight")
    for other in (dataclasses.replace(PRODUCT, rows=9), dataclasses.replace(PRODUCT, outputs=25)):
        assert forms_of(other) == usual[:-1], other
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert forms_of(PRODUCT) == ("rows x weight", "weight x rows")


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 3, 8, MANY_ROWS])
def test_the_time_of_a_form_is_the_least_of_several_over_weights_that_no_cache_holds(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    product, weights = Product(rows, 24, 512, "bfloat16"), [jnp.ones((24, 512), jnp.bfloat16)] * 3
    programs = compiled_forms(product)
    assert set(programs) == set(forms_of(product))
    called: list[tuple[Form, int]] = []

    def counted(form: Form) -> Any:
        def run(rows: jax.Array, one: jax.Array) -> jax.Array:
            called.append((form, one.unsafe_buffer_pointer()))
            return programs[form](rows, one)

        return run

    monkeypatch.setattr(_product_times, "READ", 5 * weights[0].nbytes)
    seconds = seconds_of(product, weights, {form: counted(form) for form in programs})
    assert set(seconds) == set(programs) and all(0 < one < 10 for one in seconds.values())
    for form in programs:
        expected = _product_times.MANY_ROUNDS if rows == MANY_ROWS else 5 * _product_times.ROUNDS
        assert len([one for one in called if one[0] == form]) == 1 + expected  # one to compare the numbers
    monkeypatch.setattr(_product_times, "words_of", lambda weight: None)
    assert set(seconds_of(product, weights, programs)) == set(forms_of(product)) - set(WORDS)


def test_a_form_with_other_numbers_is_left_out_and_named(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_product_times, "READ", 1)
    rng = np.random.default_rng(0)
    product, weight = Product(4, 24, 512, "bfloat16"), jnp.asarray(rng.normal(size=(24, 512)), jnp.bfloat16)
    programs, wrong = compiled_forms(product), "converted weight x rows"
    assert set(seconds_of(product, [weight], programs)) == set(programs) and not caplog.text
    for broken in (lambda x, w: programs[wrong](x, w).at[3, 5].add(1.0), lambda x, w: programs[wrong](x, w) * jnp.nan):
        caplog.clear()
        found = seconds_of(product, [weight], programs | {wrong: broken})  # type: ignore[dict-item]  # no Compiled
        assert set(found) == set(programs) - {wrong}
        assert repr(wrong) in caplog.text and str(product) in caplog.text and "is not used" in caplog.text


def test_an_xla_without_the_option_fuses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert can_fuse()
    _product_times._knows_the_options.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(_product_times, "FUSED", {"xla_no_such_option": "1"})
        assert not can_fuse() and forms_of(PRODUCT) == ("rows x weight", "weight x rows", PAIRS)
    _product_times._knows_the_options.cache_clear()
    assert can_fuse()


def test_words_are_the_bytes_of_a_parameter_in_their_place(monkeypatch: pytest.MonkeyPatch) -> None:
    param = jnp.arange(24.0, dtype=jnp.bfloat16).reshape(4, 6) + 0
    words = words_of(param)
    assert words is not None and words.unsafe_buffer_pointer() == param.unsafe_buffer_pointer()
    expected = np.asarray(param).view(np.uint32).copy()
    del param
    gc.collect()
    assert words.shape == (4, 3) and (np.asarray(words) == expected).all()
    assert expected[0, 0] == 0x3F80_0000  # 0.0 in the low half, 1.0 in the high one
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert words_of(jnp.zeros((4, 6), jnp.bfloat16)) is None
