"""Placement of a step's arrays: on one device, or sharded over mesh axes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from hybridlm.checkpoint import ParameterPath, Shards
from hybridlm.devices.mesh import DATA, EXPERT, MODEL
from ir_passes.targets import Target, local_target
from models import Weight
from models.cpu_kernels import library
from models.ops.kernels import default_mode
from models.sharding.devices import Devices
from models.sharding.sharded_dim import ShardedDim

T = TypeVar("T")


@dataclass(frozen=True)
class Placement:
    """The devices of a model.

    Attributes:
        mesh: with all axes; None for JAX's default device, or the target's first. For an abstract mesh steps are only
            planned.
        target: absent machine to compile for; None for local devices.
    """

    mesh: Mesh | AbstractMesh | None = None
    target: Target | None = None
    kernels: str | None = None

    @property
    def kernel_mode(self) -> str:
        return default_mode(self.platform) if self.kernels is None else self.kernels

    @property
    def kernels_name(self) -> str:
        """Name of all kernels of layers, for keys: kernels change the last bits."""
        if self.platform != "cpu" or self.kernel_mode != "auto":
            return self.kernel_mode
        return "none" if (kernel_library := library()) is None else kernel_library.name

    @cached_property
    def platform(self) -> str:
        if self.target is not None:
            return self.target.platform
        return self.mesh.devices.flat[0].platform if isinstance(self.mesh, Mesh) else local_target().platform

    def size(self, axis: str) -> int:
        return 1 if self.mesh is None else self.mesh.shape[axis]

    @property
    def data(self) -> int:
        """Devices that split lanes (data parallel), and the rows of a pool."""
        return 1 if self.mesh is None else self.mesh.shape[DATA]

    @property
    def several_processes(self) -> bool:
        """Whether devices belong to another process."""
        return isinstance(self.mesh, Mesh) and self.mesh.is_multi_process

    @property
    def share_threads(self) -> bool:
        """True if several devices are CPUs of this process: XLA gives them one thread pool."""
        return isinstance(self.mesh, Mesh) and sum(device.platform == "cpu" for device in self.mesh.local_devices) > 1

    @property
    def local_devices(self) -> list[Any]:
        if self.mesh is None:
            return jax.local_devices()[:1]
        assert isinstance(self.mesh, Mesh), "an abstract mesh has no devices"
        return list(self.mesh.local_devices)

    @property
    def devices(self) -> Devices:
        """Devices that shard parameters (tensor and expert parallel), and their platform."""
        return Devices(self.size(MODEL), self.size(EXPERT), self.platform, self.kernel_mode)

    @property
    def rows_over(self) -> str | None:
        """Axis that splits rows; None if each device has all."""
        return DATA if self.data > 1 else None

    def prefill_lanes(self, lanes: int, limit: int) -> int:
        """Return a prefill step's lanes: at most `limit` and `lanes`, one per device."""
        return min(lanes, -(-limit // self.data) * self.data)

    def over(self, *dimensions: str | None) -> NamedSharding | None:
        """Return the sharding over these axes (None: not split); None on one device."""
        if self.mesh is None:
            return None
        split = [axis if axis is not None and self.mesh.shape[axis] > 1 else None for axis in dimensions]
        while split and split[-1] is None:
            split.pop()
        return NamedSharding(self.mesh, PartitionSpec(*split))

    def dimensions(self, array: Any) -> list[str | None]:
        split = [] if self.mesh is None else list(array.sharding.spec)
        return split + [None] * (len(array.shape) - len(split))

    def shards(
        self, weights: Sequence[Weight], sharded_dims: Mapping[ParameterPath, tuple[ShardedDim, ...]]
    ) -> dict[ParameterPath, Shards]:
        """Return the layout of parameters: sharded by `sharded_dims`, else replicated."""
        layouts: dict[ParameterPath, Shards] = {}
        for weight in weights:
            split: list[str | None] = [None] * len(weight.shape)
            shard_dims = tuple(sharded for sharded in sharded_dims.get(weight.path, ()) if self.size(sharded.axis) > 1)
            for sharded in shard_dims:
                split[sharded.dim] = sharded.axis
            layouts[weight.path] = Shards(tuple(weight.shape), shard_dims, self.over(*split))
        return layouts

    def of_operand(self, operand: Any) -> NamedSharding | None:
        """Return an operand's sharding: lanes are on axis 0, scalars are replicated."""
        return self.over(DATA) if np.ndim(operand) else self.over()

    def put(self, inputs: T) -> T:
        """Put host arrays of a step's inputs on a mesh, together.

        On one device the call of a program does it in a tenth of the time.
        """
        if self.mesh is None:
            return inputs
        leaves, tree = jax.tree.flatten(inputs)
        host = [leaf for leaf in leaves if not isinstance(leaf, jax.Array)]
        placed = iter(self._put(host, list(map(self.of_operand, host))))
        return tree.unflatten(leaf if isinstance(leaf, jax.Array) else next(placed) for leaf in leaves)

    def put_whole(self, tree: Any) -> Any:
        """Put host arrays on every device of a mesh in one call; else as `put`."""
        if self.mesh is None:
            return tree
        return self._put(tree, jax.tree.map(lambda _: self.over(), tree))

    def ahead(self, inputs: T) -> T:
        """Put inputs of many steps on devices once; several processes compare them on the host."""
        if self.several_processes:
            return inputs
        return jax.device_put(inputs) if self.mesh is None else self.put(inputs)

    def _put(self, tree: Any, places: Any) -> Any:
        if not self.several_processes:
            return jax.device_put(tree, places)
        # device_put would first compare the arrays across processes, with a program for each.
        return jax.tree.map(
            lambda array, place: jax.make_array_from_callback(array.shape, place, array.__getitem__), tree, places
        )

    def require_one_process(self, subject: str) -> None:
        """Raise ValueError if this process would need arrays of others."""
        if self.several_processes:
            raise ValueError(f"{subject}: not supported for a model over several processes; load it in one")

    def examples(self, inputs: T, replicated: bool = False) -> T:
        """Return inputs to compile for; on a mesh types and shardings."""
        if self.mesh is None:
            return inputs

        def example(leaf: Any) -> jax.ShapeDtypeStruct:
            sharding = self.over() if replicated else self.of_operand(leaf)
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

        return jax.tree.map(example, inputs)


ONE_DEVICE = Placement()


def check_lanes(lanes: int, data: int) -> None:
    if lanes % data:
        below = lanes // data * data
        fitting = [str(count) for count in (below, below + data) if count]
        raise ValueError(
            f"lanes: {lanes} lanes cannot be split over data={data} devices; {' or '.join(fitting)} would do"
        )


def numbers_on_a_device(array: Any) -> int:
    return math.prod(array.shape if array.sharding is None else array.sharding.shard_shape(array.shape))


def bytes_on_a_device(tree: Any) -> int:
    return sum(numbers_on_a_device(leaf) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
