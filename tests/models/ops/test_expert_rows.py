"""The kernel for the grouped expert product: each row meets its own expert."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from packed_weights import FORMS, Form, weight_of

from models import Devices
from models.ops.expert_dot import expert_dot
from models.ops.expert_rows import KERNEL, MAX_ROWS
from models.ops.float32 import silu_gated
from models.ops.quantised_experts import experts_product

EXPERTS, WIDTH, OUT = 5, 48, 80
run = jax.jit(lambda *args: expert_dot(*args, devices=Devices(kernels="interpret")))


def operands(count: int, dtype: Any = jnp.float32, chosen: int | None = None) -> tuple[Any, ...]:
    """Random rows, some of them of an expert of another device."""
    rng = np.random.default_rng(count)
    expert = rng.integers(0, EXPERTS + 1, count) if chosen is None else np.full(count, chosen)
    x = jnp.asarray(rng.normal(size=(count, WIDTH)).astype(np.float32))
    return x, jnp.asarray(rng.normal(size=(EXPERTS, OUT, WIDTH)), dtype), jnp.asarray(expert.astype(np.int32))


@pytest.mark.parametrize(
    ("count", "dtype", "chosen"),
    [
        (1, jnp.float32, 3),
        (17, jnp.bfloat16, None),
        (18, jnp.float16, None),
        (5 * MAX_ROWS + 3, jnp.float32, None),
        (40, jnp.float32, EXPERTS),
    ],
)
def test_every_row_meets_its_own_expert(count: int, dtype: Any, chosen: int | None) -> None:
    x, weight, expert = operands(count, dtype, chosen)
    matrices = np.concatenate([np.asarray(weight, np.float64), np.zeros((1, OUT, WIDTH))])
    rounded = np.asarray(x.astype(dtype), np.float64)
    want = np.einsum("roi,ri->ro", matrices[np.asarray(expert)], rounded)
    np.testing.assert_allclose(run(x, weight, expert), want, atol=2e-5)


@pytest.mark.parametrize(("count", "chosen"), [
    (1, [EXPERTS]), (1, [EXPERTS - 1]), (7, [0, EXPERTS - 1]), (131, [EXPERTS, 0, EXPERTS - 1]), (67, [2]),
])  # fmt: skip
def test_experts_without_rows(count: int, chosen: list[int]) -> None:
    """Rows of no, the first and the last expert in turn; matrices of other experts are NaN."""
    x, weight, _ = operands(count)
    expert = np.resize(np.array(chosen, np.int32), count)
    matrices = np.concatenate([np.asarray(weight, np.float64), np.zeros((1, OUT, WIDTH))])
    absent = np.setdiff1d(np.arange(EXPERTS), chosen)
    result = run(x, weight.at[absent].set(jnp.nan), jnp.asarray(expert))
    np.testing.assert_allclose(result, np.einsum("roi,ri->ro", matrices[expert], x), atol=2e-5)


def test_rows_keep_their_bits() -> None:
    """NaN in other rows or another expert's matrix reaches no row."""
    x, weight, expert = operands(60)
    expected = np.asarray(run(x, weight, expert))
    result = np.asarray(run(x.at[::2].set(jnp.nan), weight, expert))
    np.testing.assert_array_equal(result[1::2], expected[1::2])
    result = np.asarray(run(x, weight.at[2].set(jnp.nan), expert))
    other_lanes = np.asarray(expert) != 2
    np.testing.assert_array_equal(result[other_lanes], expected[other_lanes])
    turned = np.asarray(run(x[::-1], weight, expert[::-1]))
    np.testing.assert_array_equal(turned[::-1], expected)


