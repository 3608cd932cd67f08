"""Check that a program neither copies nor rebuilds a pool.

No value outside a pool's bytes may hold all rows except one: with a null row, these are the rows of every sequence.
"""

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from fnmatch import fnmatchcase

from ir_passes.contract.contract import BoundContract, PageTable, Pool
from ir_passes.xla_audit.dataflow import LiveValue, LiveValues
from ir_passes.xla_audit.findings import Finding, FindingKind, origin, where
from ir_passes.xla_audit.pool_flow import NOTHING, Held, PoolFlow
from ir_passes.xla_audit.pool_values import HANDING_OVER, PoolValues, positions
from ir_passes.xla_audit.program import CPU, Executable, Instruction

MOVES, VIEWS = frozenset({"copy", "copy-start", "transpose"}), frozenset({"bitcast", "parameter", "reshape", "tuple"})
CONVERSIONS = frozenset({"bitcast-convert", "convert", "reverse"})
COMPILE_CALL = "lowered.compile({})"
"""Call that compiles a step, with braces for an argument."""
REMEDY = (
    "If one copy in each step is acceptable, allow it: {call}. To avoid it, read every row of the pool before the "
    "first write to it, write all rows at once, and carry the pool through loops instead of scanning over it. XLA "
    "orders the write after another reader of the old pool only if it is computed from what that reader reads; new "
    "rows that a sum reads too, XLA may compute twice."
)
REMEDY_CONVERTED = (
    " XLA:CPU has no scatter for bfloat16, float8 and int4: it converts the whole pool to a wider dtype and back. On a "
    "CPU keep a pool that is scattered to in float32 or float16, or write its rows one after another by "
    "jax.lax.dynamic_update_slice in a jax.lax.fori_loop, which XLA does in place for every dtype."
)


@dataclass(frozen=True)
class PoolCopy:
    """A value outside a pool's bytes with all rows except at most one.

    Attributes:
        type: on one device, as XLA prints it.
        copied: elements are copied, perhaps back; otherwise computed.
        looped: inside a loop.
        op_name, source: JAX's name and source line.
    """

    value: LiveValue
    pools: tuple[str, ...]
    type: str
    copied: bool
    converted: bool
    looped: bool
    op_name: str
    source: str

    @property
    def instruction(self) -> str:
        return self.value.instruction.name

    @property
    def bytes(self) -> int:
        return self.value.array.padded_bytes

    def __str__(self) -> str:
        frequency = " in every iteration" if self.looped else ""
        operation = self.op_name or "no operation"
        return f"{self.bytes} bytes{frequency} by %{self.instruction}, for {operation}, {self.source}"


def whole_pools(executable: Executable, bound: BoundContract, live: LiveValues) -> list[PoolCopy]:
    """Return values that copy or rebuild a whole pool, in execution order.

    For a pool with a row per lane and no slot map, or a row per device, new rows are as large as the pool, so only
    copies count. On-chip values are ignored: XLA reads and writes small pools through a TPU's on-chip memory.
    """
    values = PoolValues(executable, live)
    copies: dict[tuple[int, bool, str], tuple[list[str], bool]] = {}
    for i, pool in _pools(executable, bound).items():
        successor_values = values.backwards(pool, bound.successors[i]) if i in bound.successors else frozenset[int]()
        check = _PoolCheck(executable, live, pool, values.onwards(pool), successor_values)
        for position in check.elements.keys() | successor_values:
            copied = check.is_copied(position)
            if copied or check.is_rebuilt(position):
                key = position, copied, str(pool.array)
                copies.setdefault(key, ([], check.is_converted(position)))[0].append(bound.inputs[i].path)
    results = []
    for (position, copied, type), (paths, converted) in sorted(copies.items()):
        value = live.values[position]
        looped, names = value.instruction.id in live.looped, origin(value.instruction, executable.module)
        results.append(PoolCopy(value, tuple(paths), type, copied, converted, looped, *names))
    return results


def findings(
    pools: Sequence[PoolCopy],
    executable: Executable,
    bound: BoundContract,
    allowed: Sequence[str],
    call: str = COMPILE_CALL,
) -> Iterator[Finding]:
    """Yield a finding per rebuilt pool, and one for all copies outside `allowed`."""
    refused: list[PoolCopy] = []
    for pool in pools:
        value, paths = pool.value, ", ".join(pool.pools)
        if not pool.copied:
            yield Finding(
                FindingKind.SECOND_POOL,
                where(value.instruction, executable.module),
                f"{value} has as many elements as {paths} and is computed in {value.slice}, not in the pool's bytes",
                "Update the rows that the slot map names and leave the others where they are.",
                pool.pools,
            )
        # Brackets in a path are indices, not fnmatch sets.
        elif not all(any(fnmatchcase(path, pattern.replace("[", "[[]")) for pattern in allowed) for path in pool.pools):
            refused.append(pool)
    if not refused:
        return
    paths = tuple(dict.fromkeys(path for pool in refused for path in pool.pools))
    copies = [
        f"{', '.join(pool.pools)} ({pool.type}): {pool.bytes} bytes are copied"
        f"{' in every iteration' if pool.looped else ''}"
        for pool in refused
    ]
    remedy = "".join(_successors(bound, paths)) + REMEDY.format(call=call.format(f"may_copy={list(paths)}"))
    converted = any(pool.converted for pool in refused) and executable.platform == CPU
    yield Finding(
        FindingKind.POOL_COPY,
        "\n  at ".join(where(pool.value.instruction, executable.module) for pool in refused),
        "\n  ".join(dict.fromkeys(copies)),
        remedy + (REMEDY_CONVERTED if converted else ""),
        paths,
    )


