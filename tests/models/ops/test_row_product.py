"""The CPU kernel for rows x weight under XLA equals `dot` row by row."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from instruction_sets import instruction_sets
from jax.sharding import PartitionSpec

from ir_passes import IsolationError, Lane, LaneContract, Shared, prove_isolation
from models import Devices
from models.cpu_kernels import INSTRUCTIONS, library
from models.ops.kernels import fastest
from models.ops.linear import dot, linear
from models.ops.row_product import KERNEL, MAX_ROWS, MORE_ROWS, row_product, supports_rows

pytestmark = pytest.mark.cpu_kernels

HERE = Devices(kernels="auto")


def operands(rows: int, inputs: int, outputs: int, dtype: str) -> tuple[jax.Array, jax.Array]:
    rng = np.random.default_rng(rows * 1000 + inputs)
    x = rng.normal(size=(rows, inputs)).astype(np.float32)
    return jnp.asarray(x), jnp.asarray(rng.normal(size=(outputs, inputs)), dtype)


def test_library_is_there():
    actual = library()
    assert actual is not None, "no kernels: build them with `python -m models.cpu_kernels`"
    assert actual.instructions[0] == INSTRUCTIONS[0] and len(actual.content) == 64


@pytest.mark.slow
def test_the_first_call_loads_the_library():
    code = """if True:
        import jax.numpy as jnp
        from models.ops.row_product import row_product
        print(row_product(jnp.ones((1, 8)), jnp.ones((2, 8)), instructions="portable"))
    """
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert process.stdout.strip() == "[[8. 8.]]", process.stderr


def test_unknown_instructions_are_refused():
    x, weight = operands(1, 8, 2, "float32")
    with pytest.raises(ValueError, match="'sse'"):
        row_product(x, weight, instructions="sse")


@pytest.mark.each_value
@pytest.mark.parametrize("instructions", instruction_sets())
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_product_matches_float64(instructions: str, dtype: str):
    for rows, inputs, outputs in ((1, 768, 40), (5, 33, 17), (64, 129, 3)):
        x, weight = operands(rows, inputs, outputs, dtype)
        actual = jax.jit(row_product, static_argnames="instructions")(x, weight, instructions=instructions)
        rounded = np.asarray(x.astype(dtype), np.float64)
        wide = np.asarray(weight, np.float64)
        bound = 1e-6 * (np.abs(rounded) @ np.abs(wide).T)
        assert actual.dtype == jnp.float32
        assert (np.abs(np.asarray(actual, np.float64) - rounded @ wide.T) <= bound).all()


def manual_of_tiles(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Return TDPBF16PS as in Intel's manual, 32 numbers at a time, float32.

    The products at even places are added one after the other, and so are those at odd places; then both sums are added
    to the result. A product of two bfloat16 numbers and its sum with a float32 of a like size are exact in float64.
    """
    total = np.zeros((len(x), len(weight)), np.float32)
    for first in range(0, x.shape[1], 32):
        halves = np.zeros((2, *total.shape), np.float32)
        for place in range(first, min(first + 32, x.shape[1])):
            half = place % 2
            products = x[:, None, place].astype(np.float64) * weight[None, :, place].astype(np.float64)
            halves[half] = (halves[half] + products).astype(np.float32)
        total += halves[0] + halves[1]
    return total


@pytest.mark.skipif("amx" not in instruction_sets(), reason="a processor without AMX")
@pytest.mark.parametrize(("rows", "inputs"), [(1, 96), (17, 70)])
def test_bits_of_tiles_match_the_manual(rows: int, inputs: int):
    x, weight = operands(rows, inputs, 49, "bfloat16")
    actual = row_product(x, weight, instructions="amx")
    expected = manual_of_tiles(np.asarray(x.astype(jnp.bfloat16), np.float32), np.asarray(weight, np.float32))
    np.testing.assert_array_equal(np.asarray(actual), expected)


