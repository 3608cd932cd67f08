"""Ground truth about a step: change one lane, run again, compare all other bits.

The promises of the contract are tested: another lane's output and rows stay the same (isolation), rows
outside the slot map stay as they were (frame), and so do the rows of a lane of length 0 (idle). A count of accepted
tokens is never negative, and 0 for a lane of length 0. Lanes on the null row and the null row itself are outside every
promise. With page tables lanes may read pages of another lane or of no lane; these pages and the null page stay.

More than 300 lines: one table of promises, with a row for every kind of entry.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy_interpreter import NotInNumpy, evaluate

from ir_passes import Lane, LaneContract, Packed, PageTable, Pool, Shared, SlotMap, Unspecified
from ir_passes.contract.contract import BoundContract
from ir_passes.jaxpr import ir

Leaves = list[np.ndarray]
Draw = Callable[[np.random.Generator], tuple[Any, ...]]


class Leak(NamedTuple):
    """An observed leak.

    Attributes:
        change: the change, as "inputs of lane 2".
        place: the value that changed and must not, as "result[1], row 3".
        run: number of the run among those of all draws.
    """

    change: str
    place: str
    run: int


@dataclass(frozen=True)
class Run:
    """A run of a step: its arguments, and lanes that may differ.

    Attributes:
        change: description of the change.
        leaves: the arguments, flat.
        lanes: lanes that may differ.
    """

    change: str
    leaves: Leaves
    lanes: frozenset[int] = frozenset()


def maps(bound: BoundContract, leaves: Leaves, group: str) -> tuple[np.ndarray, np.ndarray]:
    """The rows that each lane reads and writes in a group, its second ones apart."""
    read = write = np.arange(bound.lanes)
    for spec, leaf in zip(bound.inputs, leaves, strict=True):
        if isinstance(spec.entry, SlotMap) and group in spec.entry.names and not spec.entry.disjoint:
            rows = _in_the_whole_pool(bound, spec.entry, group, leaf)
            read = read if spec.entry.role == "write" else rows
            write = write if spec.entry.role == "read" else rows
    return read, write


def second_rows(bound: BoundContract, leaves: Leaves, group: str) -> list[np.ndarray]:
    """Return each lane's second rows, by slot maps that are declared disjoint."""
    named = zip(bound.inputs, leaves, strict=True)
    return [
        leaf
        for spec, leaf in named
        if isinstance(spec.entry, SlotMap) and spec.entry.disjoint and group in spec.entry.names
    ]


def _in_the_whole_pool(bound: BoundContract, entry: SlotMap, group: str, rows: np.ndarray) -> np.ndarray:
    """Return row numbers of the whole pool for rows counted by device."""
    if entry.local is None:
        return rows
    devices = _rows_of(bound, group) // entry.size
    offset = np.arange(bound.lanes) // (bound.lanes // devices) * entry.size
    return np.where(rows == 0, 0, rows + offset)


def _rows_of(bound: BoundContract, group: str) -> int:
    return next(
        spec.shape[spec.entry.axis]
        for spec in bound.inputs
        if isinstance(spec.entry, Pool) and spec.entry.group == group
    )


def null_rows(bound: BoundContract, group: str) -> list[int]:
    """Return the null rows, one per device; empty if row 0 is ordinary."""
    maps = [spec.entry for spec in bound.inputs if isinstance(spec.entry, SlotMap) and group in spec.entry.names]
    if not any(entry.null for entry in maps):
        return []
    sizes = {
        spec.entry.size for spec in bound.inputs if isinstance(spec.entry, SlotMap) and spec.entry.local is not None
    }
    return [*range(0, _rows_of(bound, group), sizes.pop())] if sizes else [0]


def _has_null_row(entry: Any) -> bool:
    return isinstance(entry, SlotMap) and entry.null


def mapped(bound: BoundContract, group: str) -> bool:
    return any(isinstance(spec.entry, SlotMap) and group in spec.entry.names for spec in bound.inputs)


