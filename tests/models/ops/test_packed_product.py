"""CPU kernels for packed weights give the row product's bits with unpacked weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from instruction_sets import instruction_sets
from jax.sharding import PartitionSpec
from packed_weights import FORMS, Form, weight_of

from ir_passes import IsolationError, Lane, LaneContract, Shared, prove_isolation
from models import Devices
from models.ops.kernels import fastest
from models.ops.linear import dot, linear
from models.ops.packed_product import KINDS, packed_expert_product, packed_product
from models.ops.quantised_codes import TWO_IN_A_BYTE, Codes
from models.ops.quantised_experts import experts_product
from models.ops.quantised_weight import QuantisedWeight
from models.ops.row_product import MAX_ROWS, MORE_ROWS, row_product

pytestmark = pytest.mark.cpu_kernels

HERE = Devices(kernels="auto")


def test_devices_of_a_mesh_multiply_their_own_parts() -> None:
    mesh = jax.make_mesh((2, 2), ("expert", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(4, 64)), jnp.float32)
    expert = jnp.asarray([0, 3, 1, 2], jnp.int32)
    weight = weight_of((4, 32, 64), 2, ("int4", False, True))
    place = PartitionSpec("expert", "model")

    def share(x: jax.Array, weight: QuantisedWeight, expert: jax.Array) -> jax.Array:
        present = expert - 2 * jax.lax.axis_index("expert")
        local = experts_product(x, weight, jnp.where((present >= 0) & (present < 2), present, 2), HERE)
        return jax.lax.psum(local, "expert")

    split = jax.shard_map(
        share, mesh=mesh, in_specs=(PartitionSpec(), place, PartitionSpec()), out_specs=PartitionSpec(None, "model")
    )
    assert "ffi_call" in str(jax.make_jaxpr(split)(x, weight, expert))
    result, expected = jax.jit(split)(x, weight, expert), experts_product(x, weight, expert, devices=HERE)
    assert np.asarray(result).tobytes() == np.asarray(expected).tobytes()


def product(x: jax.Array, weight: QuantisedWeight, instructions: str) -> np.ndarray:
    return np.asarray(packed_product(x, *weight.operands(), form=(weight.kind, weight.dtype, instructions)))


def rows(count: int, inputs: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(count).normal(size=(count, inputs)), jnp.float32)


@pytest.mark.slow
@pytest.mark.each_value
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("instructions", instruction_sets())
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_bits_of_the_unpacked_weight(form: Form, instructions: str, dtype: str) -> None:
    """Groups below a vector, whole rows, beyond a stack; partial tiles; 70 rows."""
    sizes = ((768, 6, 40, 1), (160, 10, 17, 5), (66, 3, 9, 64), (96, 1, 300, 70), (224, 7, 31, 2), (32800, 2050, 8, 1))
    for inputs, groups, outputs, count in sizes:
        weight = weight_of((outputs, inputs), groups, form, dtype, "float16" if count == 5 else "bfloat16")
        x = rows(count, inputs)
        expected = row_product(x, jax.jit(QuantisedWeight.numbers)(weight), instructions=instructions)
        np.testing.assert_array_equal(product(x, weight, instructions), np.asarray(expected), err_msg=f"{inputs}")


@pytest.mark.each_value
@pytest.mark.parametrize("instructions", instruction_sets())
@pytest.mark.parametrize("kind", KINDS)
def test_every_code(kind: Codes, instructions: str) -> None:
    """One row per code shows its number times one; float32 scales."""
    if kind in TWO_IN_A_BYTE:
        codes = np.repeat(np.arange(16, dtype=np.uint8) * 17, 8).reshape(16, 8)
    else:
        every = [item for item in range(256) if kind != "e4m3" or item & 127 != 127]
        codes = np.repeat(np.array(every, np.uint8), 16).reshape(-1, 16)
    codes = codes.view(np.int8) if kind == "int8" else codes
    scale = jnp.full((len(codes), 1), 2.0**-20, jnp.float32)
    weight = QuantisedWeight(jnp.asarray(codes), scale, None, None, kind, "float32")
    x = jnp.zeros((1, 16), jnp.float32).at[0, 5].set(1)
    np.testing.assert_array_equal(product(x, weight, instructions)[0], np.asarray(weight.numbers())[:, 5])
    assert len(np.unique(np.asarray(weight.numbers())[:, 5])) == len(codes) - (kind in ("e4m3", "e2m1"))


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_row_has_the_bits_that_it_has_alone(form: Form) -> None:
    """The same bits at any place, also next to rows of NaN and infinities."""
    weight, instructions = weight_of((40, 96), 3, form), instruction_sets()[-1]
    x = rows(MAX_ROWS, 96)
    single = np.concatenate([product(x[i : i + 1], weight, instructions) for i in range(MAX_ROWS)])
    for count in (2, 3, 7, 8, 9, 31, 64):
        np.testing.assert_array_equal(product(x[:count], weight, instructions), single[:count])
        for row in range(0, count, 5):
            for other in (np.nan, np.inf, 1e30):
                result = product(x[:count].at[row].set(other), weight, instructions)
                np.testing.assert_array_equal(np.delete(result, row, 0), np.delete(single[:count], row, 0))
                if np.isnan(other):
                    assert np.isnan(result[row]).all()


@pytest.mark.parametrize("instructions", instruction_sets())
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_rows_of_zeros_give_zeros_and_change_no_other_row(form: Form, instructions: str) -> None:
    """Few rows use the codes directly, more rows unpacked codes."""
    weight = weight_of((40, 96), 3, form)
    for count in (40, 150):
        x, place = rows(count, 96), np.arange(count)
        expected = product(x, weight, instructions)
        for real in (place < 20, place >= 16, place % 48 < 20, place < 0):
            result = product(jnp.where(real[:, None], x, 0.0), weight, instructions)
            np.testing.assert_array_equal(result[real], expected[real])
            assert not result[~real].any()


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_experts(form: Form) -> None:
    """Each row has its expert's bits; a row without expert is NaN."""
    weight, instructions = weight_of((5, 40, 96), 3, form), instruction_sets()[-1]
    for count in (1, 4, 50):
        x = rows(count, 96)
        expert = np.random.default_rng(count).integers(-1, 6, count).astype(np.int32)
        form_here = weight.kind, weight.dtype, instructions
        result = np.asarray(packed_expert_product(x, *weight.operands(), jnp.asarray(expert), form=form_here))
        for i, item in enumerate(expert):
            if 0 <= item < 5:
                local = weight.each(lambda array, index=int(item): array[index])
                np.testing.assert_array_equal(result[i], product(x[i : i + 1], local, instructions)[0])
            else:
                assert np.isnan(result[i]).all()


