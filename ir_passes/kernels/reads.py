"""Bytes read and written by kernels of a step, counted for given lengths.

A kernel's loads and stores have fixed sizes; how often they run follows from loop counts, computed from known operands:
lengths, positions, and experts that are drawn uniformly. Declared metadata does not count.

More than 300 lines: one interpreter of kernels with its operations.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import jax
import numpy as np

from ir_passes.jaxpr import ir
from ir_passes.jaxpr.bodies import counting_loop
from ir_passes.jaxpr.dtypes import is_key
from ir_passes.jaxpr.rewriting import bytes_of
from ir_passes.kernels.blocks import Blocks
from ir_passes.kernels.memory import UnreadableKernel
from ir_passes.kernels.places import numpy_index, place_of

MAX_KNOWN = 1 << 16
"""Numbers of the largest computed value outside kernels."""
MAX_KNOWN_INSIDE = 1 << 14
"""Numbers of the largest computed value inside a kernel: the mask of a tile."""
MAX_TURNS = 1 << 12
"""Limit on iterations that are run one by one."""
UNKNOWN = None
SEED = 11
"""Seed of the experts that rows choose."""


@dataclass(frozen=True)
class KernelReads:
    """Reads and writes of one kernel.

    Attributes:
        loaded, stored: bytes of all program instances, for each operand and each result.
        shapes, sizes: of each operand; sizes in bytes.
    """

    name: str
    shapes: tuple[tuple[int, ...], ...]
    loaded: tuple[int, ...]
    sizes: tuple[int, ...]
    stored: tuple[int, ...] = ()

    def read(self, cache: int) -> int:
        """Return the bytes read from memory.

        Further loads of operands within `cache` bytes are free.
        """
        pairs = zip(self.loaded, self.sizes, strict=True)
        return sum(min(loaded, size) if size <= cache else loaded for loaded, size in pairs)

    @property
    def written(self) -> int:
        return sum(self.stored)


def kernel_reads(program: ir.ClosedJaxpr, values: Sequence[Any]) -> list[KernelReads]:
    """Return the reads and writes of each countable kernel, in program order.

    Args:
        values: of the step's inputs, if known.
    """
    reads: list[KernelReads] = []
    _Step(reads).run(program.jaxpr, program.consts, values)
    return reads


def _computed(eqn: ir.JaxprEqn, args: Sequence[Any], limit: int) -> list[Any]:
    """Compute results, unknown if an operand is unknown or large."""
    unknowns = [UNKNOWN] * len(eqn.outvars)
    if any(arg is UNKNOWN for arg in args) or any(prod(ir.shape_of(var)) > limit for var in eqn.outvars):
        return unknowns
    if any(is_key(ir.dtype_of(var)) for var in eqn.outvars) or any(True for _ in ir.sub_jaxprs(eqn)):
        return unknowns
    return ir.evaluated(eqn, args)


class _Values:
    limit = MAX_KNOWN

    def _layout_constraint(self, eqn: ir.JaxprEqn, args: list[Any]) -> Sequence[Any]:
        return args

    def run(self, jaxpr: Any, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
        return ir.run(jaxpr, consts, args, self.equation, np.asarray)

    def equation(self, eqn: ir.JaxprEqn, args: list[Any]) -> Sequence[Any]:
        method: Callable[..., Sequence[Any]] | None = getattr(self, f"_{eqn.primitive.name}", None)
        if method is not None:
            return method(eqn, args)
        body = ir.body_of(eqn)
        if body is not None:
            return self.run(body.jaxpr, body.consts, args)
        return _computed(eqn, args, self.limit)


class _Step(_Values):
    """The program of a step; `reads` receives the reads of its kernels."""

    def __init__(self, reads: list[KernelReads]):
        self._reads = reads
        self._counted: dict[Any, tuple[tuple[int, ...], tuple[int, ...]]] = {}  # kernel, known operands -> bytes

    def _top_k(self, eqn: ir.JaxprEqn, args: list[Any]) -> Sequence[Any]:
        """Draw the chosen indices uniformly, if the scores are unknown."""
        results = _computed(eqn, args, self.limit)
        if results[1] is UNKNOWN:
            (*rows, _), (*_, choices) = ir.shape_of(eqn.outvars[1]), ir.shape_of(eqn.invars[0])
            per_row = ir.shape_of(eqn.outvars[1])[-1]
            scores = np.random.default_rng(SEED).random((*rows, choices))
            results[1] = np.argsort(scores, axis=-1)[..., :per_row].astype(np.int32)
        return results

    def _each_body(self, eqn: ir.JaxprEqn, args: list[Any]) -> Sequence[Any]:
        for inner in ir.sub_jaxprs(eqn):
            operands = args[1:] if eqn.primitive.name == "cond" else [UNKNOWN] * len(inner.invars)
            self.run(inner, [UNKNOWN] * len(inner.constvars), operands)
        return [UNKNOWN] * len(eqn.outvars)

    _cond = _while = _scan = _shard_map = _each_body

    def _pallas_call(self, eqn: ir.JaxprEqn, args: list[Any]) -> Sequence[Any]:
        try:
            key = str(eqn.params["jaxpr"]), str(eqn.params["grid_mapping"]), tuple(map(_digest, args))
            if key not in self._counted:
                self._counted[key] = _moved(eqn, args)
            shapes = tuple(map(ir.shape_of, eqn.invars))
            sizes = tuple(bytes_of(atom.aval) for atom in eqn.invars)
            loaded, stored = self._counted[key]
            self._reads.append(KernelReads(eqn.params["name"], shapes, loaded, sizes, stored))
        except UnreadableKernel:
            pass
        return [UNKNOWN] * len(eqn.outvars)


def _digest(value: Any) -> Any:
    return None if value is UNKNOWN else (value.shape, value.tobytes())


@dataclass
class _CountedMemory:
    """Memory of a kernel: an operand with its known block, a result, or uncounted memory.

    Attributes:
        number: of the operand, also if a result shares its memory.
    """

    number: int | None
    content: Any = UNKNOWN
    result: int | None = None


_Moved = dict[tuple[str, int], int]
"""("load", operand) or ("store", result) -> bytes."""


@dataclass
class _Instance(_Values):
    """One program instance; `moved` counts the bytes of its loads and stores.

    Attributes:
        exact: raise UnreadableKernel for an unknown condition or mask; else the greater branch counts, or all numbers.
    """

    ids: tuple[int | None, ...]
    grid: tuple[int, ...]
    exact: bool = False
    moved: _Moved = field(default_factory=dict)
    used: set[Any] = field(default_factory=set)
    limit = MAX_KNOWN_INSIDE

    def run(self, jaxpr: Any, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
        atoms = [*jaxpr.outvars, *(atom for eqn in jaxpr.eqns for atom in eqn.invars)]
        self.used.update(atom for atom in atoms if not isinstance(atom, ir.Literal))
        return super().run(jaxpr, consts, args)

    def _program_id(self, eqn: ir.JaxprEqn, args: list[Any]) -> Sequence[Any]:
        number = self.ids[eqn.params["axis"]]
        return [UNKNOWN if number is UNKNOWN else np.int32(number)]

    def _num_programs(self, eqn: ir.JaxprEqn, args: list[Any]) -> Sequence[Any]:
        return [np.int32(self.grid[eqn.params["axis"]])]

    def _multiple_of(self, eqn: ir.JaxprEqn, args: list[Any]) -> Sequence[Any]:
        return [args[0]]

    _max_contiguous = _multiple_of

    def _charge(self, kind: str, memory: _CountedMemory, var: Any, mask: Any = UNKNOWN) -> None:
        number = memory.number if kind == "load" else memory.result
        if kind == "load" and number is None and memory.result is not None:
            raise UnreadableKernel(f"it loads result {memory.result}, which has no operand's memory")
        if number is not None:
            numbers = prod(ir.shape_of(var)) if mask is UNKNOWN else int(np.count_nonzero(mask))
            size = numbers * np.dtype(ir.dtype_of(var)).itemsize
            self.moved[kind, number] = self.moved.get((kind, number), 0) + size

    def _get(self, eqn: ir.JaxprEqn, args: list[Any]) -> Sequence[Any]:
        memory, *indexers = args
        self._charge("load", memory, eqn.outvars[0])
        content = memory.content
        for transform in jax.tree.unflatten(eqn.params["tree"], indexers):
            places = list(map(place_of, getattr(transform, "indices", [UNKNOWN])))
            if content is UNKNOWN or any(place.start is UNKNOWN for place in places):
                return [UNKNOWN]
            content = np.asarray(content[tuple(map(numpy_index, places))])
        return [content]

    def _masked_load(self, eqn: ir.JaxprEqn, args: list[Any]) -> Sequence[Any]:
        memory, _, _, _ = jax.tree.unflatten(eqn.params["args_tree"], args)
        self._charge("load", memory, eqn.outvars[0], self._mask(eqn, args, 2))
        return [UNKNOWN]

    def _addupdate(self, eqn: ir.JaxprEqn, args: list[Any]) -> Sequence[Any]:
        for kind in ("load", "store"):
            self._charge(kind, args[0], eqn.invars[1])
        return []

    def _swap(self, eqn: ir.JaxprEqn, args: list[Any]) -> Sequence[Any]:
        memory = next(arg for arg in args if isinstance(arg, _CountedMemory))
        return self._exchanged(eqn, memory, UNKNOWN)

    def _masked_swap(self, eqn: ir.JaxprEqn, args: list[Any]) -> Sequence[Any]:
        memory, _, _, _ = jax.tree.unflatten(eqn.params["args_tree"], args)
        return self._exchanged(eqn, memory, self._mask(eqn, args, 3))

    def _mask(self, eqn: ir.JaxprEqn, args: list[Any], place: int) -> Any:
        """Return the operand at `place`; raises UnreadableKernel for an unknown mask if `exact`."""
        number = jax.tree.unflatten(eqn.params["args_tree"], range(len(args)))[place]
        if number is None:
            return UNKNOWN
        if self.exact and args[number] is UNKNOWN:
            raise UnreadableKernel(f"the mask at {ir.source_of(eqn)} is unknown")
        return args[number]

    def _exchanged(self, eqn: ir.JaxprEqn, memory: _CountedMemory, mask: Any) -> Sequence[Any]:
        """Count a store, and a load of a used old value."""
        self._charge("store", memory, eqn.outvars[0], mask)
        if eqn.outvars[0] in self.used:
            self._charge("load", memory, eqn.outvars[0], mask)
        return [UNKNOWN]

    def _atomic_rmw(self, eqn: ir.JaxprEqn, args: list[Any]) -> Sequence[Any]:
        memory = next(arg for arg in args if isinstance(arg, _CountedMemory))
        for kind in ("load", "store"):
            self._charge(kind, memory, eqn.outvars[0])
        return [UNKNOWN] * len(eqn.outvars)

    _atomic_cas = _atomic_rmw

    def _cond(self, eqn: ir.JaxprEqn, args: list[Any]) -> Sequence[Any]:
        predicate, *operands = args
        branches = eqn.params["branches"]
        if predicate is not UNKNOWN:
            chosen = branches[min(max(int(predicate), 0), len(branches) - 1)]
            return self.run(chosen.jaxpr, chosen.consts, operands)
        maximum: _Moved = {}
        for branch in branches:
            moved, _ = self._part(branch, operands)
            if self.exact and branch is not branches[0] and moved != maximum:
                raise UnreadableKernel(f"the condition at {ir.source_of(eqn)} is unknown")
            maximum = {key: max(maximum.get(key, 0), moved.get(key, 0)) for key in {*maximum, *moved}}
        self._include(maximum, 1)
        return [UNKNOWN] * len(eqn.outvars)

    def _part(self, body: ir.ClosedJaxpr, args: Sequence[Any]) -> tuple[_Moved, list[Any]]:
        """Run a branch or an iteration; return its loads and stores, and its results."""
        part = _Instance(self.ids, self.grid, self.exact)
        results = part.run(body.jaxpr, body.consts, args)
        return part.moved, results

    def _include(self, moved: _Moved, times: int) -> None:
        for key, size in moved.items():
            self.moved[key] = self.moved.get(key, 0) + times * size

    def _scan(self, eqn: ir.JaxprEqn, args: list[Any]) -> Sequence[Any]:
        body, length = ir.closed(eqn.params["jaxpr"]), int(eqn.params["length"])
        consts, carries = ir.scan_counts(eqn)
        carry = list(args[consts : consts + carries])
        xs = [arg if isinstance(arg, _CountedMemory) else UNKNOWN for arg in args[consts + carries :]]

        def turn(carry: list[Any]) -> tuple[_Moved, list[Any]]:
            moved, results = self._part(body, [*args[:consts], *carry, *xs])
            return moved, results[:carries]

        self._repeat(turn, carry, length)
        return [UNKNOWN] * len(eqn.outvars)

    def _while(self, eqn: ir.JaxprEqn, args: list[Any]) -> Sequence[Any]:
        condition, body = ir.closed(eqn.params["cond_jaxpr"]), ir.closed(eqn.params["body_jaxpr"])
        split, of_condition = eqn.params["cond_nconsts"] + eqn.params["body_nconsts"], eqn.params["cond_nconsts"]
        carry = list(args[split:])

        def turn(carry: list[Any]) -> tuple[_Moved, list[Any]]:
            return self._part(body, [*args[of_condition:split], *carry])

        turns = _counted_turns(eqn, args[:of_condition], carry)
        if turns is not None:
            self._repeat(turn, carry, turns)
            return [UNKNOWN] * len(eqn.outvars)
        for _ in range(MAX_TURNS):
            (proceeds,) = self.run(condition.jaxpr, condition.consts, [*args[:of_condition], *carry])
            if proceeds is UNKNOWN:
                break
            if not proceeds:
                return carry
            moved, carry = turn(carry)
            self._include(moved, 1)
        raise UnreadableKernel(f"the number of iterations at {ir.source_of(eqn)} is unknown, or above {MAX_TURNS}")

    def _repeat(self, turn: Callable[[list[Any]], tuple[_Moved, list[Any]]], carry: list[Any], times: int):
        """Add loads and stores of all iterations; equal iterations run once."""
        try:
            moved, _ = turn([arg if isinstance(arg, _CountedMemory) else UNKNOWN for arg in carry])
        except UnreadableKernel:
            if times > MAX_TURNS:
                raise
            for _ in range(times):
                moved, carry = turn(carry)
                self._include(moved, 1)
        else:
            self._include(moved, times)


def _counted_turns(eqn: ir.JaxprEqn, consts: Sequence[Any], carry: Sequence[Any]) -> int | None:
    counting = counting_loop(eqn)
    if counting is None:
        return None
    number, end = counting
    inputs = ir.closed(eqn.params["cond_jaxpr"]).jaxpr.invars
    first, last = carry[number], end.val if isinstance(end, ir.Literal) else [*consts, *carry][inputs.index(end)]
    return None if first is UNKNOWN or last is UNKNOWN else max(0, int(last) - int(first))


def _moved(eqn: ir.JaxprEqn, args: Sequence[Any]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the bytes of all instances, if countable: loads by operand, stores by result."""
    mapping, jaxpr = eqn.params["grid_mapping"], eqn.params["jaxpr"]
    if mapping.num_dynamic_grid_bounds or mapping.num_index_operands:
        raise UnreadableKernel("a grid or blocks whose sizes are computed")
    grid = tuple(map(int, mapping.grid))
    blocks = [Blocks.of(block, grid) for block in mapping.block_mappings[: mapping.num_inputs]]
    operand_of = {result: operand for operand, result in dict(eqn.params["input_output_aliases"]).items()}
    memories = [_CountedMemory(operand_of.get(k), result=k) for k in range(mapping.num_outputs)]
    memories += [_CountedMemory(None) for _ in range(len(jaxpr.invars) - len(blocks) - len(memories))]
    arrays = [UNKNOWN if array is UNKNOWN or array.size > MAX_KNOWN else array for array in args]
    # instances along another axis have the same known operands, and mostly equal loops
    known = [block.axes for block, array in zip(blocks, arrays, strict=True) if array is not UNKNOWN]
    axes = frozenset[int]().union(*known)
    all_axes = frozenset(range(len(grid)))
    for exact in (True, False):
        for chosen, numbered in ((axes, False), (axes | {0}, True), (all_axes, True)):
            try:
                moved = _sum_moved(jaxpr, blocks, arrays, memories, grid, chosen, numbered, exact)
            except UnreadableKernel:
                continue
            counts = ("load", len(blocks)), ("store", mapping.num_outputs)
            loaded, stored = (tuple(moved.get((kind, k), 0) for k in range(count)) for kind, count in counts)
            return loaded, stored
    raise UnreadableKernel(f"loops of {eqn.params['name']} have unknown numbers of iterations")