def test_linear_calls_the_kernel_where_it_is_chosen():
    def calls(rows: int, dtype: str, devices: Devices) -> bool:
        x, weight = operands(rows, 32, 16, dtype)
        return "ffi_call" in str(jax.make_jaxpr(lambda x, w: linear(x, w, devices))(x, weight))

    assert calls(1, "bfloat16", HERE) and calls(MAX_ROWS, "float32", HERE)
    assert calls(MAX_ROWS + 1, "bfloat16", HERE) == ((fastest(), "bfloat16") in MORE_ROWS)
    assert not calls(MAX_ROWS + 1, "float32", HERE) and not calls(1, "float16", HERE)
    for other in (Devices(), Devices(kernels="interpret"), Devices(platform="gpu", kernels="auto")):
        assert not calls(1, "bfloat16", other)


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
def test_the_limit_of_rows_depends_on_instructions_and_dtype(instructions: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("models.ops.row_product.fastest", lambda: instructions)
    for dtype in ("bfloat16", "float32"):
        more = {"avx512bf16": 128, "amx": 4096} if dtype == "bfloat16" else {}
        largest = more.get(instructions, MAX_ROWS)
        for rows in (0, 1, MAX_ROWS, MAX_ROWS + 1, 128, 129, 4096):
            accepted = 1 <= rows <= largest
            assert supports_rows(rows, dtype) == accepted, (rows, dtype)


@pytest.mark.parametrize("instructions", instruction_sets())
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_row_among_many_has_the_bits_that_it_has_alone(instructions: str, dtype: str):
    """More rows than tiles hold at a time; with 1100 inputs, threads prepare them."""
    for inputs, outputs, rows in ((96, 40, 65), (33, 17, 131), (1100, 35, 150)):
        x, weight = operands(rows, inputs, outputs, dtype)
        actual = np.asarray(row_product(x, weight, instructions=instructions))
        for row in (0, 63, 64, rows - 1):
            single = np.asarray(row_product(x[row : row + 1], weight, instructions=instructions))
            np.testing.assert_array_equal(actual[row : row + 1], single)
        other_lanes = jnp.full_like(x, jnp.nan).at[64].set(x[64])
        disturbed = np.asarray(row_product(other_lanes, weight, instructions=instructions))
        np.testing.assert_array_equal(disturbed[64], actual[64])
        assert np.isnan(np.delete(disturbed, 64, 0)).all()


@pytest.mark.parametrize("instructions", instruction_sets())
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_rows_of_zeros_give_zeros_and_change_no_other_row(instructions: str, dtype: str):
    """Zeros in whole or partial tiles and everywhere, as in padding and idle lanes."""
    x, weight = operands(150, 96, 40, dtype)
    weight = weight.at[3, 5].set(jnp.inf).at[4, 6].set(jnp.nan)
    expected = np.asarray(row_product(x, weight, instructions=instructions))
    place = np.arange(150)
    for real in (place < 100, place >= 64, place % 48 < 20, (place < 16) | (place > 140), place == 77, place < 0):
        result = np.asarray(row_product(jnp.where(real[:, None], x, 0.0), weight, instructions=instructions))
        np.testing.assert_array_equal(result[real], expected[real])
        assert not result[~real].any()


def test_derivatives_match_the_reference():
    x, weight = operands(3, 32, 16, "float32")
    loss = lambda product, x, weight: jnp.sum(jnp.tanh(product(x, weight)))
    actual = jax.grad(lambda x, w: loss(lambda x, w: linear(x, w, HERE), x, w), (0, 1))(x, weight)
    expected = jax.grad(lambda x, w: loss(dot, x, w), (0, 1))(x, weight)
    for item, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(item, other, rtol=1e-4, atol=1e-5)


def test_proof_believes_the_declaration_and_nothing_more():
    import hybridlm  # noqa: F401  # declares it

    x, weight = operands(4, 32, 16, "float32")
    contract = LaneContract(inputs=(Lane(), Shared()), outputs=Lane())
    proof = prove_isolation(lambda x, w: linear(x, w, HERE), (x, weight), contract)
    assert any(statement.about.startswith("row_product") for statement in proof.assumed), proof.assumed

    def undeclared(x, weight):
        result = jax.ShapeDtypeStruct((len(x), len(weight)), jnp.float32)
        return jax.ffi.ffi_call(KERNEL.name, result)(x, weight, instructions=np.int64(0))

    for refused in (undeclared, lambda x, w: linear(x[::-1], w, HERE), lambda x, w: linear(w[:4], x, HERE)):
        with pytest.raises(IsolationError):
            prove_isolation(refused, (x, weight), contract)


@pytest.mark.parametrize("columns", [False, True])
def test_devices_of_a_mesh_compute_their_own_rows_or_parts_of_sums(columns: bool):
    x, weight = operands(6, 32, 16, "bfloat16")
    single = np.asarray(jax.jit(lambda x, w: linear(x, w, HERE))(x, weight))
    mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    outputs = PartitionSpec("data"), PartitionSpec("model"), PartitionSpec("data", "model")
    inputs = PartitionSpec("data", "model"), PartitionSpec(None, "model"), PartitionSpec("data")
    *places, result = inputs if columns else outputs

    def product(x, w):
        y = linear(x, w, HERE)
        return jax.lax.psum(y, "model") if columns else y

    split = jax.shard_map(product, mesh=mesh, in_specs=tuple(places), out_specs=result)
    assert "ffi_call" in str(jax.make_jaxpr(split)(x, weight))
    actual = np.asarray(jax.jit(split)(x, weight))
    if columns:
        np.testing.assert_allclose(actual, single, rtol=1e-5, atol=1e-5)
    else:
        assert actual.tobytes() == single.tobytes()
    actual, expected = (
        jax.jit(jax.grad(lambda w, x=x, of=of: jnp.sum(jnp.tanh(of(x, w)))))(weight.astype(jnp.float32))
        for of in (split, dot)
    )
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


def test_rows_of_a_batch_have_the_same_bits():
    x, weight = operands(6, 32, 16, "bfloat16")
    single = np.asarray(jax.jit(lambda x, w: linear(x, w, HERE))(x, weight))
    batch = jax.jit(jax.vmap(lambda x: linear(x, weight, HERE)))(x[:, None])
    assert np.asarray(batch)[:, 0].tobytes() == single.tobytes()
