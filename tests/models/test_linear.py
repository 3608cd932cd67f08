"""The row-wise matrix product."""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hybridlm._product_times import CONVERTED, FUSED
from ir_passes import Lane, LaneContract, Shared, compile_step
from models.linear import (
    MOST_PARTIAL,
    PAIRS,
    SHARED_TERMS,
    VECTOR,
    WORDS,
    Form,
    Product,
    groups_of_terms,
    linear,
    multiply,
    multiply_words,
    product_forms,
)

pytestmark = pytest.mark.slow

run = jax.jit(linear)


def in_form(form: Form, x, weight):
    """`linear` in a form, whatever is usual; traced anew."""
    words = np.asarray(weight).view(np.uint32) if form in WORDS else np.zeros(0, np.uint32)

    def formed(x, weight, words):
        with product_forms(
            {Product(len(x), weight.shape[0], weight.shape[1], str(weight.dtype)): form}, [(weight, words)]
        ):
            return linear(x, weight)

    options = dict(FUSED) if form in CONVERTED else None
    return jax.jit(formed).lower(x, weight, words).compile(compiler_options=options)(x, weight, words)


@pytest.mark.parametrize("shape", [(1, 1), (2, 1), (3, 4)])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_accumulates_in_float32_whatever_the_rows(shape: tuple[int, int], dtype) -> None:
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(7, 300)).astype(dtype)
    x = rng.normal(size=(*shape, 300)).astype(dtype).astype(np.float32)
    got = run(x, weight)
    want = x.astype(np.float64) @ weight.astype(np.float64).T
    assert got.shape == (*shape, 7) and got.dtype == jnp.float32
    np.testing.assert_allclose(got, want, atol=1e-4)


def test_a_narrow_weight_is_not_widened_and_a_single_row_is_padded() -> None:
    weight = jnp.zeros((64, 32), jnp.bfloat16)
    text = jax.jit(linear).lower(jnp.zeros((1, 1, 32)), weight).as_text()
    assert "tensor<64x32xf32>" not in text
    assert "tensor<2x32xbf16>" in text


def test_few_rows_of_a_narrow_weight_are_multiplied_from_the_left() -> None:
    """Or XLA:CPU would read the weight more slowly, or convert it to float32 in every step."""
    weights = jnp.zeros((96, 64), jnp.bfloat16), jnp.zeros((64, 96), jnp.bfloat16)
    plain = jax.jit(
        lambda x, w: jax.lax.dot_general(x, w, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)
    )
    if "f32[96,64]" in (plain.lower(jnp.zeros((4, 64), jnp.bfloat16), weights[0]).compile().as_text() or ""):
        pytest.skip("this CPU multiplies in float32 whatever the form")
    for rows in (1, 4, 32):
        hlo = jax.jit(lambda x, a, b: x + linear(jnp.tanh(linear(x, a)), b)).lower(jnp.zeros((rows, 64)), *weights)
        text = hlo.compile().as_text() or ""
        assert "f32[96,64]" not in text and "f32[64,96]" not in text
        products = [line for line in text.splitlines() if " dot(" in line]
        assert len(products) == 2 and all(f",{max(rows, 2)}]{{1,0}} dot(" in line for line in products), products


FORMS_BY_ROWS = [
    *((form, n, 48) for form in ("rows x weight", "weight x rows", *CONVERTED) for n in (1, 2, 5, 33, 64)),
    *((PAIRS, n, inputs) for n in (1, 3, 8) for inputs in (48, 50)),
    *(("words of weight", n, inputs) for n in (1, 2, 3, 4, 7) for inputs in (32, 96, 544, 2368, 3552)),
    *(("words for all rows", n, inputs) for n in (1, 2, 3, 4, 7) for inputs in (512, 768, 3584)),
]


