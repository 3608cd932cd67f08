"""Parameters over a mesh: every device has its pieces, made once and read in place."""

from collections.abc import Mapping

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from shares import spread

import hybridlm
from hybridlm.checkpoint import Shards
from hybridlm.checkpoint.shards import build_together
from models import Devices, Segment, ShardedDim

MESH = hybridlm.mesh(data=2, model=2, expert=2)
PARTS = (Segment(8, 4), Segment(4, 1, replicable=True), Segment(6, 2))
CASES = {
    "parts of rows, one of them repeated": ((18, 3), (ShardedDim(0, "model", PARTS),), P("model")),
    "experts and columns": ((4, 3, 6),
        (ShardedDim(0, "expert", (Segment(4, 4),)), ShardedDim(2, "model", (Segment(6, 6),))), None),
    "parts within experts": ((4, 18, 3), (ShardedDim(0, "expert", (Segment(4, 4),)), ShardedDim(1, "model", PARTS)),
        P("expert", "model")),
    "whole": ((5, 3), (), P()),
    "a number": ((), (), P()),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_each_device_has_its_part(case: str) -> None:
    shape, cuts, spec = CASES[case]
    spec = P("expert", None, "model") if spec is None else spec
    shards = Shards(shape, cuts, NamedSharding(MESH, spec))
    full = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
    results: list[np.ndarray] = []

    def host(starts: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
        results.append(np.full(shards.local_shape, -1, np.float32))
        for source, target in shards.windows(starts["w"]):
            results[-1][(*target, ...)] = full[(*source, ...)]
        return {"w": results[-1]}

    array = build_together({"w": shards}, host)["w"]
    np.testing.assert_array_equal(array, spread(full, cuts, Devices(2, 2)))
    assert array.shape == shards.global_shape and array.sharding == shards.sharding
    assert {shard.data.shape for shard in array.addressable_shards} == {shards.local_shape}
    assert len(results) == shards.distinct, "a part was made twice"
    assert shards.local_bytes(np.dtype(np.float32)) == results[0].nbytes


def test_without_a_mesh_all_is_whole() -> None:
    full = np.arange(6, dtype=np.float32).reshape(2, 3)
    shards = Shards((2, 3))
    ((source, _),) = shards.windows((0, 0))
    array = build_together({"w": shards}, lambda starts: {"w": full[source]})["w"]
    np.testing.assert_array_equal(array, full)
    assert isinstance(array.sharding, jax.sharding.SingleDeviceSharding)
