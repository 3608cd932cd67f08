"""Products of a bfloat16 weight as packed 32-bit words."""

import gc
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hybridlm.cpu_tuning.packed_u32 import (
    MAX_PARTIAL_BYTES,
    SHARED_TERMS,
    VECTOR,
    groups_of_terms,
    multiply_packed,
    packed_u32,
)
from ir_passes import Lane, LaneContract, Shared, compile_step

pytestmark = pytest.mark.slow
SHARED = [pytest.param(False, id="by row"), pytest.param(True, id="for all rows")]


@pytest.mark.parametrize(
    ("shared", "count", "inputs"),
    [
        *((False, n, inputs) for n in (1, 2, 3, 4, 7) for inputs in (32, 96, 544, 2368, 3552)),
        *((True, n, inputs) for n in (1, 2, 3, 4, 7) for inputs in (512, 768, 3584)),
    ],
)
def test_packed_words_give_the_product_and_a_row_has_the_same_bits_at_every_place(
    shared: bool, count: int, inputs: int
) -> None:
    rng = np.random.default_rng(count)
    weight, x = (rng.normal(size=(n, inputs)).astype(jnp.bfloat16) for n in (19, count))
    want = x.astype(np.float64) @ weight.astype(np.float64).T
    order, words, rows = rng.permutation(count), weight.view(np.uint32), x.astype(np.float32)
    y = np.asarray(multiply_packed(rows, words, shared))
    np.testing.assert_allclose(y, want, atol=1e-4)
    assert np.asarray(multiply_packed(rows[order], words, shared)).tobytes() == y[order].tobytes()


@pytest.mark.parametrize("shared", SHARED)
def test_a_row_that_is_no_number_is_so_alone(shared: bool) -> None:
    rng = np.random.default_rng(0)
    words = rng.normal(size=(19, 512)).astype(jnp.bfloat16).view(np.uint32)
    x = rng.normal(size=(3, 512)).astype(np.float32)
    clean = np.asarray(multiply_packed(x, words, shared))
    x[1, 5] = np.nan
    got = np.asarray(multiply_packed(x, words, shared))
    assert np.isnan(got[1]).all() and got[[0, 2]].tobytes() == clean[[0, 2]].tobytes()


@pytest.mark.parametrize(("shared", "terms"), [(False, 20), (False, 48), (False, 222), (True, 32), (True, 48)])
def test_words_are_read_as_they_lie_and_not_written_again(shared: bool, terms: int) -> None:
    """XLA takes slices of the words; a second array of the size of the weight would take longer than the product."""
    half, groups = VECTOR * terms, terms // SHARED_TERMS if shared else groups_of_terms(terms)
    words, rows = jax.ShapeDtypeStruct((96, half), "uint32"), jax.ShapeDtypeStruct((2, 2 * half), "float32")
    text = multiply_packed.lower(rows, words, shared).compile().as_text() or ""
    assert f"u32[96,{half}]" in text
    made = re.findall(r"= \w+\[([\d,]+)\]\S* ([\w-]+)\(", text)
    sizes = [math.prod(map(int, dims.split(","))) for dims, name in made if name not in ("parameter", "bitcast")]
    assert sizes and max(sizes) < 96 * half
    # None of the partial sums is computed a second time for the sum of them.
    assert text.count(" multiply(") == 2 * terms // groups


@pytest.mark.parametrize("shared", SHARED)
def test_the_words_of_many_outputs_are_summed_in_pieces(shared: bool) -> None:
    """Lane by lane, as the compiler proves; the last piece begins in the one before it."""
    inputs, outputs, lanes = 512, 70_003, 3
    rng = np.random.default_rng(0)
    weight, rows = (rng.standard_normal((n, inputs), np.float32).astype(jnp.bfloat16) for n in (outputs, lanes))
    rows = rows.astype(np.float32)
    step = compile_step(
        lambda words, rows: (multiply_packed(rows, words, shared),),
        (jnp.asarray(weight.view(np.uint32)), jnp.asarray(rows)),
        LaneContract((Shared(), Lane()), (Lane(),)),
    )

    def run(rows: np.ndarray) -> np.ndarray:
        return np.asarray(step(jnp.asarray(weight.view(np.uint32)), jnp.asarray(rows))[0])

    traced = str(jax.make_jaxpr(multiply_packed, static_argnums=2)(rows, weight.view(np.uint32), shared))
    assert traced.count("scan[") + traced.count("while[") == 1
    usage = step.compiled.memory_analysis()
    assert usage is not None and usage.temp_size_in_bytes < 2 * MAX_PARTIAL_BYTES
    y = run(rows)
    np.testing.assert_allclose(y, rows.astype(np.float64) @ weight.astype(np.float64).T, atol=1e-4)
    assert run(rows[[2, 0, 1]]).tobytes() == y[[2, 0, 1]].tobytes()
    rows[1] = np.nan
    poisoned = run(rows)
    assert np.isnan(poisoned[1]).all() and poisoned[[0, 2]].tobytes() == y[[0, 2]].tobytes()


def test_words_meet_rows_rounded_to_the_dtype_of_the_weight() -> None:
    rng = np.random.default_rng(0)
    weight, x = rng.normal(size=(19, 96)).astype(jnp.bfloat16), rng.normal(size=(3, 96)).astype(np.float32)
    got, rounded = (
        np.asarray(multiply_packed(rows, weight.view(np.uint32)))
        for rows in (x, x.astype(jnp.bfloat16).astype(np.float32))
    )
    assert got.tobytes() == rounded.tobytes()


def test_words_are_the_bytes_of_a_parameter_in_their_place() -> None:
    param = jnp.arange(24.0, dtype=jnp.bfloat16).reshape(4, 6) + 0
    words = packed_u32(param)
    assert words is not None and words.unsafe_buffer_pointer() == param.unsafe_buffer_pointer()
    expected = np.asarray(param).view(np.uint32).copy()
    del param
    gc.collect()
    assert words.shape == (4, 3) and (np.asarray(words) == expected).all()
    assert expected[0, 0] == 0x3F80_0000  # 0.0 in the low half, 1.0 in the high one


def test_bytes_that_the_device_copies_are_not_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a device with a memory of its own."""
    put = jax.device_put
    monkeypatch.setattr(jax, "device_put", lambda x, may_alias: put(x.copy(), may_alias=may_alias))
    assert packed_u32(jnp.zeros((4, 6), jnp.bfloat16)) is None