@pytest.mark.parametrize(("form", "count", "inputs"), FORMS_BY_ROWS)
def test_every_form_computes_the_product_and_a_row_has_the_same_bits_at_every_place(
    form: Form, count: int, inputs: int
) -> None:
    rng = np.random.default_rng(count)
    outputs = 18 if form == PAIRS else 19
    weight, x = (rng.normal(size=(n, inputs)).astype(jnp.bfloat16) for n in (outputs, count))
    want = x.astype(np.float64) @ weight.astype(np.float64).T
    order = rng.permutation(count)
    y = np.asarray(in_form(form, x.astype(np.float32), weight))
    np.testing.assert_allclose(y, want, atol=1e-4)
    assert np.asarray(in_form(form, x[order].astype(np.float32), weight)).tobytes() == y[order].tobytes()


@pytest.mark.parametrize("form", [*WORDS, *CONVERTED, PAIRS])
def test_a_row_that_is_no_number_is_so_alone(form: Form) -> None:
    rng = np.random.default_rng(0)
    outputs = 18 if form == PAIRS else 19
    weight, x = rng.normal(size=(outputs, 512)).astype(jnp.bfloat16), rng.normal(size=(3, 512)).astype(np.float32)
    clean = np.asarray(in_form(form, x, weight))
    x[1, 5] = np.nan
    got = np.asarray(in_form(form, x, weight))
    assert np.isnan(got[1]).all() and got[[0, 2]].tobytes() == clean[[0, 2]].tobytes()


@pytest.mark.parametrize(
    ("form", "terms"), [*((WORDS[0], terms) for terms in (20, 48, 222)), (WORDS[1], 32), (WORDS[1], 48)]
)
def test_words_are_read_as_they_lie_and_not_written_again(form: Form, terms: int) -> None:
    """XLA takes slices of the words; a second array of the size of the weight would take longer than the product."""
    half, groups = VECTOR * terms, groups_of_terms(terms) if form == WORDS[0] else terms // SHARED_TERMS
    words, rows = jax.ShapeDtypeStruct((96, half), "uint32"), jax.ShapeDtypeStruct((2, 2 * half), "float32")
    text = multiply_words.lower(rows, words, form).compile().as_text() or ""
    assert f"u32[96,{half}]" in text
    made = re.findall(r"= \w+\[([\d,]+)\]\S* ([\w-]+)\(", text)
    sizes = [math.prod(map(int, dims.split(","))) for dims, name in made if name not in ("parameter", "bitcast")]
    assert sizes and max(sizes) < 96 * half
    # None of the partial sums is computed a second time for the sum of them.
    assert text.count(" multiply(") == 2 * terms // groups


@pytest.mark.parametrize("form", WORDS)
def test_the_words_of_many_outputs_are_summed_in_pieces(form: Form) -> None:
    """Lane by lane, as the compiler proves; the last piece begins in the one before it."""
    inputs, outputs, lanes = 512, 70_003, 3
    rng = np.random.default_rng(0)
    weight, rows = (rng.standard_normal((n, inputs), np.float32).astype(jnp.bfloat16) for n in (outputs, lanes))
    rows = rows.astype(np.float32)
    step = compile_step(
        lambda words, rows: (multiply_words(rows, words, form),),
        (jnp.asarray(weight.view(np.uint32)), jnp.asarray(rows)),
        LaneContract((Shared(), Lane()), (Lane(),)),
    )

    def run(rows: np.ndarray) -> np.ndarray:
        return np.asarray(step(jnp.asarray(weight.view(np.uint32)), jnp.asarray(rows))[0])

    traced = str(jax.make_jaxpr(multiply_words, static_argnums=2)(rows, weight.view(np.uint32), form))
    assert traced.count("scan[") + traced.count("while[") == 1
    usage = step.compiled.memory_analysis()
    assert usage is not None and usage.temp_size_in_bytes < 2 * MOST_PARTIAL
    y = run(rows)
    np.testing.assert_allclose(y, rows.astype(np.float64) @ weight.astype(np.float64).T, atol=1e-4)
    assert run(rows[[2, 0, 1]]).tobytes() == y[[2, 0, 1]].tobytes()
    rows[1] = np.nan
    poisoned = run(rows)
    assert np.isnan(poisoned[1]).all() and poisoned[[0, 2]].tobytes() == y[[0, 2]].tobytes()