def segments(bound: BoundContract, leaves: Leaves, layout: str | None = None) -> np.ndarray | None:
    """Return each packed token's lane, N for padding; None without a layout.

    Args:
        layout: its name; the first one of the contract if it is None.
    """
    layout = next((spec.layout for spec in bound.inputs if spec.layout is not None), None) if layout is None else layout
    tokens = [
        spec.tokens
        for spec in (*bound.inputs, *bound.outputs)
        if isinstance(spec.entry, Packed)
        and spec.layout == layout
        and spec.entry.role is None
        and spec.tokens is not None
    ]
    for spec, leaf in zip(bound.inputs, leaves, strict=True):
        if isinstance(spec.entry, Packed) and spec.layout == layout and spec.entry.role == "segment_ids":
            return leaf
        if isinstance(spec.entry, Packed) and spec.layout == layout and spec.entry.role == "cu_seqlens" and tokens:
            return (np.arange(tokens[0])[:, None] >= leaf[None, 1:]).sum(axis=1)
    return None


def _is_packed(entry: Any) -> bool:
    return isinstance(entry, Packed) and entry.role is None


def pages(bound: BoundContract, leaves: Leaves, group: str) -> list[tuple[PageTable, np.ndarray]]:
    """Return a group's page tables with their pages, [lane, page]."""
    specs = zip(bound.inputs, leaves, strict=True)
    tables = [
        (spec.entry, leaf) for spec, leaf in specs if isinstance(spec.entry, PageTable) and group in spec.entry.names
    ]
    segment = segments(bound, leaves) if any(entry.packed for entry, _ in tables) else None

    def by_lane(entry: PageTable, leaf: np.ndarray) -> np.ndarray:
        if not entry.packed:
            return leaf.reshape(bound.lanes, -1)
        assert segment is not None
        lane = np.arange(bound.lanes)[:, None]
        return np.where(lane == segment[None], leaf.reshape(1, -1), entry.size)

    return [(entry, by_lane(entry, leaf)) for entry, leaf in tables]


def named(bound: BoundContract, leaves: Leaves, group: str) -> list[set[int]]:
    """The rows that each lane's pages hold, the null page's too."""
    rows: list[set[int]] = [set() for _ in range(bound.lanes)]
    for entry, leaf in pages(bound, leaves, group):
        for of_lane, row in zip(rows, leaf, strict=True):
            for page in row[row < entry.size].tolist():
                of_lane.update(range(page * entry.page_size, (page + 1) * entry.page_size))
    return rows


def owned(bound: BoundContract, leaves: Leaves, group: str) -> list[set[int]]:
    """Return the writable rows of each lane: in no other lane's pages, not null."""
    rows = named(bound, leaves, group)
    for entry, _ in pages(bound, leaves, group):
        rows = [pages - set(range(entry.page_size)) for pages in rows] if entry.null else rows
    return [pages.difference(*rows[:lane], *rows[lane + 1 :]) for lane, pages in enumerate(rows)]


def row_first(array: np.ndarray, axis: int) -> np.ndarray:
    return np.moveaxis(np.asarray(array), axis, 0)


def _put(leaf: np.ndarray, axis: int, row: int, value: Any) -> np.ndarray:
    new = row_first(leaf.copy(), axis)
    new[row] = value
    return np.moveaxis(new, 0, axis)


def _holders(bound: BoundContract, leaves: Leaves, group: str, row: int) -> set[int]:
    """Return lanes that read or write a row; an idle writer keeps the row."""
    named = (*maps(bound, leaves, group), *second_rows(bound, leaves, group))
    return {lane for rows in named for lane in np.flatnonzero(rows == row).tolist()}


def _poison(value: np.ndarray) -> np.ndarray:
    if jax.numpy.issubdtype(value.dtype, np.floating):
        return np.full_like(value, np.nan)
    return value


