"""The kernel for the norms of a residual stream equals float64, and separates rows."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from counted_kernels import counted_kernel
from flax import nnx

from hybridlm.families import NormConfig
from ir_passes import Lane, LaneContract, Note, Shared, prove_isolation
from models import Devices
from models.ops.rms_norm_gpu import KERNEL, MAX_ROWS

EPS = 1e-6
SIZES = (16, 48, 256, 2688, 5120)
"""Of one iteration and of several, in turns of 16 to 1024 numbers."""


def operands(size: int, rows: tuple[int, ...] = (3, 5)) -> tuple[jax.Array, jax.Array, jax.Array]:
    rng = np.random.default_rng(size)
    x, y, weight = (rng.normal(size=shape).astype(np.float32) for shape in ((*rows, size), (*rows, size), (size,)))
    return jnp.asarray(x), jnp.asarray(y), jnp.asarray(weight)


def step(x: Any, y: Any, weight: Any, offset: float = 0.0, kernels: str = "interpret") -> tuple[Any]:
    norm = NormConfig(EPS, offset).build(len(weight), nnx.Rngs(0), Devices(platform="gpu", kernels=kernels))
    norm.weight[...] = weight
    return (norm(x + y, (x, y)),)


run = jax.jit(step, static_argnames=("offset", "kernels"))


@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("size", SIZES)
def test_kernel_norms_a_sum(size: int, offset: float) -> None:
    x, y, weight = operands(size)
    total = np.asarray(x + y, np.float64)
    expected = total / np.sqrt(np.mean(total**2, axis=-1, keepdims=True) + EPS) * (np.asarray(weight) + offset)
    for kernels in ("interpret", "off"):
        np.testing.assert_allclose(run(x, y, weight, offset, kernels)[0], expected, rtol=3e-6, atol=1e-6)


@pytest.mark.parametrize("size", SIZES)
def test_rows_keep_their_bits(size: int) -> None:
    """Beside other rows and in fewer."""
    x, y, weight = operands(size, (8, 1))
    (expected,) = run(x, y, weight)
    (result,) = run(x.at[::2].set(jnp.nan), y, weight)
    np.testing.assert_array_equal(result[1::2], expected[1::2])
    assert np.isnan(result[::2]).all()
    np.testing.assert_array_equal(run(x[:1], y[:1], weight)[0], expected[:1])


@pytest.mark.parametrize("size", SIZES)
def test_kernel_is_proved_from_the_inside(size: int) -> None:
    proof = prove_isolation(step, operands(size), LaneContract((Lane(), Lane(), Shared()), (Lane(),)))
    (note,) = [note for note in proof.notes if note.id == Note.KERNEL_READ.value]
    assert note.about.startswith(KERNEL.name)


@pytest.mark.parametrize("size", SIZES)
def test_rows_are_counted_in_both_passes(size: int) -> None:
    """A row is read for its square and for its result."""
    arguments = operands(size)
    reads = counted_kernel(step, arguments, (None, None, None))
    rows = 4 * arguments[0].size
    assert (reads.loaded, reads.stored) == ((2 * rows, 2 * rows, rows), (rows,))


@pytest.mark.parametrize(("shape", "supported"), [((MAX_ROWS, 1, 48), True), ((3, 43, 48), False), ((1, 1, 72), False)])
def test_which_rows_are_taken(shape: tuple[int, ...], supported: bool) -> None:
    assert KERNEL.supports(jnp.zeros(shape)) == supported