@pytest.mark.parametrize("lanes", [1, 3])
def test_lanes_stay_apart_beside_a_weight_in_pairs_and_no_second_one_is_written(lanes: int) -> None:
    rng = np.random.default_rng(0)
    weight, rows = (rng.normal(size=(n, 48)).astype(jnp.bfloat16) for n in (256, lanes))
    step = compile_step(
        lambda weight, rows: (multiply(rows, weight, PAIRS),),
        (jnp.asarray(weight), jnp.asarray(rows.astype(np.float32))),
        LaneContract((Shared(), Lane()), (Lane(),)),
    )
    y = step(jnp.asarray(weight), jnp.asarray(rows.astype(np.float32)))[0]
    np.testing.assert_allclose(y, rows.astype(np.float64) @ weight.astype(np.float64).T, atol=1e-4)
    usage = step.compiled.memory_analysis()
    assert usage is not None and usage.temp_size_in_bytes < weight.nbytes


def test_an_odd_number_of_outputs_is_refused_in_pairs() -> None:
    with pytest.raises(TypeError, match="reshape"):
        multiply(jnp.ones((2, 16)), jnp.ones((19, 16), jnp.bfloat16), PAIRS)


def test_words_meet_rows_rounded_to_the_dtype_of_the_weight() -> None:
    rng = np.random.default_rng(0)
    weight, x = rng.normal(size=(19, 96)).astype(jnp.bfloat16), rng.normal(size=(3, 96)).astype(np.float32)
    got, rounded = (
        np.asarray(multiply_words(rows, weight.view(np.uint32)))
        for rows in (x, x.astype(jnp.bfloat16).astype(np.float32))
    )
    assert got.tobytes() == rounded.tobytes()


def test_a_product_has_the_form_that_is_chosen_for_it_and_others_their_usual_one() -> None:
    """The shape of the operand on the left tells; a choice ends with its `with`."""
    x, weight = jnp.zeros((1, 32)), jnp.zeros((64, 32), jnp.bfloat16)
    chosen: dict[Product, Form] = {
        Product(1, 64, 32, "bfloat16"): "rows x weight",
        Product(2, 64, 32, "bfloat16"): "words of weight",
        Product(40, 64, 32, "bfloat16"): "weight x rows",
        Product(3, 64, 32, "float16"): "rows x weight",
        Product(4, 32, 64, "bfloat16"): "rows x weight",
    }

    def left(count: int) -> tuple[int, ...]:
        jaxpr = jax.make_jaxpr(lambda x, weight: linear(x, weight))(jnp.zeros((count, 32)), weight)
        (product,) = (one for one in jaxpr.eqns if one.primitive.name == "dot_general")
        return product.invars[0].aval.shape

    usual = [left(count) for count in (1, 2, 3, 4, 32, 33, 40)]
    assert usual == [(64, 32)] * 5 + [(33, 32), (40, 32)]
    with product_forms(chosen):  # the words of no weight are given
        assert [left(count) for count in (1, 2, 3, 4, 32, 33, 40)] == [(2, 32), *[(64, 32)] * 4, (33, 32), (64, 32)]
    assert left(1) == (64, 32) and linear(x, weight).shape == (1, 64)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("outputs", [1, 2, 5, 33])
@pytest.mark.parametrize("count", [2, 3, 12, 28])
def test_a_row_has_the_same_bits_at_every_place(count: int, outputs: int, dtype) -> None:
    rng = np.random.default_rng(outputs)
    weight, x = (rng.normal(size=(n, 32)).astype(np.float32) for n in (outputs, count))
    weight = weight.astype(dtype)
    y = np.asarray(run(x, weight))
    for _ in range(4):
        order = rng.permutation(count)
        assert np.asarray(run(x[order], weight)).tobytes() == y[order].tobytes()