def _strange(value: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Replace some numbers by huge ones, negative indices and infinities."""
    if jax.numpy.issubdtype(value.dtype, np.floating):
        numbers = np.array([np.inf, -np.inf, np.nan, 3e38, -3e38, 0.0, 1e-30], np.float32)
    elif np.issubdtype(value.dtype, np.signedinteger):
        numbers = np.array([-1, -2, -5, -(2**31), 2**31 - 1, 0, 1, 2, 7, 100])
    else:
        return value
    return np.where(rng.random(value.shape) < 0.5, rng.choice(numbers, value.shape).astype(value.dtype), value)


def strange(bound: BoundContract, leaves: Leaves, rng: np.random.Generator, lanes: Sequence[int]) -> Leaves:
    """Arguments with strange numbers in the inputs of some lanes."""
    new, groups = list(leaves), {spec.entry.group for spec in bound.inputs if isinstance(spec.entry, Pool)}
    # With a strange position a lane may write to any of its pages, which all have to be its own then.
    anywhere = all(named(bound, leaves, group) == owned(bound, leaves, group) for group in groups)
    for i, spec in enumerate(bound.inputs):
        if not anywhere and np.issubdtype(leaves[i].dtype, np.integer):
            continue
        for lane in lanes:
            if _is_packed(spec.entry):
                new[i] = _tokens_of(bound, new, i, _strange(leaves[i], rng), lane)
            elif isinstance(spec.entry, Lane) and spec.entry.role is None:
                row = _strange(row_first(leaves[i], spec.entry.axis)[lane], rng)
                new[i] = _put(new[i], spec.entry.axis, lane, row)
    return new


def _lane_runs(bound: BoundContract, leaves: Leaves, donor: Leaves, lane: int) -> Iterator[Run]:
    inputs, state = list(leaves), list(leaves)
    holders = {lane}
    for i, spec in enumerate(bound.inputs):
        if _is_packed(spec.entry):
            inputs[i] = _tokens_of(bound, leaves, i, donor[i], lane)
        elif isinstance(spec.entry, Lane):
            inputs[i] = _put(leaves[i], spec.entry.axis, lane, row_first(donor[i], spec.entry.axis)[lane])
        elif isinstance(spec.entry, Pool) and pages(bound, leaves, spec.entry.group):
            for row in owned(bound, leaves, spec.entry.group)[lane]:
                state[i] = _put(state[i], spec.entry.axis, row, row_first(donor[i], spec.entry.axis)[row])
        elif isinstance(spec.entry, Pool):
            row = int(maps(bound, leaves, spec.entry.group)[0][lane])
            if row or not mapped(bound, spec.entry.group) or not null_rows(bound, spec.entry.group):
                state[i] = _put(leaves[i], spec.entry.axis, row, row_first(donor[i], spec.entry.axis)[row])
                holders |= _holders(bound, leaves, spec.entry.group, row)
    yield Run(f"inputs of lane {lane}", inputs, frozenset({lane}))
    poisoned = [
        _tokens_of(bound, leaves, i, _poison(new), lane)
        if _is_packed(spec.entry)
        else _put(new, getattr(spec.entry, "axis", 0), lane, _poison(row_first(new, spec.entry.axis)[lane]))
        if isinstance(spec.entry, Lane)
        else new
        for i, (spec, new) in enumerate(zip(bound.inputs, inputs, strict=True))
    ]
    yield Run(f"NaN in inputs of lane {lane}", poisoned, frozenset({lane}))
    yield Run(f"rows of lane {lane}", state, frozenset(holders))
    merged = [a if a is not leaf else b for a, b, leaf in zip(inputs, state, leaves, strict=True)]
    for i, spec in enumerate(bound.inputs):
        axis = getattr(spec.entry, "axis", 0)
        if _is_packed(spec.entry):
            merged[i] = poisoned[i]
            continue
        if merged[i] is not leaves[i] and isinstance(spec.entry, Pool) and pages(bound, leaves, spec.entry.group):
            for row in owned(bound, leaves, spec.entry.group)[lane]:
                merged[i] = _put(merged[i], axis, row, _poison(row_first(merged[i], axis)[row]))
        elif merged[i] is not leaves[i]:
            row = lane if isinstance(spec.entry, Lane) else int(maps(bound, leaves, spec.entry.group)[0][lane])  # type: ignore[union-attr]  # a pool
            merged[i] = _put(merged[i], axis, row, _poison(row_first(merged[i], axis)[row]))
    yield Run(f"NaN in lane {lane}", merged, frozenset(holders))


def _tokens_of(bound: BoundContract, leaves: Leaves, i: int, donor: np.ndarray, lane: int) -> np.ndarray:
    """Take a lane's tokens from elsewhere; for lane N the padding tokens."""
    entry, segment = bound.inputs[i].entry, segments(bound, leaves, bound.inputs[i].layout)
    assert isinstance(entry, Packed) and segment is not None
    new = row_first(leaves[i].copy(), entry.axis)
    new[segment == lane] = row_first(donor, entry.axis)[segment == lane]
    return np.moveaxis(new, 0, entry.axis)


def _padding_runs(bound: BoundContract, leaves: Leaves, donor: Leaves) -> Iterator[Run]:
    """Other tokens behind the last one, and NaN there."""
    for name, source in (("padding", donor), ("NaN in padding", [_poison(leaf) for leaf in leaves])):
        changed = [
            _tokens_of(bound, leaves, i, source[i], bound.lanes) if _is_packed(spec.entry) else leaf
            for i, (spec, leaf) in enumerate(zip(bound.inputs, leaves, strict=True))
        ]
        yield Run(name, changed)


def _moved_runs(bound: BoundContract, leaves: Leaves, lane: int, rng: np.random.Generator) -> Iterator[Run]:
    """Yield runs with the lane on another, unused row or page."""
    for i, spec in enumerate(bound.inputs):
        if isinstance(spec.entry, PageTable) and not spec.entry.packed:
            pages_in_use = [
                page for table in bound.inputs if isinstance(table.entry, PageTable) for page in leaves[i].flat
            ]
            table_rows = leaves[i].reshape(bound.lanes, -1)
            columns = [k for k, page in enumerate(table_rows[lane]) if 0 < page < spec.entry.size]
            columns = [k for k in columns if (table_rows == table_rows[lane, k]).sum() == 1]
            free = sorted(set(range(1, spec.entry.size)) - {int(page) for page in pages_in_use})
            tables = [table for table in bound.inputs if isinstance(table.entry, PageTable)]
            if columns and free and len(tables) == 1:
                table = table_rows.copy()
                table[lane, rng.choice(columns)] = rng.choice(free)
                new = list(leaves)
                new[i] = table.reshape(leaves[i].shape)
                yield Run(f"{spec.path} of lane {lane}", new, frozenset({lane}))
        if not isinstance(spec.entry, SlotMap) or spec.entry.role == "read" or leaves[i][lane] == 0 or spec.entry.local:
            continue
        named = [(*maps(bound, leaves, group), *second_rows(bound, leaves, group)) for group in spec.entry.names]
        used = {int(row) for several in named for rows in several for row in rows}
        free = [row for row in range(1, spec.entry.size) if row not in used]
        if free:
            new = list(leaves)
            new[i] = _put(leaves[i], 0, lane, np.int32(rng.choice(free)))
            yield Run(f"{spec.path} of lane {lane}", new, frozenset({lane}))


def _others_run(bound: BoundContract, leaves: Leaves) -> Run:
    """Fill rows without a reader with NaN; lanes that write them hold them."""
    new, writers = list(leaves), set[int]()
    for i, spec in enumerate(bound.inputs):
        if isinstance(spec.entry, Pool) and (tables := pages(bound, leaves, spec.entry.group)):
            used = set().union(*named(bound, leaves, spec.entry.group))
            null = max(entry.page_size for entry, _ in tables)
            for row in set(range(null, leaves[i].shape[spec.entry.axis])) - used:
                new[i] = _put(new[i], spec.entry.axis, row, _poison(row_first(new[i], spec.entry.axis)[row]))
        if isinstance(spec.entry, Pool) and mapped(bound, spec.entry.group):
            read, _ = maps(bound, leaves, spec.entry.group)
            second = [row for rows in second_rows(bound, leaves, spec.entry.group) for row in rows.tolist()]
            for row in set(range(leaves[i].shape[spec.entry.axis])) - {*read.tolist(), *second}:
                value = row_first(new[i], spec.entry.axis)[row]
                new[i] = _put(new[i], spec.entry.axis, row, _poison(value))
                writers |= _holders(bound, leaves, spec.entry.group, row)
    return Run("NaN in rows that no lane reads", new, frozenset(writers))


def runs(bound: BoundContract, draw: Draw, seed: int) -> list[Run]:
    """The unchanged run of one draw, then every change of it."""
    rng = np.random.default_rng((seed, 1))
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(draw(np.random.default_rng(seed)))]
    donor = [np.asarray(leaf) for leaf in jax.tree.leaves(draw(np.random.default_rng((seed, 2))))]
    runs = [Run("nothing", leaves), _others_run(bound, leaves)]
    left_out = [isinstance(spec.entry, Unspecified) for spec in bound.inputs]
    if any(left_out):
        replaced = [b if out else a for a, b, out in zip(leaves, donor, left_out, strict=True)]
        runs.append(Run("arguments that the contract leaves out", replaced))
    if segments(bound, leaves) is not None:
        runs += _padding_runs(bound, leaves, donor)
    for lane in range(bound.lanes):
        runs += _lane_runs(bound, leaves, donor, lane)
        runs += _moved_runs(bound, leaves, lane, rng)
    rng = np.random.default_rng((seed, 3))
    for lane in range(bound.lanes):
        odd = strange(bound, leaves, rng, [lane])
        runs.append(Run(f"strange numbers in inputs of lane {lane}", odd, frozenset({lane})))
    return runs


