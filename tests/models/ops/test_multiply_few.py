"""Product of a few rows with a matrix for each lane and head."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ir_passes import Lane, LaneContract, Pool, compile_step
from models.ops.float32 import multiply_few


@pytest.mark.parametrize("inputs", [1, 5, 16, 24, 37, 48, 128, 192])
def test_few_rows_meet_the_matrix_of_their_lane_and_head(inputs: int) -> None:
    rng = np.random.default_rng(inputs)
    rows, matrix = rng.normal(size=(4, 3, 2, inputs)), rng.normal(size=(4, 3, 7, inputs))
    rows, matrix = rows.astype(np.float32), matrix.astype(np.float32)
    y = np.asarray(jax.jit(multiply_few)(rows, matrix))
    want = np.einsum("nhci,nhoi->nhco", rows.astype(np.float64), matrix.astype(np.float64))
    assert y.dtype == np.float32
    np.testing.assert_allclose(y, want, atol=1e-5)
    order = [2, 0, 3, 1]
    assert np.asarray(jax.jit(multiply_few)(rows[order], matrix[order])).tobytes() == y[order].tobytes()
    matrix[1], rows[3] = np.nan, np.inf
    poisoned = np.asarray(jax.jit(multiply_few)(rows, matrix))
    assert np.isnan(poisoned[1]).all() and poisoned[[0, 2]].tobytes() == y[[0, 2]].tobytes()


def test_a_state_is_not_read_again_for_what_is_computed_from_its_product() -> None:
    """Written in its place, it would have to be copied; the audit of the compiled step finds that."""

    def step(state, rows):
        read = multiply_few(rows, state)[:, :, 0]
        return read, jnp.where(read[..., None] > 0.0, state + read[..., None] * rows, state)

    args = jnp.ones((4, 3, 40, 48)), jnp.ones((4, 3, 1, 48))
    compiled = compile_step(step, args, LaneContract((Pool("r"), Lane()), (Lane(), Pool("r"))))
    assert compiled.certificate.holds
