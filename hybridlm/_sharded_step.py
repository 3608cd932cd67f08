"""A step over the devices of a mesh: each device runs it on its own part of every array."""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh, PartitionSpec

from hybridlm._mesh import DATA
from ir_passes import Lane, LaneContract, Pool, Shared


def sharded(
    step: Callable[..., Any], args: tuple[Any, ...], contract: LaneContract, mesh: Mesh | AbstractMesh
) -> Callable[..., Any]:
    """`step` as a function of whole arrays, which lie over a mesh.

    What the step says of lanes and rows it says of those of one device. JAX checks (`check_vma`) that what every device
    is to have alike does not depend on the device.

    Args:
        step: positional arguments in, a tuple out.
        args: example arguments; the sharding of each array says which part of it a device has.
        contract: of the whole step. A pool leaves the step as it went in; lanes are split in their order.
        mesh: the devices.
    """
    given = jax.tree.map(lambda one: one.sharding.spec, args)
    pools = {entry.group: specs for entry, specs in zip(contract.inputs, given, strict=True) if isinstance(entry, Pool)}
    lanes = PartitionSpec(DATA) if mesh.shape[DATA] > 1 else PartitionSpec()

    def leaving(entry: Any) -> Any:
        if isinstance(entry, Pool):
            return pools[entry.group]
        return lanes if isinstance(entry, Lane) else PartitionSpec()

    results = jax.tree.map(leaving, contract.outputs, is_leaf=lambda entry: isinstance(entry, Lane | Pool | Shared))
    return jax.shard_map(step, mesh=mesh, in_specs=given, out_specs=results, check_vma=True)
