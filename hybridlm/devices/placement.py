"""Placement of the arrays of steps: on one device, or sharded over the axes of a mesh."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from hybridlm.checkpoint import ParameterPath, Shards
from hybridlm.devices.mesh import DATA, EXPERT, MODEL, with_all_axes
from ir_passes.targets import Target, local_target
from models import Weight
from models.cpu_kernels import library
from models.ops.kernels import default_mode
from models.sharding.devices import Devices
from models.sharding.sharded_dim import ShardedDim

T = TypeVar("T")
"""A pytree of arrays."""


@dataclass(frozen=True)
class Placement:
    """The devices of a model.

    Attributes:
        mesh: with all axes of `hybridlm.devices.mesh`; None for JAX's default device, or the target's first. An
            abstract mesh has no devices: steps are planned for it, and no array is put on it.
        target: machine that steps are compiled for without it, and on which they cannot run; None for local devices.
        kernels: whether layers run kernels, as `load(kernels=)` has it.
    """

    mesh: Mesh | AbstractMesh | None = None
    target: Target | None = None
    kernels: str | None = None

    @property
    def kernel_mode(self) -> str:
        """Return whether layers run kernels, one of `models.ops.kernels.MODES`."""
        return default_mode(self.platform) if self.kernels is None else self.kernels

    @property
    def kernels_name(self) -> str:
        """Return a name of all kernels that layers may run, for keys: numbers depend on it down to the last bit."""
        if self.platform != "cpu" or self.kernel_mode != "auto":
            return self.kernel_mode
        return "none" if (found := library()) is None else found.name

    @property
    def platform(self) -> str:
        """Return "cpu", "gpu" or "tpu": what steps are compiled for."""
        if self.target is not None:
            return self.target.platform
        return self.mesh.devices.flat[0].platform if isinstance(self.mesh, Mesh) else local_target().platform

    def size(self, axis: str) -> int:
        """Return the number of devices along an axis."""
        return 1 if self.mesh is None else self.mesh.shape[axis]

    @property
    def data(self) -> int:
        """Devices that lanes are split over (data parallel); the rows of a pool are a multiple of it."""
        return self.size(DATA)

    @property
    def several_processes(self) -> bool:
        """Whether some of the devices belong to another process."""
        return isinstance(self.mesh, Mesh) and self.mesh.is_multi_process

    @property
    def share_threads(self) -> bool:
        """Whether several devices are CPUs of this process, which XLA runs on one pool of threads."""
        return isinstance(self.mesh, Mesh) and sum(one.platform == "cpu" for one in self.mesh.local_devices) > 1

    @property
    def local_devices(self) -> list[Any]:
        """Devices of this process."""
        if self.mesh is None:
            return jax.local_devices()[:1]
        assert isinstance(self.mesh, Mesh), "an abstract mesh has no devices"
        return list(self.mesh.local_devices)

    @property
    def devices(self) -> Devices:
        """Devices that parameters are sharded over (tensor parallel and expert parallel), and their platform."""
        return Devices(self.size(MODEL), self.size(EXPERT), self.platform, self.kernel_mode)

    @property
    def rows_over(self) -> str | None:
        """Axis that rows are split over; None if each device has all of them."""
        return DATA if self.data > 1 else None

    def prefill_rows(self, lanes: int, most: int) -> int:
        """Return the rows of the prefill pool: at most `most` and at most `lanes`, but at least one on every device."""
        return min(lanes, -(-most // self.data) * self.data)

    def over(self, *dimensions: str | None) -> NamedSharding | None:
        """Return the sharding of dimensions over these axes, None for a whole dimension; None on one device."""
        if self.mesh is None:
            return None
        split = [axis if axis is not None and self.mesh.shape[axis] > 1 else None for axis in dimensions]
        while split and split[-1] is None:
            split.pop()
        return NamedSharding(self.mesh, PartitionSpec(*split))

    def dimensions(self, array: Any) -> list[str | None]:
        """Return for each dimension of an array on these devices the axis that it is split over, or None."""
        split = [] if self.mesh is None else list(array.sharding.spec)
        return split + [None] * (len(array.shape) - len(split))

    def shards(
        self, weights: Sequence[Weight], sharded_dims: Mapping[ParameterPath, tuple[ShardedDim, ...]]
    ) -> dict[ParameterPath, Shards]:
        """Return the layout of parameters: sharded as `sharded_dims` says, replicated along all other axes."""
        found: dict[ParameterPath, Shards] = {}
        for weight in weights:
            split: list[str | None] = [None] * len(weight.shape)
            own = tuple(sharded for sharded in sharded_dims.get(weight.path, ()) if self.size(sharded.axis) > 1)
            for sharded in own:
                split[sharded.dim] = sharded.axis
            found[weight.path] = Shards(tuple(weight.shape), own, self.over(*split))
        return found

    def of_operand(self, operand: Any) -> NamedSharding | None:
        """Return the sharding of an operand of a step: scalars are replicated, all others have lanes on axis 0."""
        return self.over(DATA) if np.ndim(operand) else self.over()

    def put(self, inputs: T) -> T:
        """Put the host arrays of a step's inputs on the devices of a mesh, together.

        On one device they stay on the host: a call of a program puts them in a tenth of the time.
        """
        if self.mesh is None:
            return inputs
        leaves, tree = jax.tree.flatten(inputs)
        host = [leaf for leaf in leaves if not isinstance(leaf, jax.Array)]
        placed = iter(self._put(host, list(map(self.of_operand, host))))
        return tree.unflatten(leaf if isinstance(leaf, jax.Array) else next(placed) for leaf in leaves)

    def put_whole(self, tree: Any) -> Any:
        """Put host arrays on every device of a mesh, in one call; as `put` on one device."""
        if self.mesh is None:
            return tree
        return self._put(tree, jax.tree.map(lambda _: self.over(), tree))

    def ahead(self, inputs: T) -> T:
        """Put inputs of many steps on devices once.

        With several processes they stay on the host, to be compared.
        """
        if self.several_processes:
            return inputs
        return jax.device_put(inputs) if self.mesh is None else self.put(inputs)

    def _put(self, tree: Any, places: Any) -> Any:
        """Put host arrays where `places` says, which has a sharding for each."""
        if not self.several_processes:
            return jax.device_put(tree, places)
        # device_put would first compare the arrays across processes, with a program for each.
        return jax.tree.map(
            lambda one, place: jax.make_array_from_callback(one.shape, place, one.__getitem__), tree, places
        )

    def require_one_process(self, what: str) -> None:
        """Raise ValueError if arrays of other processes would be needed by this one."""
        if self.several_processes:
            raise ValueError(f"{what}: not supported for a model over several processes; load it in one")

    def examples(self, inputs: T, whole: bool = False) -> T:
        """Return inputs to compile a program for; on a mesh their types and shardings."""
        if self.mesh is None:
            return inputs

        def example(one: Any) -> jax.ShapeDtypeStruct:
            sharding = self.over() if whole else self.of_operand(one)
            return jax.ShapeDtypeStruct(one.shape, one.dtype, sharding=sharding)

        return jax.tree.map(example, inputs)


ONE_DEVICE = Placement()


def place(mesh: Any, lanes: int, sanitize: bool, kernels: str | None = None) -> Placement:
    """Return the placement for `load(mesh=)`; None is JAX's default device.

    Raises:
        TypeError: it is not a mesh.
        ValueError: other axes, lanes that do not divide over it, or the sanitizer, which runs on one device.
    """
    if mesh is None:
        return Placement(kernels=kernels)
    full = with_all_axes(mesh)
    there = {device.process_index for device in full.devices.flat}
    if len(there) < jax.process_count() and there != {jax.process_index()}:
        raise ValueError(
            f"mesh: it has devices of {len(there)} of {jax.process_count()} processes; expected devices of each, or of "
            "this one alone"
        )
    placement = Placement(full, kernels=kernels)
    check_lanes(lanes, placement.data)
    if sanitize:
        raise ValueError("sanitize: the sanitizer follows rows on one device; load without mesh to use it")
    return placement


def check_lanes(lanes: int, data: int) -> None:
    """Raise ValueError if lanes cannot be split evenly over devices."""
    if lanes % data:
        below = lanes // data * data
        fitting = [str(count) for count in (below, below + data) if count]
        raise ValueError(
            f"lanes: {lanes} lanes cannot be split over data={data} devices; {' or '.join(fitting)} would do"
        )


def numbers_on_a_device(one: Any) -> int:
    """Return the number of elements that one device has of an array, or of its type; all of them without a sharding."""
    return math.prod(one.shape if one.sharding is None else one.sharding.shard_shape(one.shape))


def bytes_on_a_device(tree: Any) -> int:
    """Return the bytes that one device has of all arrays, or types, of a tree."""
    return sum(numbers_on_a_device(one) * one.dtype.itemsize for one in jax.tree.leaves(tree))
