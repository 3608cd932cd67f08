"""Where the arrays of steps lie: on one device, or over the axes of a mesh."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from hybridlm.checkpoint import ParameterPath, Shards
from hybridlm.devices.mesh import DATA, EXPERT, MODEL, with_all_axes
from models import Weight
from models.sharding.devices import Devices
from models.sharding.sharded_dim import ShardedDim


@dataclass(frozen=True)
class Placement:
    """The devices of a model.

    Attributes:
        mesh: with all axes of `hybridlm.devices.mesh`; None for JAX's default device. An abstract one has no devices:
            steps are planned for it and nothing is put anywhere.
    """

    mesh: Mesh | AbstractMesh | None = None

    def size(self, axis: str) -> int:
        """Devices along an axis."""
        return 1 if self.mesh is None else self.mesh.shape[axis]

    @property
    def data(self) -> int:
        """Parts that lanes are split into: how many rows a pool has is a multiple of it."""
        return self.size(DATA)

    @property
    def several_processes(self) -> bool:
        """Whether some of the devices are another process's."""
        return isinstance(self.mesh, Mesh) and self.mesh.is_multi_process

    @property
    def share_threads(self) -> bool:
        """Whether several devices are CPUs of this process, which XLA runs on one pool of threads."""
        return isinstance(self.mesh, Mesh) and sum(one.platform == "cpu" for one in self.mesh.local_devices) > 1

    @property
    def local_devices(self) -> list[Any]:
        """Those of this process."""
        if self.mesh is None:
            return jax.local_devices()[:1]
        assert isinstance(self.mesh, Mesh), "an abstract mesh has no devices"
        return list(self.mesh.local_devices)

    @property
    def devices(self) -> Devices:
        """Those that share the parameters."""
        return Devices(self.size(MODEL), self.size(EXPERT))

    @property
    def rows_over(self) -> str | None:
        """The axis that rows are split over; None where each device has all of them."""
        return DATA if self.data > 1 else None

    def prefill_rows(self, lanes: int, most: int) -> int:
        """Rows of the prefill pool: at most so many and as many as lanes, but one on every device."""
        return min(lanes, -(-most // self.data) * self.data)

    def over(self, *dimensions: str | None) -> NamedSharding | None:
        """An array whose dimensions are split over these axes, None for a whole one; on one device nothing is said."""
        if self.mesh is None:
            return None
        split = [axis if axis is not None and self.mesh.shape[axis] > 1 else None for axis in dimensions]
        while split and split[-1] is None:
            split.pop()
        return NamedSharding(self.mesh, PartitionSpec(*split))

    def dimensions(self, array: Any) -> list[str | None]:
        """For each dimension of an array that lies on these devices, the axis that it is split over, or None."""
        split = [] if self.mesh is None else list(array.sharding.spec)
        return split + [None] * (len(array.shape) - len(split))

    def shards(
        self, weights: Sequence[Weight], cuts: Mapping[ParameterPath, tuple[ShardedDim, ...]]
    ) -> dict[ParameterPath, Shards]:
        """How parameters lie: split as their cuts say, and the same along all other axes."""
        found: dict[ParameterPath, Shards] = {}
        for weight in weights:
            split: list[str | None] = [None] * len(weight.shape)
            own = tuple(cut for cut in cuts.get(weight.path, ()) if self.size(cut.axis) > 1)
            for cut in own:
                split[cut.dim] = cut.axis
            found[weight.path] = Shards(tuple(weight.shape), own, self.over(*split))
        return found

    def of_operand(self, operand: Any) -> NamedSharding | None:
        """Where an operand of a step is: scalars on every device, all others have their lanes on axis 0."""
        return self.over(DATA) if np.ndim(operand) else self.over()

    def put(self, operands: Sequence[Any]) -> list[Any]:
        """Operands of a step with host arrays put where they belong, in one call; what is on devices stays there."""
        host = [one for one in operands if not isinstance(one, jax.Array)]
        if self.mesh is None:
            put = iter(jax.device_put(host))
        else:
            put = iter(self._put(host, jax.tree.map(self.of_operand, host)))
        return [one if isinstance(one, jax.Array) else next(put) for one in operands]

    def put_whole(self, tree: Any) -> Any:
        """Host arrays put on every device, in one call."""
        if self.mesh is None:
            return jax.device_put(tree)
        return self._put(tree, jax.tree.map(lambda _: self.over(), tree))

    def ahead(self, operands: Sequence[Any]) -> tuple[Any, ...]:
        """Operands that many steps take, put on devices once; of several processes they stay, to be told to others."""
        return tuple(operands) if self.several_processes else tuple(self.put(operands))

    def _put(self, tree: Any, places: Any) -> Any:
        """Host arrays put where `places` says, which has a sharding for each."""
        if not self.several_processes:
            return jax.device_put(tree, places)
        # JAX would compare them in all processes first, by a program for each array.
        return jax.tree.map(
            lambda one, place: jax.make_array_from_callback(one.shape, place, one.__getitem__), tree, places
        )

    def require_one_process(self, what: str) -> None:
        """Raises ValueError where arrays of other processes would be needed by this one."""
        if self.several_processes:
            raise ValueError(f"{what}: not where a model lies over several processes; load it in one")

    def examples(self, operands: Sequence[Any], whole: bool = False) -> tuple[Any, ...]:
        """Operands as a program is compiled for them: by their types and places alone, where there is a mesh."""
        if self.mesh is None:
            return tuple(operands)

        def example(one: Any) -> jax.ShapeDtypeStruct:
            sharding = self.over() if whole else self.of_operand(one)
            return jax.ShapeDtypeStruct(one.shape, one.dtype, sharding=sharding)

        return tuple(jax.tree.map(example, tuple(operands)))


ONE_DEVICE = Placement()


def place(mesh: Mesh, lanes: int, sanitize: bool) -> Placement:
    """The devices that `load(mesh=)` names.

    Raises:
        TypeError: it is no mesh.
        ValueError: it has other axes, lanes do not divide over it, or the sanitizer is asked for, which has one device.
    """
    full = with_all_axes(mesh)
    there = {device.process_index for device in full.devices.flat}
    if len(there) < jax.process_count() and there != {jax.process_index()}:
        raise ValueError(
            f"mesh: it has devices of {len(there)} of {jax.process_count()} processes; expected devices of each, or of "
            "this one alone"
        )
    placement = Placement(full)
    check_lanes(lanes, placement.data)
    if sanitize:
        raise ValueError("sanitize: the sanitizer follows rows on one device; load without mesh to use it")
    return placement


def check_lanes(lanes: int, data: int) -> None:
    """Raise ValueError where lanes cannot be split over so many devices."""
    if lanes % data:
        below = lanes // data * data
        fitting = [str(count) for count in (below, below + data) if count]
        raise ValueError(
            f"lanes: {lanes} lanes cannot be split over data={data} devices; {' or '.join(fitting)} would do"
        )


def numbers_on_a_device(one: Any) -> int:
    """Numbers that one device has of an array, or of its type; a type without a place is whole."""
    return math.prod(one.shape if one.sharding is None else one.sharding.shard_shape(one.shape))
