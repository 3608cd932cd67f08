"""Layout of packed parameters: the arrays of each on one device, or sharded over a mesh like the plain parameter.

Codes, scales and zero points are sharded alike. A dimension of rows is that of the plain parameter. Where the entries
of a row are sharded, no group of entries with one scale may lie on two devices: such groups are divided, and have the
same scale.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from hybridlm.checkpoint.cast import aligned_empty
from hybridlm.checkpoint.shards import Shards, build_together
from hybridlm.quantised.packed import MIN_GROUP, PackedForm, codes_dtype
from models import Segment, ShardedDim
from models.ops.quantised_codes import TWO_IN_A_BYTE
from models.ops.quantised_weight import QuantisedWeight
from models.weights.sources import ArraySlice

Packed = Literal["in blocks", "whole"]
"""Products of packed weights: a block of rows at a time, as on a CPU, or dequantised inside of the product."""
Rows = tuple[ArraySlice, Mapping[str, np.ndarray]]
"""Place of some rows in a window of a parameter, and their arrays by role, with all columns."""


class PackedLayout(NamedTuple):
    """A packed parameter in memory.

    Attributes:
        form: in the files.
        groups: scales of a row in memory, a multiple of the scales in the files.
        shards: role of an array ("codes", "scale", "whole", "zero") -> its layout over the devices.
        dtype: that its numbers are rounded to in products.
        products: how products are computed.
    """

    form: PackedForm
    groups: int
    shards: Mapping[str, Shards]
    dtype: str
    products: Packed

    def types(self) -> QuantisedWeight:
        """Return the parameter with types in the place of arrays."""
        kinds = _kinds(self.form)
        types = {
            role: jax.ShapeDtypeStruct(one.global_shape, kinds[role], sharding=one.sharding)
            for role, one in self.shards.items()
        }
        return self._weight(types)

    def build(self, read: Callable[[ArraySlice], Iterable[Rows]]) -> QuantisedWeight:
        """Return the parameter on its devices.

        Args:
            read: window of the rows of the parameter -> pieces that fill it, with the groups of the files.
        """
        kinds = _kinds(self.form)
        # An array of one column for each row has no sharded columns.
        whole = next(iter(self.shards.values()))
        last = len(whole.shape) - 1
        by_rows = Shards(
            (*whole.shape[:-1], 1), tuple(one for one in whole.sharded_dims if one.dim != last), whole.sharding
        )

        def host(places: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
            results = {role: aligned_empty(one.local_shape, kinds[role]) for role, one in self.shards.items()}
            columns = {role: list(_columns(one, places[role])) for role, one in self.shards.items()}
            for window, target in by_rows.windows((*places["codes"][:-1], 0)):
                for place, arrays in read(window):
                    for role, array in arrays.items():
                        into = results[role][(*target, ...)][(*place[:-1], ...)]
                        if role in ("scale", "zero") and self.groups != self.form.groups:
                            array = np.repeat(array, self.groups // self.form.groups, axis=-1)
                        for taken, put in columns[role]:
                            into[..., put] = array[..., taken]
            return results

        return self._weight(jax.block_until_ready(build_together(self.shards, host)))

    def local_bytes(self) -> int:
        """Return the bytes on one device."""
        kinds = _kinds(self.form)
        return sum(one.local_bytes(kinds[role]) for role, one in self.shards.items())

    def _weight(self, arrays: Mapping[str, jax.Array | jax.ShapeDtypeStruct]) -> QuantisedWeight:
        codes, scale, whole, zero = (arrays.get(role) for role in ("codes", "scale", "whole", "zero"))
        return QuantisedWeight(codes, scale, whole, zero, self.form.kind, self.dtype, self.products == "in blocks")


def packed_layout(
    form: PackedForm, own: Shards, dtype: str = "float32", products: Packed = "whole"
) -> PackedLayout | None:
    """Return the layout of a packed parameter; None where devices divide its groups too finely to keep it packed.

    Args:
        form: in the files.
        own: layout of the plain parameter.
        dtype, products: as for `PackedLayout`.
    """
    last = len(own.shape) - 1
    rows = tuple(one for one in own.sharded_dims if one.dim != last)
    across = next((one for one in own.sharded_dims if one.dim == last), None)
    group = form.inputs // form.groups
    if across is not None:
        assert own.sharding is not None
        devices = own.sharding.mesh.shape[across.axis]
        ends = {
            end for device in range(devices) for one in across.slices(device, devices) for end in (one.start, one.stop)
        }
        group = math.gcd(group, *ends)
        if group < MIN_GROUP or (form.kind in TWO_IN_A_BYTE and group % 2):
            return None
    groups = form.inputs // group
    in_a_byte = 2 if form.kind in TWO_IN_A_BYTE else 1
    # Role -> entries of a row of the parameter for each entry of the array; a row has one second scale.
    steps = {"codes": in_a_byte, "scale": group}
    steps |= {} if form.zero is None else {"zero": group}
    shards = {role: _narrowed(own, rows, across, step) for role, step in steps.items()}
    if form.whole:
        sharding = own.sharding and NamedSharding(own.sharding.mesh, PartitionSpec(*own.sharding.spec[:last]))
        shards["whole"] = Shards((*own.shape[:-1], 1), rows, sharding)
    return PackedLayout(form, groups, shards, dtype, products)


def _narrowed(own: Shards, rows: tuple[ShardedDim, ...], across: ShardedDim | None, step: int) -> Shards:
    """Return a layout in which `step` entries of a row are one."""
    shape = (*own.shape[:-1], own.shape[-1] // step)
    if across is None:
        return Shards(shape, rows, own.sharding)
    assert own.sharding is not None
    return Shards(shape, (*rows, narrowed(across, step, own.sharding.mesh.shape[across.axis])), own.sharding)


def narrowed(dimension: ShardedDim, step: int, devices: int) -> ShardedDim:
    """Return a dimension in which `step` entries are one; what each of some devices has must be a multiple of it."""
    segments = tuple(
        # What one device has is the finest unit that is needed.
        Segment(one.size // step, devices if one.units % devices == 0 else one.units, one.replicable)
        for one in dimension.segments
    )
    return ShardedDim(dimension.dim, dimension.axis, segments)


def _columns(shards: Shards, at: tuple[int, ...]) -> Iterator[tuple[slice, slice]]:
    """Yield the pieces of the last dimension of a shard: where they are in the whole array and in the shard."""
    last = len(shards.shape) - 1
    only = Shards(shards.shape, tuple(one for one in shards.sharded_dims if one.dim == last), shards.sharding)
    for whole, local in only.windows((0,) * last + (at[last],)):
        yield whole[last], local[last]


def _kinds(form: PackedForm) -> dict[str, np.dtype]:
    codes = codes_dtype(form.kind)
    zero = codes if form.zero is None else np.dtype(form.zero)
    return {"codes": codes, "scale": jnp.dtype(form.scale_dtype), "whole": np.dtype("float32"), "zero": zero}