IDLE_ROLES = "length", "active"


def idle_lanes_of(bound: BoundContract, run: Run) -> set[int]:
    """Return lanes of length 0, inactive lanes, and lanes behind the number of active ones."""
    counts = [leaf for spec, leaf in zip(bound.inputs, run.leaves, strict=True) if spec.entry == Shared("active_count")]
    idle = {lane for count in counts for lane in range(max(0, int(count)), bound.lanes)}
    return idle | _lanes_where(bound, run, lambda entry: getattr(entry, "role", None) in IDLE_ROLES)


def _lanes_where(bound: BoundContract, run: Run, entry: Callable[[Any], bool]) -> set[int]:
    """Return the lanes with zero in an array of this kind of entry."""
    named = [leaf for spec, leaf in zip(bound.inputs, run.leaves, strict=True) if entry(spec.entry)]
    return {lane for leaf in named for lane in np.flatnonzero(leaf == 0).tolist()}


class Claims:
    """The contract's claims about the results of many runs.

    Args:
        bound: the contract.
        changes: the runs of each draw, the unchanged one first.

    Attributes:
        runs: of all draws.
        leaves: their arguments, stacked.
        base: for each run, the index of the unchanged run of its draw.
    """

    def __init__(self, bound: BoundContract, changes: Sequence[Sequence[Run]]):
        self.bound = bound
        self.runs = [run for draw in changes for run in draw]
        self.leaves = [np.stack(leaves) for leaves in zip(*(run.leaves for run in self.runs), strict=True)]
        begins = np.cumsum([0, *map(len, changes)])
        self.base = np.repeat(begins[:-1], np.diff(begins))
        self._donor = {successor: i for i, successor in bound.successors.items()}
        self._masks = [self._mask(i) for i in range(len(bound.outputs))]

    def _mask(self, output: int) -> tuple[np.ndarray, np.ndarray]:
        """Return masks [run, row]: equal to the unchanged run; equal to before the step."""
        spec = self.bound.outputs[output]
        size = spec.shape[spec.entry.axis] if isinstance(spec.entry, Lane | Packed | Pool) else 0
        unchanged, frozen = (np.zeros((len(self.runs), size), bool) for _ in range(2))
        for i, run in enumerate(self.runs):
            segment = segments(self.bound, run.leaves, spec.layout)
            if isinstance(spec.entry, Packed) and segment is not None:
                unchanged[i] = (segment < self.bound.lanes) & ~np.isin(segment, [*run.lanes])
            elif isinstance(spec.entry, Lane):
                null = _lanes_where(self.bound, run, lambda entry: _has_null_row(entry) and not entry.disjoint)
                if segment is not None:
                    null |= set(range(self.bound.lanes)) - set(segment.tolist())
                unchanged[i] = [lane not in run.lanes and lane not in null for lane in range(size)]
            elif isinstance(spec.entry, Pool) and pages(self.bound, run.leaves, spec.entry.group):
                idle = idle_lanes_of(self.bound, run)
                frozen[i] = True
                for lane, rows in enumerate(owned(self.bound, run.leaves, spec.entry.group)):
                    frozen[i, [*rows]] = lane in idle
                    unchanged[i, [*rows]] = lane not in run.lanes
            elif isinstance(spec.entry, Pool):
                idle = idle_lanes_of(self.bound, run)
                group = spec.entry.group
                _, write = maps(self.bound, run.leaves, group)
                written = (*second_rows(self.bound, run.leaves, group), write)
                owner = {int(row): lane for rows in written for lane, row in enumerate(rows)}
                null = null_rows(self.bound, group) if mapped(self.bound, group) else []
                for row in sorted(set(range(size)) - set(null)):
                    frozen[i, row] = row not in owner or owner[row] in idle
                    unchanged[i, row] = row in owner and owner[row] not in run.lanes
        return unchanged, frozen

    def broken(self, results: Sequence[np.ndarray]) -> Iterator[Leak]:
        """Everything that breaks the contract; results are stacked over runs, or the same for all."""
        for output, spec in enumerate(self.bound.outputs):
            if isinstance(spec.entry, Unspecified):
                every = np.broadcast_to(results[output], (len(self.runs), *spec.shape)).reshape(len(self.runs), -1)
                differs = (_bytes(every, 1) != _bytes(every[self.base], 1)).any(axis=(1, 2))
                yield from (Leak(self.runs[run].change, spec.path, run) for run in np.flatnonzero(differs).tolist())
            if not isinstance(spec.entry, Lane | Packed | Pool):
                continue
            axis = spec.entry.axis + 1
            result = np.broadcast_to(results[output], (len(self.runs), *spec.shape))
            output_bytes = _bytes(result, axis)
            unchanged, frozen = self._masks[output]
            changed = unchanged & (output_bytes != output_bytes[self.base]).any(axis=2)
            if output in self._donor:
                changed |= frozen & (output_bytes != _bytes(self.leaves[self._donor[output]], axis)).any(axis=2)
            noun = "row" if isinstance(spec.entry, Pool) else "token" if isinstance(spec.entry, Packed) else "lane"
            for run, row in np.argwhere(changed).tolist():
                why = " that had to stay as it was" if noun == "row" and frozen[run, row] else ""
                yield Leak(self.runs[run].change, f"{spec.path}, {noun} {row}{why}", run)
            if getattr(spec.entry, "role", None) == "accepted":
                yield from self._miscounted(spec.path, result)

    def _miscounted(self, path: str, counts: np.ndarray) -> Iterator[Leak]:
        for i, (run, of_lanes) in enumerate(zip(self.runs, counts, strict=True)):
            idle = idle_lanes_of(self.bound, run)
            for lane in np.flatnonzero(of_lanes).tolist():
                if of_lanes[lane] < 0 or lane in idle:
                    yield Leak(run.change, f"{path}, lane {lane} with a count of {of_lanes[lane]}", i)


