"""The check that no pool is copied or rebuilt: no value outside a pool's bytes holds as many of its elements.

The limit is all rows but one: the rows of every sequence, in a pool with a null row.
"""

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from fnmatch import fnmatchcase

from ir_passes.contract.contract import ROW_MAPS, BoundContract, PageTable, Pool
from ir_passes.xla_audit.dataflow import LiveValue, LiveValues
from ir_passes.xla_audit.findings import Finding, FindingKind, origin, where
from ir_passes.xla_audit.pool_flow import NOTHING, Held, PoolType
from ir_passes.xla_audit.pool_values import HANDING_OVER, PoolValues, positions
from ir_passes.xla_audit.program import CPU, Executable, Instruction

MOVES, VIEWS = frozenset({"copy", "copy-start", "transpose"}), frozenset({"bitcast", "parameter", "reshape", "tuple"})
CONVERSIONS = frozenset({"bitcast-convert", "convert", "reverse"})
REMEDY = (
    "Read every row of the pool before the first write to it, write all rows at once, and carry the pool through "
    "loops instead of scanning over it. XLA orders the write after another reader of the old pool only if it is "
    "computed from what that reader reads; new rows that a sum reads too, XLA may compute twice. If one copy in each "
    "step is acceptable, for example of a cache whose rows are returned as a new array, allow it: "
    "compile_step(..., may_copy={pools})."
)
REMEDY_CONVERTED = (
    "XLA:CPU has no scatter for bfloat16, float8 and int4: it converts the whole pool to a wider dtype and back. On a "
    "CPU keep a pool that is scattered to in float32 or float16, or write its rows one after another by "
    "jax.lax.dynamic_update_slice in a jax.lax.fori_loop, which XLA does in place for every dtype. "
)


@dataclass(frozen=True)
class PoolCopy:
    """A copy of a whole pool.

    Attributes:
        instruction: its name.
        pools: paths of the pools whose elements are copied.
        bytes: written each time.
        op_name, source: JAX's name and the source line of the operation that it was made for.
        looped: it runs inside a loop, possibly many times.
    """

    instruction: str
    pools: tuple[str, ...]
    bytes: int
    op_name: str
    source: str
    looped: bool

    def __str__(self) -> str:
        often = " in every iteration" if self.looped else ""
        return f"{self.bytes} bytes{often} by %{self.instruction}, for {self.op_name or 'no operation'}, {self.source}"


@dataclass(frozen=True)
class WholePool:
    """A value outside a pool's bytes that holds all rows of the pool, or all but one.

    Attributes:
        pools: paths of the pools.
        type: of the pools on one device, as XLA prints it.
        copied: the elements are copied, perhaps back into the pool's bytes; otherwise computed.
        converted: they are copied from or to another dtype.
        looped: it is written inside a loop.
    """

    value: LiveValue
    pools: tuple[str, ...]
    type: str
    copied: bool
    converted: bool
    looped: bool

    def as_copy(self, executable: Executable) -> PoolCopy:
        """The copy, for the report."""
        instruction = self.value.instruction
        return PoolCopy(
            instruction.name,
            self.pools,
            self.value.array.padded_bytes,
            *origin(instruction, executable.module),
            self.looped,
        )


def whole_pools(executable: Executable, bound: BoundContract, live: LiveValues) -> list[WholePool]:
    """Return the values that copy a whole pool, or rebuild it outside its bytes, in the order in which they run.

    If a pool has one row per lane, in total or on each device, the step computes every row. Its new rows may be as
    large as the pool; only copies count against it. Values on a TPU's chip take no memory of the device: a small pool
    is read and written through them.
    """
    values = PoolValues(executable, live)
    found: dict[tuple[int, bool, str], tuple[list[str], bool]] = {}
    for i, pool in _pools(executable, bound).items():
        last = values.backwards(pool, bound.successors[i]) if i in bound.successors else frozenset[int]()
        judge = _Judge(executable, live, pool, values.onwards(pool), last)
        for position in judge.held.keys() | last:
            copied = judge.is_copied(position)
            if copied or judge.is_rebuilt(position):
                key = position, copied, str(pool.array)
                found.setdefault(key, ([], judge.is_converted(position)))[0].append(bound.inputs[i].path)
    return [
        WholePool(live.values[at], tuple(paths), type, copied, converted, live.values[at].instruction.id in live.looped)
        for (at, copied, type), (paths, converted) in sorted(found.items())
    ]