@pytest.mark.slow
@pytest.mark.parametrize(("form", "groups", "dtype"), [
    *((form, 6, "bfloat16") for form in FORMS), (FORMS[0], 1, "float32"), (FORMS[-1], 3, "float32"),
], ids=str)  # fmt: skip
def test_packed_experts_have_the_bits_of_their_numbers(form: Form, groups: int, dtype: str) -> None:
    """Rows of absent experts are zero; NaN in other rows stays there."""
    weight, devices = weight_of((EXPERTS, OUT, 96), groups, form, dtype), Devices(platform="gpu", kernels="interpret")
    expert = operands(37)[2]
    x = jnp.asarray(np.random.default_rng(1).normal(size=(37, 96)), jnp.float32)
    product = jax.jit(lambda x, weight: experts_product(x, weight, expert, devices))
    result = np.asarray(product(x, weight))
    np.testing.assert_array_equal(result, run(x, jax.jit(type(weight).numbers)(weight), expert))
    assert (result[np.asarray(expert) == EXPERTS] == 0).all()
    np.testing.assert_array_equal(product(x.at[::2].set(jnp.nan), weight)[1::2], result[1::2])


@pytest.mark.slow
@pytest.mark.each_value
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(("count", "dtype"), [(3, jnp.float32), (40, jnp.bfloat16), (400, jnp.bfloat16)])
def test_rows_with_several_experts_are_read_where_they_lie(count: int, dtype: Any, gated: bool) -> None:
    """Compare bits with repeated rows and SwiGLU of both halves; 400 rows are rounded first."""
    choices, out = 3, 2 * OUT if gated else OUT
    rng = np.random.default_rng(count)
    x = jnp.asarray(rng.normal(size=(count, WIDTH)), jnp.float32)
    weight = jnp.asarray(rng.normal(size=(EXPERTS, out, WIDTH)), dtype)
    expert = jnp.asarray(rng.integers(0, EXPERTS + 1, (count, choices)), jnp.int32)
    run_gated = lambda *args: experts_product(*args, devices=Devices(kernels="interpret"), gated=gated)
    result = jax.jit(run_gated)(x, weight, expert)
    product = run(jnp.repeat(x, choices, axis=0), weight, expert.reshape(-1))
    expected = silu_gated(*jnp.split(product, 2, -1)) if gated else product
    shape = count, choices, OUT
    if gated:
        np.testing.assert_allclose(result, expected.reshape(shape), rtol=1e-6, atol=1e-6)
    else:
        np.testing.assert_array_equal(result, expected.reshape(shape))
    plain = experts_product(x, weight, jnp.minimum(expert, EXPERTS - 1), gated=gated)
    real = (expert < EXPERTS)[:, :, None]
    np.testing.assert_allclose(result, jnp.where(real, plain, 0.0), rtol=2e-5, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_packed_experts_are_gated_in_the_kernel(form: Form) -> None:
    weight, devices = (
        weight_of((EXPERTS, 2 * OUT, 96), 6, form, "bfloat16"),
        Devices(platform="gpu", kernels="interpret"),
    )
    rng = np.random.default_rng(1)
    expert = jnp.asarray(rng.integers(0, EXPERTS, (9, 2)), jnp.int32)
    x = jnp.asarray(rng.normal(size=(9, 96)), jnp.float32)
    result = jax.jit(lambda *args: experts_product(*args, devices=devices, gated=True))(x, weight, expert)
    product = jax.jit(lambda *args: experts_product(*args, devices=devices))(x, weight, expert)
    np.testing.assert_allclose(result, silu_gated(*jnp.split(product, 2, -1)), rtol=1e-6)


def test_groups_of_experts_that_tiles_do_not_hold() -> None:
    assert not KERNEL.supports(weight_of((EXPERTS, OUT, 160), 4, FORMS[0])), "groups of 40"
    assert KERNEL.supports(weight_of((EXPERTS, OUT, 192), 4, FORMS[0])), "groups of 48"


@pytest.mark.parametrize("shape", [(EXPERTS, OUT, 24), (EXPERTS, 24, WIDTH)])
def test_other_sizes_are_left_to_the_plain_form(shape: tuple[int, ...]) -> None:
    assert not KERNEL.supports(jnp.zeros(shape)) and KERNEL.supports(jnp.zeros((EXPERTS, OUT, WIDTH)))
