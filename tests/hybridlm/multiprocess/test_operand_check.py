"""Operand checks: if one device's operation differs, no row of any device changes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from checked_copies import checked_copy
from disturbed_lanes import step_shape
from jax.sharding import NamedSharding, PartitionSpec

import hybridlm
from hybridlm.multiprocess.operand_check import DIGEST_WORDS, EXAMPLE_DIGEST
from ir_passes import Claim, CompiledStep

MESH = hybridlm.mesh(data=2)
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


def test_every_array_of_a_step_has_a_word(text_lm: hybridlm.LM) -> None:
    """Two words are of the step itself."""
    shape = step_shape(text_lm, "generate", 1, mtp_drafts=2, changes=64, masked=True, probes=(2, 1, 1, 1))
    assert len(jax.tree.leaves(text_lm.engine.example_arguments(shape)[2])) <= DIGEST_WORDS - 2
