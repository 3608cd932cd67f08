"""One form for gather, scatter and dynamic slices, with the places that it names."""

import math
from collections.abc import Hashable, Iterator
from dataclasses import dataclass

from jax.lax import GatherDimensionNumbers, GatherScatterMode

from ir_passes.contract.statements import Assumption
from ir_passes.proof import refusals
from ir_passes.proof.assumed import assume_at
from ir_passes.proof.owners import Common, LaneRows, Mixed, OneLane, Owner, Symbol, axis_of, moved
from ir_passes.proof.site import Site
from ir_passes.proof.uniformity import constant
from ir_passes.proof.values import Columns, Constant, Iota, PageEntry, SlotEntry, Value
from ir_passes.proof.views import View, block, reshaped

Shape = tuple[int, ...]
MODES = (GatherScatterMode.CLIP, GatherScatterMode.FILL_OR_DROP, GatherScatterMode.PROMISE_IN_BOUNDS)
"""Modes for indices out of bounds with a documented meaning."""
_FILLED = ("filled out of bounds",)


@dataclass(frozen=True)
class Access:
    """The pairing of an operand's elements with a read's result or a write's updates.

    Attributes:
        full: shape of the operand.
        sizes: of the window along each operand dimension.
        columns: operand dimension -> its index.
        window: operand dimension -> window dimension, without dropped dimensions.
        paired: batching dimension of the operand -> its dimension of the window array.
        index_axes: window dimension for each axis of the indices.
        drops: an index out of bounds reads a fill value or is not written; otherwise it is clamped.
        index_shape: the last axis has an index's components.
    """

    full: Shape
    sizes: Shape
    columns: dict[int, Value]
    window: dict[int, int]
    paired: dict[int, int]
    index_axes: tuple[int, ...]
    drops: bool
    index_shape: Shape
    window_shape: Shape

    @property
    def scalar(self) -> bool:
        return all(size == 1 for size in self.index_shape[:-1])

    def index_owner(self, dim: int) -> Owner:
        owner = self.columns[dim].owner
        axis = axis_of(owner)
        return owner if axis is None else moved(owner, self.index_axes[axis])

    def owners(self, site: Site, without: int | None = None) -> Owner:
        return site.join(*(self.index_owner(dim) for dim in self.columns if dim != without))

    def reveals_places(self, owner: Owner, without: int | None = None) -> bool:
        """True if a shared index reveals an order that depends on all lanes."""
        if not isinstance(owner, LaneRows) or owner.order is None:
            return False
        shared = [v for dim, v in self.columns.items() if dim != without and isinstance(v.owner, Common)]
        return not self.scalar and any(not constant(value, self.index_shape) for value in shared)

    def whole(self, dim: int) -> bool:
        """True if the window covers a dimension, and is not the only row by slot."""
        index = self.columns.get(dim)
        is_only_row = self.full[dim] == 1 and index is not None and isinstance(index.fact, SlotEntry | PageEntry)
        return dim in self.window and self.sizes[dim] == self.full[dim] and not is_only_row

    def step(self, dim: int) -> tuple:
        indices = tuple((d, value.number) for d, value in sorted(self.columns.items()) if d != dim)
        kept_dims = tuple(sorted(self.window.items())), tuple(sorted(self.paired.items()))
        return ("rows", dim, self.full, self.sizes, kept_dims, self.index_axes, indices)

    def taken(self, view: View, dim: int, row: View = ()) -> View:
        """Return the view after this read; `row`: step for the index along `dim`, or ()."""
        fills = self.drops and not all(self.inside(other) for other in self.columns if other != dim)
        if self.is_block:
            part = block(view, dim, self.full, self.sizes, self._places(dim))
            view = reshaped((*part, *row), self.sizes, self.window_shape)
        else:
            view = (*view, self.step(dim), *row)
        return (*view, _FILLED) if fills else view

    @property
    def is_block(self) -> bool:
        """True if the window is one block of the operand, with its axes in order."""
        axes = [self.window[dim] for dim in sorted(self.window)]
        return not self.paired and self.scalar and axes == sorted(axes)

    def _places(self, excluded_dim: int) -> Iterator[tuple[int, Hashable]]:
        """Yield a block's start along each axis with several possible starts."""
        for dim, value in self.columns.items():
            start = constant_of(value)
            if dim != excluded_dim and not (start == 0 and self.sizes[dim] == self.full[dim]):
                yield dim, ("value", value.number) if start is None else start

    def put(self, view: View, dim: int, row: View = ()) -> View | None:
        """Return the view after this write puts a part back; None for another place."""
        steps = (self.step(dim), *row)
        if self.is_block:
            view = reshaped(view, self.window_shape, self.sizes)
            steps = (*block((), dim, self.full, self.sizes, self._places(dim)), *row)
        length = len(view) - len(steps)
        return view[:length] if length >= 0 and view[length:] == steps else None

    def inside(self, dim: int) -> bool:
        bounds = self.columns[dim].range
        return bounds is not None and 0 <= bounds[0] and bounds[1] <= self.full[dim] - self.sizes[dim]

    def all_inside(self) -> bool:
        return all(self.inside(dim) for dim in self.columns)

    def all_outside(self) -> bool:
        """True if an index is always out of bounds."""
        return self.drops and any(
            value.range is not None and (value.range[0] > self.full[d] - self.sizes[d] or value.range[1] < 0)
            for d, value in self.columns.items()
        )