def _successors(bound: BoundContract, copied: Sequence[str]) -> Iterator[str]:
    """Yield a remedy for each copied pool without a successor but with a matching result."""
    for number, pool in enumerate(bound.inputs):
        if pool.path not in copied or number in bound.successors or not isinstance(pool.entry, Pool):
            continue
        results = [out for out in bound.outputs if (out.shape, out.dtype) == (pool.shape, pool.dtype)]
        if paths := [out.path for out in results if not isinstance(out.entry, Pool)]:
            yield (
                f"{pool.path} has no successor and is not donated: if {' or '.join(paths)} is its next version, "
                f"declare it {pool.entry} in the contract. "
            )


def _pools(executable: Executable, bound: BoundContract) -> dict[int, PoolFlow]:
    """Return the type on one device of each read pool.

    Pools of one number per lane are skipped.
    """
    tables = [argument.entry for argument in bound.inputs if isinstance(argument.entry, PageTable)]
    paged = {name for entry in tables for name in entry.names}
    pools: dict[int, PoolFlow] = {}
    for i, argument in enumerate(bound.inputs):
        number = executable.parameters.get(i)
        if not isinstance(argument.entry, Pool) or number is None:
            continue
        array = executable.module.main.parameters[number].array
        rows = array.dims[argument.entry.axis]
        # XLA drops the index of a device's only row and reads the whole array.
        by_lane = argument.entry.group not in bound.mapped or rows == 1
        if array.count == rows and (by_lane or rows <= bound.lanes):
            continue
        is_paged, computations = argument.entry.group in paged, executable.module.computations
        pools[i] = PoolFlow(computations, number, array, rows, by_lane, is_paged, bound.lanes)
    return pools


@dataclass(frozen=True)
class _PoolCheck:
    """Check of values with elements of one pool.

    Attributes:
        elements: position in `live.values` -> elements of the pool.
        ancestors: positions of the values that become its successor.
    """

    executable: Executable
    live: LiveValues
    pool: PoolFlow
    elements: Mapping[int, Held]
    ancestors: AbstractSet[int]

    def is_copied(self, position: int) -> bool:
        """True if an instruction copies the whole pool from or to its bytes."""
        value = self.live.values[position]
        if not self._is_written(value):
            return False
        sources = [self.live.values[source] for source in self._sources(value.instruction)]
        if any(self.executable.on_chip(source.slice) for source in sources):
            return False
        if self.elements.get(position, NOTHING).moved >= self.pool.least:
            writes_pool = any(not self._in_pool(source) for source in sources) and self._only(
                value.instruction, MOVES | CONVERSIONS
            )
            return writes_pool or not self._in_pool(value)
        same_type = value.array.dtype == self.pool.array.dtype and value.array.count == self.pool.array.count
        return same_type and bool(sources) and self._only(value.instruction, MOVES)

    def is_rebuilt(self, position: int) -> bool:
        """True if a pool with more rows than lanes is computed outside its bytes."""
        value = self.live.values[position]
        return (
            not self.pool.by_lane and self._is_written(value) and self._is_whole(position) and not self._in_pool(value)
        )

    def is_converted(self, position: int) -> bool:
        """True if the whole pool is read in another dtype."""
        value = self.live.values[position]
        return any(
            self.live.values[source].array.dtype != value.array.dtype for source in self._sources(value.instruction)
        )

    def _is_written(self, value: LiveValue) -> bool:
        """True if an instruction writes a value to device memory, not in place."""
        if value.slice is None or value.array.dtype == "tuple" or self.executable.on_chip(value.slice):
            return False
        if value.instruction.opcode in (*HANDING_OVER, "parameter", "constant"):
            return False
        return all(self.live.values[source].slice != value.slice for source in self._sources(value.instruction))

    def _sources(self, instruction: Instruction) -> list[int]:
        return [source for source in positions(instruction.operands, self.live) if self._is_whole(source)]

    def _is_whole(self, position: int) -> bool:
        return position in self.ancestors or max(self.elements.get(position, NOTHING)) >= self.pool.least

    def _in_pool(self, value: LiveValue) -> bool:
        slice = value.slice
        return (
            slice is not None and self.executable.buffers.allocations[slice.allocation].parameter == self.pool.parameter
        )

    def _only(self, instruction: Instruction, moves: AbstractSet[str]) -> bool:
        """True for an operation in `moves`, or a fusion of such operations and views."""
        if instruction.opcode != "fusion":
            return instruction.opcode in moves
        opcodes = {inner.opcode for inner in self.executable.module.computations[instruction.called[0]].instructions}
        return opcodes <= moves | VIEWS and bool(opcodes & moves)
