"""Steps over a mesh: each device runs the step on its shards."""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh, PartitionSpec

from hybridlm.devices.mesh import DATA
from ir_passes import Lane, LaneContract, Pool, Shared
from ir_passes.contract.entries import ENTRIES


def sharded(
    step: Callable[..., Any], args: tuple[Any, ...], contract: LaneContract, mesh: Mesh | AbstractMesh
) -> Callable[..., Any]:
    """Return `step` over a mesh; it sees one device's lanes and rows.

    JAX checks (`check_vma`) that replicated results do not depend on the device.

    Args:
        contract: of the complete step; a pool keeps its sharding, lanes are split in order.
    """
    in_specs = jax.tree.map(lambda array: array.sharding.spec, args)
    entries = [(_pool(entry), specs) for entry, specs in zip(contract.inputs, in_specs, strict=True)]
    pools = {pool.group: specs for pool, specs in entries if pool is not None}
    lanes = PartitionSpec(DATA) if mesh.shape[DATA] > 1 else PartitionSpec()

    def leaving(entry: Any) -> Any:
        pool = _pool(entry)
        if pool is not None:
            return pools[pool.group]
        return lanes if isinstance(entry, Lane) else PartitionSpec()

    def ends(node: Any) -> bool:
        return isinstance(node, Lane | Shared) or _pool(node) is not None

    results = tuple(jax.tree.map(leaving, entry, is_leaf=ends) for entry in contract.outputs)
    return jax.shard_map(step, mesh=mesh, in_specs=in_specs, out_specs=results, check_vma=True)


def _pool(entry: Any) -> Pool | None:
    leaves = jax.tree.leaves(entry, is_leaf=lambda node: isinstance(node, ENTRIES))
    return leaves[0] if leaves and all(isinstance(leaf, Pool) for leaf in leaves) else None