def _bytes(stacked: np.ndarray, axis: int) -> np.ndarray:
    """Return bytes [run, row, byte] with canonical NaN: numpy's loops give them different signs."""
    rows = np.moveaxis(stacked, axis, 1)
    if jax.numpy.issubdtype(rows.dtype, np.floating):
        rows = np.where(rows != rows, np.asarray(np.nan, rows.dtype), rows)
    return np.ascontiguousarray(rows).reshape(*rows.shape[:2], -1).view(np.uint8)


def leaks(
    step: Callable[..., Any],
    contract: LaneContract,
    draw: Draw,
    seeds: Sequence[int] = (0, 1, 2),
    compiled: bool = False,
    first: bool = False,
) -> list[Leak]:
    """Run a step with all changes of several draws and report breaches of its contract.

    Args:
        step: a step.
        contract: its contract.
        draw: random numbers -> arguments, with another slot map and other weights each time.
        seeds: draws.
        compiled: run the step compiled by XLA; otherwise numpy runs its jaxpr, all changes at once,
            and XLA only steps with a primitive that numpy has no rule for.
        first: stop at the first draw that shows a leak.
    """
    example = draw(np.random.default_rng(seeds[0]))
    bound = contract.bind(step, example)
    tree = jax.tree.structure(example)
    jitted = jax.jit(step)
    program = ir.trace(step, *example)

    def run(claims: Claims) -> Leaves:
        if not compiled:
            with contextlib.suppress(NotInNumpy):
                return evaluate(program, claims.leaves)
        results = [jax.tree.leaves(jitted(*jax.tree.unflatten(tree, each.leaves))) for each in claims.runs]
        return [np.stack(leaves) for leaves in zip(*jax.device_get(results), strict=True)]

    leaks: list[Leak] = []
    for seed in seeds:
        claims = Claims(bound, [runs(bound, draw, seed)])
        leaks += claims.broken(run(claims))
        if leaks and first:
            break
    return leaks