def _sum_moved(
    jaxpr: Any,
    blocks: Sequence[Blocks],
    arrays: Sequence[Any],
    memories: Any,
    grid: tuple[int, ...],
    axes: frozenset[int],
    numbered: bool,
    exact: bool,
) -> _Moved:
    """Return the bytes that all instances load and store.

    Args:
        axes: grid axes with instances run one by one; elsewhere one stands for all.
        numbered: instances know their numbers along these axes.
    """
    total, counted = _Moved(), dict[Any, _Moved]()
    for ids in np.ndindex(*(size if axis in axes else 1 for axis, size in enumerate(grid))):
        numbers = tuple(int(number) if axis in axes else UNKNOWN for axis, number in enumerate(ids))
        contents = [_block(block, array, numbers) for block, array in zip(blocks, arrays, strict=True)]
        seen = numbers if numbered else (UNKNOWN,) * len(grid)
        key = seen, tuple(map(_digest, contents))
        if key not in counted:
            instance = _Instance(seen, grid, exact)
            instance.run(jaxpr, (), [*map(_CountedMemory, range(len(blocks)), contents), *memories])
            counted[key] = instance.moved
        total = {k: total.get(k, 0) + counted[key].get(k, 0) for k in {*total, *counted[key]}}
    times = prod(size for axis, size in enumerate(grid) if axis not in axes)
    return {key: times * size for key, size in total.items()}


def _block(blocks: Blocks, array: Any, numbers: Sequence[Any]) -> Any:
    if array is UNKNOWN:
        return UNKNOWN
    places = _Instance(tuple(numbers), ()).run(
        blocks.index_map, (), [n if n is UNKNOWN else np.int32(n) for n in numbers]
    )
    if any(place is UNKNOWN for place in places):
        return UNKNOWN
    spans = [
        slice(int(place) * part.block, (int(place) + 1) * part.block)
        for place, part in zip(places, blocks.components, strict=True)
    ]
    return np.squeeze(array[tuple(spans)], axis=blocks.squeezed)
