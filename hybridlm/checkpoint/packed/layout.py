"""Layout of packed parameters.

Codes, scales and zero points are sharded like the plain parameter; devices that divide a group have copies of its
scale.
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
"""Products of packed weights: by blocks of rows (CPU), or dequantised inside."""
Rows = tuple[ArraySlice, Mapping[str, np.ndarray]]
"""Place of rows in a parameter's window, and their arrays by role, with all columns."""


class PackedLayout(NamedTuple):
    """A packed parameter in memory.

    Attributes:
        groups: scales of a row, a multiple of the files'.
        shards: by role ("codes", "scale", "whole", "zero").
        dtype: of rounded numbers in products.
    """

    form: PackedForm
    groups: int
    shards: Mapping[str, Shards]
    dtype: str
    products: Packed

    def types(self) -> QuantisedWeight:
        kinds = _kinds(self.form)
        types = {
            role: jax.ShapeDtypeStruct(shards.global_shape, kinds[role], sharding=shards.sharding)
            for role, shards in self.shards.items()
        }
        return self._weight(types)

    def build(self, read: Callable[[ArraySlice], Iterable[Rows]]) -> QuantisedWeight:
        """Build the parameter from the pieces of each window of rows."""
        kinds = _kinds(self.form)
        shards = next(iter(self.shards.values()))
        last = len(shards.shape) - 1
        rows = tuple(sharded for sharded in shards.sharded_dims if sharded.dim != last)
        by_rows = Shards((*shards.shape[:-1], 1), rows, shards.sharding)

        def host(places: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
            results = {role: aligned_empty(shards.local_shape, kinds[role]) for role, shards in self.shards.items()}
            columns = {role: list(_columns(shards, places[role])) for role, shards in self.shards.items()}
            for window, target in by_rows.windows((*places["codes"][:-1], 0)):
                for place, arrays in read(window):
                    assert arrays.keys() == results.keys(), f"expected {[*results]}, got {[*arrays]}"
                    for role, array in arrays.items():
                        into = results[role][(*target, ...)][(*place[:-1], ...)]
                        if role in ("scale", "zero") and self.groups != self.form.groups:
                            array = np.repeat(array, self.groups // self.form.groups, axis=-1)
                        for source, place_in_shard in columns[role]:
                            into[..., place_in_shard] = array[..., source]
            return results

        return self._weight(jax.block_until_ready(build_together(self.shards, host)))

    def local_bytes(self) -> int:
        kinds = _kinds(self.form)
        return sum(shards.local_bytes(kinds[role]) for role, shards in self.shards.items())

    def _weight(self, arrays: Mapping[str, jax.Array | jax.ShapeDtypeStruct]) -> QuantisedWeight:
        codes, scale, matrix_scale, zero = (arrays.get(role) for role in ("codes", "scale", "whole", "zero"))
        return QuantisedWeight(
            codes, scale, matrix_scale, zero, self.form.kind, self.dtype, self.products == "in blocks"
        )


def packed_layout(
    form: PackedForm, plain: Shards, dtype: str = "float32", products: Packed = "whole"
) -> PackedLayout | None:
    """Return a packed parameter's layout; None if devices divide its groups too finely."""
    last = len(plain.shape) - 1
    rows = tuple(sharded for sharded in plain.sharded_dims if sharded.dim != last)
    across = next((sharded for sharded in plain.sharded_dims if sharded.dim == last), None)
    group = form.inputs // form.groups
    if across is not None:
        assert plain.sharding is not None
        devices = plain.sharding.mesh.shape[across.axis]
        slices = (part for device in range(devices) for part in across.slices(device, devices))
        ends = {end for part in slices for end in (part.start, part.stop)}
        group = math.gcd(group, *ends)
        if group < MIN_GROUP or (form.kind in TWO_IN_A_BYTE and group % 2):
            return None
    groups = form.inputs // group
    # Role -> entries of a parameter's row for each entry of the array; a row has one second scale.
    steps = {"codes": 2 if form.kind in TWO_IN_A_BYTE else 1, "scale": group, "zero": group}
    shards = {role: _narrowed(plain, rows, across, steps[role]) for role in form.roles if role != "whole"}
    if form.has_matrix_scale:
        sharding = plain.sharding and NamedSharding(plain.sharding.mesh, PartitionSpec(*plain.sharding.spec[:last]))
        shards["whole"] = Shards((*plain.shape[:-1], 1), rows, sharding)
    return PackedLayout(form, groups, shards, dtype, products)


def _narrowed(plain: Shards, rows: tuple[ShardedDim, ...], across: ShardedDim | None, step: int) -> Shards:
    shape = (*plain.shape[:-1], plain.shape[-1] // step)
    if across is None:
        return Shards(shape, rows, plain.sharding)
    assert plain.sharding is not None
    return Shards(shape, (*rows, narrowed(across, step, plain.sharding.mesh.shape[across.axis])), plain.sharding)


def narrowed(dimension: ShardedDim, step: int, devices: int) -> ShardedDim:
    """Return a dimension with one entry for `step` entries of each device."""
    segments = tuple(
        # The entries of one device are the finest unit.
        Segment(segment.size // step, devices if segment.units % devices == 0 else segment.units, segment.replicable)
        for segment in dimension.segments
    )
    return ShardedDim(dimension.dim, dimension.axis, segments)


def _columns(shards: Shards, start: tuple[int, ...]) -> Iterator[tuple[slice, slice]]:
    """Yield the pieces of a shard's last dimension: place in array and shard."""
    last = len(shards.shape) - 1
    columns = tuple(sharded for sharded in shards.sharded_dims if sharded.dim == last)
    for source, target in Shards(shards.shape, columns, shards.sharding).windows((0,) * last + (start[last],)):
        yield source[last], target[last]


def _kinds(form: PackedForm) -> dict[str, np.dtype]:
    codes = codes_dtype(form.kind)
    zero = codes if form.zero is None else np.dtype(form.zero)
    return {"codes": codes, "scale": jnp.dtype(form.scale_dtype), "whole": np.dtype("float32"), "zero": zero}
