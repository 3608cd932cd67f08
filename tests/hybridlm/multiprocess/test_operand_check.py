"""Operand checks: if one device's operation differs, no row of any device changes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from checked_copies import checked_copy
from jax.sharding import NamedSharding, PartitionSpec

from hybridlm import mesh
from hybridlm.multiprocess.operand_check import EXAMPLE_DIGEST
from ir_passes import Claim, CompiledStep

MESH = mesh(data=2)
SPLIT, WHOLE = NamedSharding(MESH, PartitionSpec("data")), NamedSharding(MESH, PartitionSpec())
MAP = np.zeros(1, np.int32)


@pytest.fixture(scope="module")
def step() -> CompiledStep:
    return checked_copy(MESH)


def whole(array: np.ndarray, other: np.ndarray) -> jax.Array:
    """Array that JAX assumes to be equal on both devices."""
    parts = [jax.device_put(part, device) for part, device in zip((array, other), MESH.devices.flat, strict=True)]
    return jax.make_array_from_single_device_arrays(array.shape, WHOLE, parts)


@pytest.mark.parametrize("message", ["the same", "another word", "another row"])
def test_rows_are_written_where_all_operands_agree(step: CompiledStep, message: str) -> None:
    initial, source = jnp.zeros((4, 3)), jnp.arange(12, dtype=jnp.float32).reshape(4, 3)
    words, write = EXAMPLE_DIGEST.copy(), MAP + np.int32(3)
    words[7] = message == "another word"
    slots = whole(write, write - np.int32(message == "another row"))
    pools = jax.device_put((initial, source), SPLIT)
    final, agree = step(*pools, whole(MAP, MAP), slots, whole(EXAMPLE_DIGEST, words))
    assert [bool(shard.data) for shard in agree.addressable_shards] == [message == "the same"] * 2
    expected = np.zeros((4, 3), np.float32)
    expected[3] = source[0] if message == "the same" else 0
    np.testing.assert_array_equal(final, expected)


def test_the_proof_says_so(step: CompiledStep) -> None:
    assert Claim.AGREEMENT in {certificate.id for certificate in step.certificate.proved}
    assert [collective.operation for collective in step.certificate.collectives].count("pmax") == 1
