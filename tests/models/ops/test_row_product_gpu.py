"""The kernel for products of few rows equals the plain form and separates rows."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from packed_weights import FORMS, Form, weight_of

from ir_passes import Lane, LaneContract, Note, Shared, prove_isolation
from models import Devices
from models.ops.float32 import silu_gated
from models.ops.linear import joined_linear, linear
from models.ops.quantised_weight import QuantisedWeight
from models.ops.row_product_gpu import KERNEL, MAX_PLAIN_ROWS, row_product

SIZES = ((16, 32, 16), (32, 40, 48), (64, 8, 256), (48, 128, 96), (1, 64, 32), (5, 40, 48), (8, 64, 32))
"""Rows, outputs, inputs: outputs that blocks do not divide, fewer than a block, several blocks of rows, few rows."""


def operands(rows: int, outputs: int, inputs: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(outputs)
    x, weight = (rng.normal(size=(size, inputs)).astype(np.float32) for size in (rows, outputs))
    return jnp.asarray(x), jnp.asarray(weight, jnp.bfloat16)


def step(x: Any, weight: Any, kernels: str = "interpret") -> Any:
    return (linear(x, weight, Devices(platform="gpu", kernels=kernels)),)


run = jax.jit(step, static_argnames="kernels")


@pytest.mark.parametrize("sizes", [*SIZES, (7, 17, 112), (127, 3, 16), (1, 2, 48)])
def test_kernel_computes_the_product(sizes: tuple[int, int, int]) -> None:
    arguments = operands(*sizes)
    (result,), (expected,) = run(*arguments), run(*arguments, kernels="off")
    assert result.shape == expected.shape
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("sizes", SIZES)
def test_rows_keep_their_bits(sizes: tuple[int, int, int]) -> None:
    x, weight = operands(*sizes)
    (expected,) = run(x, weight)
    for bad in (0, 1):
        (result,) = run(x.at[bad::2].set(jnp.nan), weight)
        np.testing.assert_array_equal(result[1 - bad :: 2], expected[1 - bad :: 2])
    np.testing.assert_array_equal(run(x[:16], weight)[0], expected[:16])


@pytest.mark.parametrize("sizes", SIZES)
def test_kernel_is_proved_from_the_inside(sizes: tuple[int, int, int]) -> None:
    proof = prove_isolation(step, operands(*sizes), LaneContract((Lane(), Shared()), (Lane(),)))
    (note,) = [note for note in proof.notes if note.id == Note.KERNEL_READ.value]
    assert note.about.startswith(KERNEL.name)


def gated(x: Any, gate: Any, up: Any, kernels: str = "interpret") -> Any:
    devices = Devices(platform="gpu", kernels=kernels)
    return (joined_linear(x, (gate, up), devices=devices, joined=silu_gated, dtype=gate.dtype),)


def test_gate_and_up_are_one_kernel() -> None:
    """One kernel with the next product's rounding is proved with its activation."""
    x, gate = operands(32, 40, 48)
    up = jnp.flip(gate, axis=0)
    (result,), (expected,) = (
        jax.jit(gated, static_argnames="kernels")(x, gate, up, how) for how in ("interpret", "off")
    )
    assert result.dtype == jnp.bfloat16, "no operation turns it back"
    rounded, result = (array.astype(jnp.bfloat16).astype(jnp.float32) for array in (expected, result))
    np.testing.assert_allclose(result, rounded, rtol=8e-3, atol=1e-5)
    proof = prove_isolation(gated, (x, gate, up), LaneContract((Lane(), Shared(), Shared()), (Lane(),)))
    assert [note.id for note in proof.notes].count(Note.KERNEL_READ.value) == 1


@pytest.mark.slow
@pytest.mark.parametrize("rows", [(1, 1), (3, 1), (20, 5)], ids=str)
def test_two_products_with_vectors_are_one_kernel_of_two_results(rows: tuple[int, int]) -> None:
    """The gates of a Gated DeltaNet in two tiles of outputs, the second one cut."""
    rng = np.random.default_rng(1)
    x = jnp.asarray(rng.normal(size=(*rows, 48)), jnp.float32)
    weights = [jnp.asarray(rng.normal(size=(24, 48)), jnp.bfloat16) for _ in range(2)]
    vectors = [jnp.asarray(rng.normal(size=24), jnp.float32) for _ in range(2)]

    def gates(b: Any, a: Any, rate: Any, bias: Any) -> Any:
        return jax.nn.sigmoid(b), -jnp.exp(rate) * jax.nn.softplus(a + bias)

    def run_joined(x: Any, weights: Any, vectors: Any, kernels: str = "interpret") -> Any:
        devices = Devices(platform="gpu", kernels=kernels)
        return joined_linear(x, weights, vectors, devices, joined=gates)

    results, expected = (
        jax.jit(run_joined, static_argnames="kernels")(x, weights, vectors, kernels=mode)
        for mode in ("interpret", "off")
    )
    for result, other in zip(results, expected, strict=True):
        assert result.shape == (*rows, 24)
        np.testing.assert_allclose(result, other, rtol=1e-5, atol=1e-5)
    contract = LaneContract((Lane(), Shared(), Shared()), (Lane(), Lane()))
    proof = prove_isolation(run_joined, (x, weights, vectors), contract)
    assert [note.id for note in proof.notes].count(Note.KERNEL_READ.value) == 1


