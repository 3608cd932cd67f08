"""All forms of the expert product agree, lose no row, and separate rows bitwise."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ir_passes.jaxpr import ir
from models import Devices
from models.ops.expert_dot import (
    BLOCK,
    MAX_SORTED_ROWS,
    MIN_PASS_ROWS,
    block_form,
    expert_dot,
    gather_form,
    grouped_form,
    ragged_form,
    sorted_gather_form,
)

FORMS = {
    "gather": gather_form,
    "sorted": sorted_gather_form,
    "block": block_form,
    "grouped": grouped_form,
    "ragged": ragged_form,
}
EXPERTS, WIDTH, OUT = 7, 12, 9


def rows(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, WIDTH)).astype(np.float32), rng.integers(0, EXPERTS, count).astype(np.int32)


def weights(dtype=jnp.float32) -> jax.Array:
    return jnp.asarray(np.random.default_rng(9).normal(size=(EXPERTS, OUT, WIDTH)), dtype)


@pytest.mark.each_value
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize(
    "count", [1, *(pytest.param(n, marks=pytest.mark.long) for n in (2, BLOCK, 5 * BLOCK - 1)), BLOCK + 1, 200]
)
def test_every_row_meets_its_own_expert(form, count: int) -> None:
    x, expert = rows(count, count)
    w = weights()
    want = np.einsum("roi,ri->ro", np.asarray(w, np.float64)[expert], x.astype(np.float64))
    np.testing.assert_allclose(jax.jit(form)(x, w, expert), want, atol=1e-5)


@pytest.mark.each_value
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("chosen", [0, EXPERTS - 1])
def test_all_rows_may_choose_one_expert(form, chosen: int) -> None:
    x, _ = rows(3 * BLOCK)
    expert = np.full(3 * BLOCK, chosen, np.int32)
    np.testing.assert_allclose(jax.jit(form)(x, weights(), expert), x @ np.asarray(weights())[chosen].T, atol=1e-5)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_narrow_weights_meet_rounded_rows_and_accumulate_in_float32(form) -> None:
    """A row has the same result in every form, as in `linear`."""
    x, expert = rows(40)
    got = jax.jit(form)(x, weights(jnp.bfloat16), expert)
    rounded = np.asarray(jnp.asarray(x, jnp.bfloat16).astype(jnp.float32))
    want = np.einsum("roi,ri->ro", np.asarray(weights(jnp.bfloat16).astype(jnp.float32), np.float64)[expert], rounded)
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, want, atol=2e-5)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_gradients_match_the_equation(form) -> None:
    """Gradients of rows and matrices; an expert without rows has zero."""
    x, expert = rows(2 * BLOCK + 3)
    expert[expert == 2] = 3
    w, upward = weights(), np.random.default_rng(3).normal(size=(len(x), OUT)).astype(np.float32)
    gradients = jax.jit(jax.grad(lambda x, w, expert: jnp.sum(form(x, w, expert) * upward), argnums=(0, 1)))
    of_x, of_w = gradients(x, w, expert)
    exact = np.asarray(w, np.float64)
    np.testing.assert_allclose(of_x, np.einsum("roi,ro->ri", exact[expert], upward), atol=1e-5)
    want = np.zeros_like(exact)
    np.add.at(want, expert, np.einsum("ro,ri->roi", upward.astype(np.float64), x))
    np.testing.assert_allclose(of_w, want, atol=1e-5)
    assert (np.asarray(of_w)[2] == 0).all()


@pytest.mark.parametrize("crowded", [3, EXPERTS], ids=["one expert", "elsewhere"])
def test_gradients_over_several_passes_and_absent_experts(crowded: int) -> None:
    """More rows than a pass takes, and rows without an expert or gradient."""
    count = 8 * MIN_PASS_ROWS
    x, expert = rows(count)
    expert = np.where(np.arange(count) % 4 == 0, expert, crowded).astype(np.int32)
    expert[5:9] = EXPERTS
    w, upward = weights(), np.random.default_rng(3).normal(size=(count, OUT)).astype(np.float32)
    run = lambda x, w: jnp.sum(expert_dot(x, w, expert, devices=Devices(platform="gpu")) * upward)
    of_x, of_w = jax.jit(jax.grad(run, argnums=(0, 1)))(x, w)
    present, exact = expert < EXPERTS, np.asarray(w, np.float64)
    np.testing.assert_allclose(
        of_x[present], np.einsum("roi,ro->ri", exact[expert[present]], upward[present]), atol=1e-5
    )
    assert (np.asarray(of_x)[~present] == 0).all()
    want = np.zeros_like(exact)
    np.add.at(want, expert[present], np.einsum("ro,ri->roi", upward[present].astype(np.float64), x[present]))
    np.testing.assert_allclose(of_w, want, atol=1e-4)
    program = jax.make_jaxpr(jax.grad(run, argnums=(0, 1)))(x, w)
    assert "ragged_dot_general" not in {eqn.primitive.name for eqn in ir.all_eqns(program.jaxpr)}


@pytest.mark.each_value
@pytest.mark.parametrize(
    "form", [gather_form, sorted_gather_form, block_form, grouped_form, expert_dot], ids=lambda form: form.__name__
)
@pytest.mark.parametrize("count", [24, 96])
def test_a_row_never_depends_on_its_neighbours(form, count: int) -> None:
    run = jax.jit(form)
    x, expert = rows(count)
    base = np.asarray(run(x, weights(), expert))
    rng = np.random.default_rng(1)
    for trial in range(6):
        changed = rng.random(count) < 0.7
        changed[trial] = False
        other_x, other_expert = rows(count, 100 + trial)
        other_x[:: 1 + trial] = np.nan if trial % 2 else np.inf
        new_x = np.where(changed[:, None], other_x, x)
        new_expert = np.where(changed, other_expert, expert).astype(np.int32)
        got = np.asarray(run(new_x, weights(), new_expert))
        assert got[~changed].tobytes() == base[~changed].tobytes()
        assert (got[changed] != base[changed]).any()


@pytest.mark.slow
@pytest.mark.parametrize("count", [24, 96])
def test_rows_of_experts_that_are_elsewhere_are_zero(count: int) -> None:
    """Other rows keep their bits; no row meets a foreign matrix."""
    x, expert = rows(count)
    offset = np.arange(count) % 3 == 1
    complete = np.asarray(expert_dot(x, weights(), expert))
    marked, local_rows = np.where(offset, EXPERTS, expert).astype(np.int32), ~offset
    x[offset] = np.nan
    result = np.asarray(expert_dot(x, weights(), marked))
    assert result[local_rows].tobytes() == complete[local_rows].tobytes()
    assert result[offset].tobytes() == np.zeros_like(result[offset]).tobytes()
    for platform in ("gpu", "tpu"):
        devices = Devices(platform=platform)
        other = np.asarray(expert_dot(np.where(offset[:, None], 0, x), weights(), marked, devices=devices))
        np.testing.assert_allclose(other[local_rows], complete[local_rows], atol=1e-5)
        assert (other[offset] == 0).all()


def primitives(platform: str, count: int) -> set[str]:
    x, expert = rows(count)
    product = partial(expert_dot, devices=Devices(platform=platform))
    program = jax.make_jaxpr(product)(x, weights(jnp.bfloat16), expert)
    return {eqn.primitive.name for eqn in ir.all_eqns(program.jaxpr)}


@pytest.mark.parametrize("count", [1, MAX_SORTED_ROWS * EXPERTS, MAX_SORTED_ROWS * EXPERTS + 1])
def test_only_tpus_have_a_ragged_product(count: int) -> None:
    """XLA:GPU expands rows to all experts, so few rows read their own matrix."""
    result = {platform: primitives(platform, count) for platform in ("cpu", "gpu", "tpu")}
    assert {name for name, item in result.items() if "ragged_dot_general" in item} == {"tpu"}
    assert ("while" in result["gpu"]) == (count > MAX_SORTED_ROWS * EXPERTS)


def test_rows_beyond_a_pass_keep_their_bits() -> None:
    """Rows beyond a pass equal the same rows in one pass."""
    count = 8 * MIN_PASS_ROWS
    x, expert = rows(count)
    spread = np.asarray(jax.jit(grouped_form)(x, weights(), expert))
    full = np.where(np.arange(count) % 4 == 0, expert, 3).astype(np.int32)
    crowded = np.asarray(jax.jit(grouped_form)(x, weights(), full))
    equal = full == expert
    assert np.bincount(full).max() > 64 and equal.sum() > MIN_PASS_ROWS
    assert crowded[equal].tobytes() == spread[equal].tobytes()
