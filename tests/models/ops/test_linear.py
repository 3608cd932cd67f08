"""Linear projections: results, rounding and packed weights."""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.typing import DTypeLike

from hybridlm.families import SINGLE_DEVICE
from models import Devices
from models.ops.linear import LinearWeight, dot, linear

pytestmark = pytest.mark.slow

run = jax.jit(linear)


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


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_single_output_is_a_sum_on_gpus(dtype: DTypeLike) -> None:
    rng = np.random.default_rng(2)
    x, weight = rng.normal(size=(5, 2, 700)).astype(np.float32), jnp.asarray(rng.normal(size=(1, 700)), dtype)
    of_gpus = partial(linear, weight=weight, devices=Devices(platform="gpu"))
    assert "dot_general" not in str(jax.make_jaxpr(of_gpus)(x))
    np.testing.assert_allclose(jax.jit(of_gpus)(x), linear(jnp.asarray(x), weight), rtol=1e-5, atol=1e-4)


def test_few_rows_of_a_narrow_weight_are_multiplied_from_the_left() -> None:
    """Otherwise XLA:CPU reads the weight slowly or converts it in every step."""
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


@pytest.mark.each_value
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("outputs", [1, 2, 5, 19, 33])
@pytest.mark.parametrize("count", [1, 2, 3, 5, 12, 28, 33, 64])
def test_either_order_computes_the_product_and_a_row_has_the_same_bits_at_every_place(
    count: int, outputs: int, dtype: DTypeLike
) -> None:
    rng = np.random.default_rng(count)
    weight, x = (rng.normal(size=(n, 48)).astype(dtype) for n in (outputs, count))
    want = x.astype(np.float64) @ weight.astype(np.float64).T
    y = np.asarray(run(x.astype(np.float32), weight))
    np.testing.assert_allclose(y, want, atol=1e-4)
    for _ in range(4):
        order = rng.permutation(count)
        assert np.asarray(run(x[order].astype(np.float32), weight)).tobytes() == y[order].tobytes()


def test_the_operand_on_the_left_is_the_weight_for_few_rows() -> None:
    weight = jnp.zeros((64, 32), jnp.bfloat16)

    def left(count: int) -> tuple[int, ...]:
        jaxpr = jax.make_jaxpr(lambda x, weight: linear(x, weight))(jnp.zeros((count, 32)), weight)
        (product,) = (eqn for eqn in jaxpr.eqns if eqn.primitive.name == "dot_general")
        return product.invars[0].aval.shape

    assert [left(count) for count in (1, 2, 3, 32, 33, 40)] == [(64, 32)] * 4 + [(33, 32), (40, 32)]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Scaled(LinearWeight):
    """Codes with a scale for each output."""

    codes: jax.Array
    scale: jax.Array

    @property
    def shape(self) -> tuple[int, ...]:
        return self.codes.shape

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.scale.nbytes

    def multiply(self, x: jax.Array, devices: Devices = SINGLE_DEVICE) -> jax.Array:
        return dot(x, self.codes.astype(jnp.float32)) * self.scale[None]

    def take(self, ids: jax.Array) -> jax.Array:
        return self.codes[ids].astype(jnp.float32) * self.scale[ids][..., None]

    def astype(self, dtype: DTypeLike) -> jax.Array:
        return (self.codes.astype(jnp.float32) * self.scale[:, None]).astype(dtype)


def test_a_weight_that_knows_its_product_stands_in_the_place_of_an_array() -> None:
    """Such a weight works as a jit argument and as a layer parameter."""
    rng = np.random.default_rng(0)
    stored = Scaled(jnp.asarray(rng.integers(-9, 9, (6, 5)), jnp.int8), jnp.asarray(rng.normal(size=6), jnp.float32))
    plain, x = stored.astype(jnp.float32), jnp.asarray(rng.normal(size=(2, 3, 5)), jnp.float32)
    np.testing.assert_allclose(run(x, stored), run(x, plain), rtol=1e-5, atol=1e-5)
    graph, state = nnx.split(nnx.Dict(weight=nnx.Param(plain)))
    tree = jax.tree.structure(state)

    @jax.jit
    def step(params: tuple[jax.Array | Scaled], x: jax.Array) -> jax.Array:
        return linear(x, nnx.merge(graph, jax.tree.unflatten(tree, params))["weight"][...])

    np.testing.assert_array_equal(step((stored,), x), run(x, stored))
