"""Several processes save a parameter over their mesh, then read it under another.

python save_processes.py PORT COUNT NUMBER FOLDER
"""

import pathlib
import sys
from collections.abc import Callable

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from hybridlm.checkpoint.adapters import build_merged
from hybridlm.checkpoint.saved.index import open_saved
from hybridlm.checkpoint.saved.pieces import saved_pieces
from hybridlm.checkpoint.saved.read import _Reading
from hybridlm.checkpoint.saved.write import save_checkpoint
from hybridlm.checkpoint.shards import Shards
from hybridlm.families import tensor
from models import Segment, ShardedDim
from models.weights.sources import ArraySlice

PARTS = (Segment(16, 8), Segment(8, 2, replicable=True), Segment(4, 1, replicable=True))
CUT = ShardedDim(0, "model", PARTS)
WHOLE = np.arange(CUT.size * 6, dtype=np.float32).reshape(CUT.size, 6)


def laid(mesh: jax.sharding.Mesh) -> Shards:
    return Shards(WHOLE.shape, (CUT,), NamedSharding(mesh, PartitionSpec("model")))


def built(shards: Shards, fill: Callable[[ArraySlice, np.ndarray], None]) -> jax.Array:
    weight = tensor(("whole",), "whole", WHOLE.shape)
    return build_merged(shards, weight, WHOLE.dtype, (), pathlib.Path(), ["whole"], fill)


def of_device(shards: Shards) -> jax.Array:
    """Build the parameter over a mesh from values known to each process."""
    return built(shards, lambda window, result: np.copyto(result, WHOLE[window]))


def main(port: int, count: int, number: int, folder: pathlib.Path) -> None:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", count, number)
    devices = np.array(jax.devices())
    array = of_device(laid(jax.sharding.Mesh(devices, ("model",))))
    parameters = {"whole": saved_pieces(array, (CUT,))}
    model = {"hybridlm": "0", "family": "none", "dtype": "float32", "fingerprint": "none"}
    save_checkpoint(folder / "saved", folder, model, parameters)
    other = laid(jax.sharding.Mesh(devices.reshape(2, -1), ("data", "model")))
    saved = open_saved(folder / "saved")
    reading = _Reading(saved, "whole")
    actual = built(other, reading.fill)
    for item, expected in zip(actual.addressable_shards, of_device(other).addressable_shards, strict=True):
        assert np.array_equal(item.data, expected.data), item.index
    output = {shard.index[0].start or 0 for shard in actual.addressable_shards}
    print(f"{len(saved.parameters['whole'].tiles)} tiles, {len(output)} different parts here")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), pathlib.Path(sys.argv[4]))
