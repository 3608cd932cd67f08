"""A copy of a row between the devices of a mesh, with the check of its operands."""

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from hybridlm.devices.sharded_step import sharded
from hybridlm.multiprocess.operand_check import EXAMPLE_DIGEST, with_operand_check
from hybridlm.rows.parts import copy_contract, copy_row
from ir_passes import CompiledStep, compile_step


def checked_copy(mesh: Mesh) -> CompiledStep:
    """Compile the copy of a row of three numbers between pools of four rows, split over the axis "data"."""
    split, whole = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())
    copy, contract = with_operand_check(copy_row("data", "data"), copy_contract(4, 4))
    types = (
        *[((4, 3), jnp.float32, split)] * 2,
        *[((1,), jnp.int32, whole)] * 2,
        (EXAMPLE_DIGEST.shape, EXAMPLE_DIGEST.dtype, whole),
    )
    args = tuple(jax.ShapeDtypeStruct(shape, dtype, sharding=place) for shape, dtype, place in types)
    return compile_step(sharded(copy, args, contract, mesh), args, contract)