def constant_of(value: Value) -> int | None:
    if isinstance(value.owner, Common) and value.range is not None and value.range[0] == value.range[1]:
        return value.range[0]
    return None


def lane_at(access: Access, dim: int, rows: LaneRows) -> OneLane | None:
    index = access.columns[dim]
    if rows.order is not None or not isinstance(index.owner, Common):
        return None
    constant = constant_of(index)
    if constant is not None:
        lane = OneLane(rows.start + constant // rows.inner, rows.split, packed=rows.packed)
        return lane if access.inside(dim) else None
    if access.scalar and rows.inner == 1 and rows.start == 0:
        return OneLane(Symbol(index.number, access.full[dim]), rows.split, packed=rows.packed)
    return None


def _split_columns(site: Site, indices: Value, count: int, last: int) -> list[Value]:
    """Split an index array into one array per dimension; `last` is the components' axis."""
    if axis_of(indices.owner) == last:
        indices = indices.replace(owner=site.mixed(*refusals.ONE_PLACE), fact=None)
    if isinstance(indices.fact, Iota) and indices.fact.axis == last:
        indices = indices.replace(fact=None)
    if isinstance(indices.fact, Columns) and len(indices.fact.values) == count:
        return list(indices.fact.values)
    if count == 1:
        return [indices]
    fact = indices.fact if isinstance(indices.fact, SlotEntry | PageEntry | Constant) else None
    numbers = [site.prover.number(("column", k), indices.number) for k in range(count)]
    return [indices.replace(number=number, fact=fact) for number in numbers]


def of_gather(site: Site, indices: Value) -> Access:
    sizes = tuple(map(int, site.params["slice_sizes"]))
    return _indexed(site, indices, site.params["dimension_numbers"], site.shape, sizes)


def of_scatter(site: Site, indices: Value) -> Access:
    n = site.params["dimension_numbers"]
    dims = GatherDimensionNumbers(
        n.update_window_dims, n.inserted_window_dims, n.scatter_dims_to_operand_dims, n.operand_batching_dims,
        n.scatter_indices_batching_dims,
    )  # fmt: skip
    return _indexed(site, indices, dims, site.shapes[2], None)


def _indexed(
    site: Site, indices: Value, dims: GatherDimensionNumbers, window_shape: Shape, sizes: Shape | None
) -> Access:
    """Return an access; `sizes` None: as the window array."""
    full, index_shape = site.shapes[:2]
    offset, indexed = tuple(map(int, dims.offset_dims)), tuple(map(int, dims.start_index_map))
    batch = tuple(d for d in range(len(window_shape)) if d not in offset)
    hidden = {*map(int, dims.collapsed_slice_dims), *map(int, dims.operand_batching_dims)}
    window = dict(zip((d for d in range(len(full)) if d not in hidden), offset, strict=True))
    sizes = sizes or tuple(window_shape[window[d]] if d in window else 1 for d in range(len(full)))
    columns = dict(zip(indexed, _split_columns(site, indices, len(indexed), len(index_shape) - 1), strict=True))
    batching = zip(dims.operand_batching_dims, dims.start_indices_batching_dims, strict=True)
    paired = {int(d): batch[int(axis)] for d, axis in batching}
    drops = site.params["mode"] == GatherScatterMode.FILL_OR_DROP
    return Access(full, sizes, columns, window, paired, batch, drops, index_shape, window_shape)


def of_slice(site: Site, starts: tuple[Value, ...], sizes: Shape) -> Access:
    """Return the access of a dynamic slice or update.

    Starts of whole dimensions are ignored, but not slots.
    """
    full = site.shapes[0]
    identity = {d: d for d in range(len(full))}
    columns = {
        d: value
        for d, value in enumerate(starts)
        if sizes[d] != full[d] or (full[d] == 1 and isinstance(value.fact, SlotEntry | PageEntry))
    }
    return Access(full, sizes, columns, identity, {}, (), False, (len(columns),), sizes)


def check_position(site: Site, operand: Value, access: Access) -> None:
    leaf = site.prover.versions.leaf_of.get(operand.version) if operand.version is not None else None
    if leaf is None:
        return
    bound = site.prover.bound.inputs[leaf]
    dims = getattr(bound.entry, "dims", None)
    if dims is None or bound.shape != access.full or "position" not in dims:
        return
    column = access.columns.get(dims.index("position"))
    if column is not None and constant_of(column) is not None:
        site.report(*refusals.CONSTANT_POSITION(position=constant_of(column), path=bound.path))


def unsorted(site: Site, access: Access) -> Mixed | None:
    """Return the result's owner for lane indices declared sorted.

    If the declaration is wrong, XLA leaves every element unspecified.
    """
    if not site.params.get("indices_are_sorted"):
        return None
    n = site.params["dimension_numbers"]
    batching = n.start_indices_batching_dims if site.name == "gather" else n.scatter_indices_batching_dims
    sorted_count = math.prod(size for axis, size in enumerate(access.index_shape[:-1]) if axis not in batching)
    varying = [value.fact for value in access.columns.values() if constant_of(value) is None]
    counting = varying[0] if len(varying) == 1 else None
    counts_up = isinstance(counting, Iota) and access.index_shape[counting.axis] == sorted_count
    if sorted_count <= 1 or not varying or counts_up:
        return None
    if all(isinstance(value.owner, Common) for value in access.columns.values()):
        assume_at(site, Assumption.SORTED_INDICES)
        return None
    return site.mixed(*refusals.SORTED_INDICES)