def test_operands_that_do_not_fit_are_refused() -> None:
    weight, x = weight_of((8, 32), 2, ("int8", False, False)), rows(1, 32)
    codes, scale, full, zero = weight.operands()
    for wrong in (
        (codes, scale[:, :0], full, zero),
        (codes, jnp.ones((8, 5), jnp.bfloat16), full, zero),
        (codes.astype(jnp.uint8), scale, full, zero),
        (codes, scale, jnp.ones((8, 2), jnp.float32), zero),
        (codes, scale, full, jnp.ones((8, 1), jnp.int8)),
        (codes[:, :16], scale, full, zero),
    ):
        with pytest.raises(jax.errors.JaxRuntimeError, match="packed_product"):
            jax.block_until_ready(packed_product(x, *wrong, form=("int8", "bfloat16", "portable")))


def test_linear_and_experts_call_the_kernel_where_it_is_chosen() -> None:
    def calls(count: int, devices: Devices, dtype: str = "bfloat16") -> bool:
        weight = weight_of((16, 32), 1, ("int8", False, False), dtype)
        return "ffi_call" in str(jax.make_jaxpr(lambda x, w: linear(x, w, devices))(rows(count, 32), weight))

    assert calls(1, HERE) and calls(MAX_ROWS, HERE, "float32")
    assert calls(1024, HERE) == ((fastest(), "bfloat16") in MORE_ROWS)
    assert not calls(MAX_ROWS + 1, HERE, "float32") and not calls(1, HERE, "float16")
    for other in (Devices(), Devices(kernels="interpret"), Devices(platform="gpu", kernels="auto")):
        assert not calls(1, other)
    weight, x = weight_of((4, 16, 32), 1, ("int4", False, True), "float32"), rows(6, 32)
    expert = jnp.array([0, 3, 4, 1, 1, 4], jnp.int32)
    item, other = (experts_product(x, weight, expert, devices) for devices in (HERE, Devices()))
    np.testing.assert_allclose(item, other, rtol=1e-4, atol=1e-2)
    assert (np.asarray(item)[[2, 5]] == 0).all()


@pytest.mark.slow
def test_derivatives_match_the_numbers() -> None:
    weight, x = weight_of((16, 32), 2, ("e4m3", False, False), "float32", "float32"), rows(3, 32)
    result = jax.grad(lambda x: jnp.sum(jnp.sin(linear(x, weight, HERE) / 1000)))(x)
    expected = jax.grad(lambda x: jnp.sum(jnp.sin(dot(x, weight.numbers()) / 1000)))(x)
    np.testing.assert_allclose(result, expected, rtol=1e-3, atol=1e-4 * float(jnp.abs(expected).max()))


def test_proof_believes_the_declaration_and_nothing_more() -> None:
    import hybridlm  # noqa: F401  # declares them

    weight, x = weight_of((16, 32), 1, ("int8", False, False)), rows(4, 32)
    contract = LaneContract(inputs=(Lane(), jax.tree.map(lambda _: Shared(), weight)), outputs=Lane())
    proof = prove_isolation(lambda x, w: linear(x, w, HERE), (x, weight), contract)
    assert any(statement.about.startswith("packed_product") for statement in proof.assumed), proof.assumed
    with pytest.raises(IsolationError):
        prove_isolation(lambda x, w: linear(x[::-1], w, HERE), (x, weight), contract)
    count = weight_of((3, 16, 32), 1, ("int8", False, False))
    contract = LaneContract(inputs=(Lane(), jax.tree.map(lambda _: Shared(), count), Lane()), outputs=Lane())
    ids = jnp.zeros(4, jnp.int32)
    proof = prove_isolation(lambda x, w, e: experts_product(x, w, e, HERE), (x, count, ids), contract)
    assert any(statement.about.startswith("packed_expert_product") for statement in proof.assumed), proof.assumed
    with pytest.raises(IsolationError):
        prove_isolation(lambda x, w, e: experts_product(x, w, e[::-1], HERE), (x, count, ids), contract)