def findings(wholes: Sequence[WholePool], executable: Executable, allowed: Sequence[str]) -> Iterator[Finding]:
    """Yield a finding for each copy of pools that do not all match a pattern of `allowed`, and each rebuilt pool."""
    for whole in wholes:
        value, paths = whole.value, ", ".join(whole.pools)
        instruction = where(value.instruction, executable.module)
        if not whole.copied:
            yield Finding(
                FindingKind.SECOND_POOL,
                instruction,
                f"{value} has as many elements as {paths} and is computed in {value.slice}, not in the pool's bytes",
                "Update the rows that the slot map names and leave the others where they are.",
                whole.pools,
            )
            continue
        # brackets are those of paths, and no sets of characters
        if all(any(fnmatchcase(path, pattern.replace("[", "[[]")) for pattern in allowed) for path in whole.pools):
            continue
        advice = REMEDY_CONVERTED if whole.converted and executable.platform == CPU else ""
        yield Finding(
            FindingKind.POOL_COPY,
            instruction,
            f"a whole pool is copied ({paths}, {whole.type}): {whole.as_copy(executable)}",
            advice + REMEDY.format(pools=list(whole.pools)),
            whole.pools,
        )


def _pools(executable: Executable, bound: BoundContract) -> dict[int, PoolType]:
    """Pools that the program reads, by argument, as one device has them.

    A pool of one number per lane is left out: it is no larger than the list of lanes.
    """
    maps = [argument.entry for argument in bound.inputs if isinstance(argument.entry, ROW_MAPS)]
    mapped = {name for entry in maps for name in entry.names}
    paged = {name for entry in maps if isinstance(entry, PageTable) for name in entry.names}
    found: dict[int, PoolType] = {}
    for i, argument in enumerate(bound.inputs):
        number = executable.parameters.get(i)
        if not isinstance(argument.entry, Pool) or number is None:
            continue
        array = executable.module.main.parameters[number].array
        rows = array.dims[argument.entry.axis]
        by_lane = argument.entry.group not in mapped or bound.lanes in (argument.shape[argument.entry.axis], rows)
        if by_lane and array.count == rows:
            continue
        found[i] = PoolType(number, array, rows, by_lane, argument.entry.group in paged)
    return found


@dataclass(frozen=True)
class _Judge:
    """The judgement of the values that hold elements of one pool.

    Attributes:
        held: elements of the pool in each value, by position in `live.values`.
        last: positions of the values that become the pool's successor.
    """

    executable: Executable
    live: LiveValues
    pool: PoolType
    held: Mapping[int, Held]
    last: AbstractSet[int]

    def is_copied(self, position: int) -> bool:
        """True if an instruction moves the whole pool out of its bytes, or back into them."""
        value = self.live.values[position]
        if not self._is_written(value):
            return False
        sources = [self.live.values[at] for at in self._sources(value.instruction)]
        if any(self.executable.on_chip(source.slice) for source in sources):
            return False
        if self.held.get(position, NOTHING).moved >= self.pool.least:
            back = any(not self._in_pool(source) for source in sources) and self._only(
                value.instruction, MOVES | CONVERSIONS
            )
            return back or not self._in_pool(value)
        alike = value.array.dtype == self.pool.array.dtype and value.array.count == self.pool.array.count
        return alike and bool(sources) and self._only(value.instruction, MOVES)

    def is_rebuilt(self, position: int) -> bool:
        """True if the whole pool, of more rows than the step's lanes, is computed outside its bytes."""
        value = self.live.values[position]
        return (
            not self.pool.by_lane and self._is_written(value) and self._is_whole(position) and not self._in_pool(value)
        )

    def is_converted(self, position: int) -> bool:
        """True if a value that holds the whole pool has another dtype than one that it was copied from."""
        value = self.live.values[position]
        return any(self.live.values[at].array.dtype != value.array.dtype for at in self._sources(value.instruction))

    def _is_written(self, value: LiveValue) -> bool:
        """True if an instruction writes a value into memory of the device, but not over its own operand."""
        if value.slice is None or value.array.dtype == "tuple" or self.executable.on_chip(value.slice):
            return False
        if value.instruction.opcode in (*HANDING_OVER, "parameter", "constant"):
            return False
        return all(self.live.values[at].slice != value.slice for at in self._sources(value.instruction))

    def _sources(self, instruction: Instruction) -> list[int]:
        """Positions of the operands that hold the whole pool."""
        return [at for at in positions(instruction.operands, self.live) if self._is_whole(at)]

    def _is_whole(self, position: int) -> bool:
        return position in self.last or max(self.held.get(position, NOTHING)) >= self.pool.least

    def _in_pool(self, value: LiveValue) -> bool:
        place = value.slice
        return (
            place is not None and self.executable.buffers.allocations[place.allocation].parameter == self.pool.parameter
        )

    def _only(self, instruction: Instruction, moves: AbstractSet[str]) -> bool:
        """True for an operation that moves its operand, and a fusion of such operations."""
        if instruction.opcode != "fusion":
            return instruction.opcode in moves
        opcodes = {inner.opcode for inner in self.executable.module.computations[instruction.called[0]].instructions}
        return opcodes <= moves | VIEWS and bool(opcodes & moves)