def numbers(weight: QuantisedWeight) -> jax.Array:
    return jax.jit(QuantisedWeight.numbers)(weight)


def rows(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(sum(shape)).normal(size=shape), jnp.float32)


@pytest.mark.each_value
@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize(
    ("count", "outputs", "inputs", "groups", "scales"),
    [(1, 40, 768, 6, "bfloat16"), (80, 17, 160, 10, "float16"), (3, 9, 64, 1, "float32")],
)
def test_packed_weights_have_the_bits_of_their_numbers(
    count: int, outputs: int, inputs: int, groups: int, scales: str, form: Form
) -> None:
    """Groups of one, several or part of a turn; outputs with partial tiles."""
    weight, x = weight_of((outputs, inputs), groups, form, scales=scales), rows(count, inputs)
    (result,) = jax.jit(step)(x, weight)
    expected = jax.jit(lambda x, weight: row_product(x, [weight.numbers()], interpret=True))(x, weight)
    assert result.shape == (count, outputs)
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("form", [FORMS[0], FORMS[3]], ids=str)
def test_groups_that_tiles_do_not_hold(form: Form) -> None:
    """A group of 48 takes three turns of 16; plain weights sum in another order."""
    weight, x = weight_of((40, 192), 4, form), rows(3, 192)
    (result,), (expected,) = jax.jit(step)(x, weight), run(x, numbers(weight), kernels="off")
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5 * float(jnp.abs(expected).max()))


LANES = ((3, 5), (20, 5), (3, 70), (2, 300), (1, 200))
"""Lanes and tokens: in one tile, several lanes in a tile, lanes in their own tiles, some of them in several."""


@pytest.mark.parametrize("lanes", LANES, ids=str)
def test_prompts_of_packed_weights(lanes: tuple[int, int]) -> None:
    """Rows have equal numbers in any batch place, and NaN stays in its lane."""
    weight, x = weight_of((40, 64), 2, ("int4", False, True)), rows(*lanes, 64)
    (result,) = jax.jit(step)(x, weight)
    expected = np.asarray(run(x, numbers(weight), kernels="off")[0])
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())
    (disturbed,) = jax.jit(step)(x.at[1::2].set(jnp.nan), weight)
    np.testing.assert_array_equal(disturbed[::2], result[::2])
    assert np.isnan(disturbed[1::2]).all()


@pytest.mark.parametrize("lanes", LANES, ids=str)
def test_prompts_of_packed_weights_are_proved(lanes: tuple[int, int]) -> None:
    """Tiles shared by lanes are proved; no tile mixes lanes."""
    weight = weight_of((40, 64), 2, ("int4", False, True))
    proof = prove_isolation(step, (rows(*lanes, 64), weight), LaneContract((Lane(), Shared()), (Lane(),)))
    assert [note.about.startswith(KERNEL.name) for note in proof.notes if note.id == Note.KERNEL_READ.value] == [True]


@pytest.mark.slow
def test_gate_and_up_of_packed_weights_are_one_kernel() -> None:
    """Two quantisation formats, and one plain weight."""
    x, up = rows(32, 64), weight_of((40, 64), 4, ("e2m1", True, False))
    for gate in (weight_of((40, 64), 1, ("int8", False, False)), numbers(up)):
        expected = silu_gated(*(row_product(x, [item], interpret=True) for item in (gate, up)))
        assert str(jax.make_jaxpr(gated)(x, gate, up)).count("pallas_call") == 1
        np.testing.assert_array_equal(jax.jit(gated)(x, gate, up)[0], expected.astype(jnp.bfloat16).astype(jnp.float32))


@pytest.mark.parametrize(("weight", "supported"), [
    (weight_of((16, 64), 4, ("int4", False, True)), True),
    (weight_of((16, 64), 8, ("int4", False, True)), True),
    (weight_of((16, 160), 4, ("int8", False, False)), False),
    (weight_of((16, 64), 4, ("int8", False, False), "float32"), False),
    (weight_of((16, 72), 1, ("int8", False, False)), False),
], ids=["groups of 16", "groups of 8", "groups of 40", "float32", "rows of 72"])  # fmt: skip
def test_which_packed_weights_are_taken(weight: QuantisedWeight, supported: bool) -> None:
    assert KERNEL.supports(jnp.zeros((1, weight.inputs)), weight) == supported


@pytest.mark.parametrize(
    ("shape", "dtype"), [((MAX_PLAIN_ROWS + 16, 16), "bfloat16"), ((16, 24), "bfloat16"), ((16, 16), "float32")]
)
def test_other_operands_are_left_to_xla(shape: tuple[int, int], dtype: str) -> None:
    assert not KERNEL.supports(jnp.zeros(shape), jnp.zeros((16, shape[1]), dtype))
