"""The kernel for products of few rows computes what the plain form does, and keeps rows apart."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ir_passes import Lane, LaneContract, Shared
from ir_passes.contract.statements import Note
from ir_passes.proof.lane_proof import prove_isolation
from models.layers.activations import silu_gated
from models.ops.linear import gated_linear, linear
from models.ops.row_product_gpu import KERNEL, MAX_ROWS
from models.sharding.devices import Devices

SIZES = ((16, 32, 16), (32, 40, 48), (64, 8, 256), (48, 128, 96))
"""Rows, outputs, inputs: outputs that blocks do not divide, fewer than a block, several blocks of rows."""


def operands(rows: int, outputs: int, inputs: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(outputs)
    x, weight = (rng.normal(size=(size, inputs)).astype(np.float32) for size in (rows, outputs))
    return jnp.asarray(x), jnp.asarray(weight, jnp.bfloat16)


def step(x: Any, weight: Any, kernels: str = "interpret") -> Any:
    return (linear(x, weight, Devices(platform="gpu", kernels=kernels)),)


run = jax.jit(step, static_argnames="kernels")


@pytest.mark.parametrize("sizes", SIZES)
def test_kernel_computes_the_product(sizes: tuple[int, int, int]) -> None:
    given = operands(*sizes)
    (found,), (expected,) = run(*given), run(*given, kernels="off")
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("sizes", SIZES)
def test_rows_keep_their_bits(sizes: tuple[int, int, int]) -> None:
    x, weight = operands(*sizes)
    (expected,) = run(x, weight)
    for bad in (0, 1):
        (found,) = run(x.at[bad::2].set(jnp.nan), weight)
        np.testing.assert_array_equal(found[1 - bad :: 2], expected[1 - bad :: 2])
    np.testing.assert_array_equal(run(x[:16], weight)[0], expected[:16])


@pytest.mark.parametrize("sizes", SIZES)
def test_kernel_is_proved_from_the_inside(sizes: tuple[int, int, int]) -> None:
    proof = prove_isolation(step, operands(*sizes), LaneContract((Lane(), Shared()), (Lane(),)))
    (note,) = [note for note in proof.notes if note.id == Note.KERNEL_READ.value]
    assert note.about.startswith(KERNEL.name)


def gated(x: Any, gate: Any, up: Any, kernels: str = "interpret") -> Any:
    devices = Devices(platform="gpu", kernels=kernels)
    return (gated_linear(x, gate, up, devices, gated=silu_gated, dtype=gate.dtype),)


def test_gate_and_up_are_one_kernel() -> None:
    """It rounds its result as the next product does, and is proved with the activation inside."""
    x, gate = operands(32, 40, 48)
    up = jnp.flip(gate, axis=0)
    (found,), (expected,) = (
        jax.jit(gated, static_argnames="kernels")(x, gate, up, how) for how in ("interpret", "off")
    )
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, expected.astype(jnp.bfloat16).astype(jnp.float32), rtol=8e-3, atol=1e-5)
    proof = prove_isolation(gated, (x, gate, up), LaneContract((Lane(), Shared(), Shared()), (Lane(),)))
    assert [note.id for note in proof.notes].count(Note.KERNEL_READ.value) == 1


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((MAX_ROWS + 16, 16), "bfloat16"), ((5, 16), "bfloat16"), ((16, 24), "bfloat16"), ((16, 16), "float32")],
)
def test_other_operands_are_left_to_xla(shape: tuple[int, int], dtype: str) -> None:
    assert KERNEL.unsupported(jnp.zeros(shape), jnp.zeros((16, shape[1]), dtype))
