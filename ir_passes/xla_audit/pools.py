"""The check that every pool is written in place: its successor in its own bytes, and no other array of its size.

Pools are donated; the executable's input-output aliases must give each result the bytes of the pool that it succeeds.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from ir_passes.contract.contract import ROW_MAPS, Bound, BoundContract, Pool
from ir_passes.xla_audit.dataflow import LiveValue, LiveValues
from ir_passes.xla_audit.findings import Finding, FindingKind, origin, where
from ir_passes.xla_audit.pool_values import PoolValues, positions
from ir_passes.xla_audit.program import Executable, Index, Instruction

Key = tuple[str, tuple[int, ...]]
"""dtype and dimensions other than 1."""


@dataclass(frozen=True)
class PoolCopy:
    """A copy of a whole pool.

    Attributes:
        instruction: its name.
        pools: paths of the pools of this type; XLA does not say which of them it copies.
        bytes: copied each time.
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


def io_aliases(executable: Executable, bound: BoundContract) -> Iterator[Finding]:
    """Find pools whose successor does not take their bytes, and other inputs that are overwritten."""
    into: dict[tuple[int, Index], Index] = {}
    for one in executable.module.aliases:
        into[(one.parameter, one.parameter_index)] = one.output
    main = executable.module.main
    for i, pool in enumerate(bound.inputs):
        number = executable.parameters.get(i)
        output = None if number is None else into.get((number, ()))
        got = None if output is None else output[0] if output else 0
        successor = bound.successors.get(i)
        if successor is None:
            if got is not None:
                yield Finding(
                    FindingKind.OVERWRITTEN,
                    _parameter(executable, number, pool),
                    f"{pool.path} has no successor, but {bound.outputs[got].path} is written into its bytes",
                    "Donate only arguments whose successors the contract declares.",
                    (pool.path,),
                )
            continue
        if got == successor:
            continue
        path = bound.outputs[successor].path
        if got is not None:
            yield Finding(
                FindingKind.WRONG_SUCCESSOR,
                _parameter(executable, number, pool),
                f"{pool.path} must become {path} in place, but its bytes take {bound.outputs[got].path}",
                "Return the pools in the order of their arguments: JAX gives a donated array to the first output that "
                "has its shape and dtype.",
                (pool.path,),
            )
        elif number is None:
            yield Finding(
                FindingKind.NOT_IN_PLACE,
                main.name,
                f"{pool.path} is never read, so {path} has bytes of its own",
                "Write the successor as an update of the pool.",
                (pool.path,),
            )
        else:
            yield Finding(
                FindingKind.NOT_IN_PLACE,
                _parameter(executable, number, pool),
                f"{path} must take the bytes of {pool.path}, but the pool is not donated or no output can use it",
                "Pass the pool's argument in donate_argnums and return its successor in the same shape, dtype and "
                "sharding.",
                (pool.path,),
            )


def pool_copies(executable: Executable, bound: BoundContract, live: LiveValues) -> list[PoolCopy]:
    """Return every copy of an array of a pool's type, from the device's own memory and into it.

    A TPU copies its operands into the memory on the chip, sometimes a whole pool if that is small enough: such copies
    are the reading and the writing of the pool, and not counted.
    """
    pools = _pools(executable, bound)
    versions: dict[str, set[int]] = {}
    found: list[PoolCopy] = []
    for one in live.executed:
        made = [(index, live.values[place]) for index, place in live.made_by(one)]
        made = [(index, value) for index, value in made if _as_large(value, pools)]
        source = _copied(one, executable) if made else None
        if source is None:
            continue
        # Few programs copy anything as large as a pool: what else may be one is found when it is needed.
        versions = versions or _versions(pools, executable, bound, live)
        copied = positions(source, live)
        for index, value in made:
            if any(executable.on_chip(one.slice) for one in (value, *(live.values[place] for place in copied))):
                continue
            paths = [pool for pool in _matching(value, pools, executable) if copied & versions[pool.path]]
            if paths and not _same_place(value, source, index, live):
                op_name, line = origin(one, executable.module)
                looped = one.id in live.looped
                found.append(PoolCopy(one.name, tuple(p.path for p in paths), value.array.bytes, op_name, line, looped))
    return found


def copy_findings(copies: list[PoolCopy], executable: Executable, allowed: Sequence[str]) -> Iterator[Finding]:
    """Yield a finding for each copy, unless all the pools that it may be of match a pattern of `allowed`."""
    named = {one.name: one for one in executable.module.instructions.values()}
    for copy in copies:
        # brackets are those of paths, and no sets of characters
        if all(any(fnmatchcase(path, pattern.replace("[", "[[]")) for pattern in allowed) for path in copy.pools):
            continue
        yield Finding(
            FindingKind.POOL_COPY,
            where(named[copy.instruction], executable.module),
            f"a whole pool is copied (one of {', '.join(copy.pools)}): {copy}",
            "Read every row of the pool before the first write to it, write all rows at once, and carry the pool "
            "through loops instead of scanning over it. XLA orders the write after another reader of the old pool only "
            "if it is computed from what that reader reads; new rows that a sum reads too, XLA may compute twice. "
            "Where one copy in a step is all right, as that of a cache whose rows are returned as a new array, allow "
            f"it: compile_step(..., may_copy={list(copy.pools)}).",
            copy.pools,
        )


def second_pools(executable: Executable, bound: BoundContract, live: LiveValues) -> Iterator[Finding]:
    """Find arrays of a pool's type that are computed into other bytes than a pool's.

    If a pool has one row per lane, in total or on each device, the step computes every row, so that intermediate
    results may have the pool's type; only copies are counted against it. A value in the memory on a TPU's chip takes no
    memory of the device.
    """
    module = executable.module
    mapped = {name for one in bound.inputs if isinstance(one.entry, ROW_MAPS) for name in one.entry.names}

    places = {one.path: i for i, one in enumerate(bound.inputs)}

    def by_lane(one: Bound) -> bool:
        pool = one.entry
        assert isinstance(pool, Pool)
        here = module.main.parameters[executable.parameters[places[one.path]]].array.dims
        return pool.group not in mapped or bound.lanes in (one.shape[pool.axis], here[pool.axis])

    pools = {key: paths for key, paths in _pools(executable, bound).items() if not any(map(by_lane, paths))}
    numbers = {executable.parameters.get(i) for i, one in enumerate(bound.inputs) if isinstance(one.entry, Pool)}
    for one in live.executed:
        if one.opcode in ("parameter", "constant"):
            continue
        for _, place in live.made_by(one):
            value = live.values[place]
            paths = _matching(value, pools, executable)
            if not paths or value.slice is None or _copied(one, executable) is not None:
                continue
            if executable.on_chip(value.slice):
                continue
            if executable.buffers.allocations[value.slice.allocation].parameter in numbers - {None}:
                continue
            yield Finding(
                FindingKind.SECOND_POOL,
                where(one, module),
                f"an array of the type of {paths[0].path} is computed in {value.slice}, not in the pool's bytes",
                "Update the rows that the slot map names and leave the others where they are.",
                tuple(one.path for one in paths),
            )


def _pools(executable: Executable, bound: BoundContract) -> dict[Key, list[Bound]]:
    """Pools by their type in the program, which is that of one device's shard.

    A pool of one number per row is left out: any list of rows, lanes or lengths has its type.
    """
    pools: dict[Key, list[Bound]] = {}
    for i, one in enumerate(bound.inputs):
        number = executable.parameters.get(i)
        if isinstance(one.entry, Pool) and number is not None and math.prod(one.shape) > one.shape[one.entry.axis]:
            array = executable.module.main.parameters[number].array
            pools.setdefault((array.dtype, _long(array.dims)), []).append(one)
    return pools


def _versions(
    pools: dict[Key, list[Bound]], executable: Executable, bound: BoundContract, live: LiveValues
) -> dict[str, set[int]]:
    """Positions of the values that may be versions of a pool, by its path; those of one type share them."""
    inputs = {one.path: i for i, one in enumerate(bound.inputs)}
    values = PoolValues(executable, live)
    found: dict[str, set[int]] = {}
    for alike in pools.values():
        mine = [inputs[one.path] for one in alike]
        numbers = [executable.parameters[i] for i in mine]
        versions = values.versions(numbers, [bound.successors[i] for i in mine if i in bound.successors])
        found |= dict.fromkeys((one.path for one in alike), versions)
    return found


def _long(dims: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in dims if size != 1)


def _as_large(value: LiveValue, pools: dict[Key, list[Bound]]) -> bool:
    """Whether a value has the dtype of a pool and as many elements."""
    return any(value.array.dtype == dtype and value.array.count == math.prod(dims) for dtype, dims in pools)


def _matching(value: LiveValue, pools: dict[Key, list[Bound]], executable: Executable) -> list[Bound]:
    """The pools that a value may be a version of: of its own type, or of one that it is read as."""
    if not _as_large(value, pools):
        return []
    dtype = value.array.dtype
    found = pools.get((dtype, _long(value.array.dims)))
    if found:
        return found
    read_as = {_long(dims) for dims in _read_as(value.instruction, executable)}
    return list({one.path: one for dims in read_as for one in pools.get((dtype, dims), [])}.values())


def _read_as(one: Instruction, executable: Executable) -> Iterator[tuple[int, ...]]:
    """Dimensions that bitcasts read a value with, those inside the fusions that read it included."""
    module = executable.module
    for user in module.users.get(one.id, []):
        if user.opcode == "bitcast":
            yield user.array.dims
            yield from _read_as(user, executable)
        elif user.opcode == "fusion":
            fused = module.computations[user.called[0]]
            for number, operand in enumerate(user.operands):
                if operand == one.id:
                    inner = fused.users.get(fused.parameters[number].id, [])
                    yield from (bitcast.array.dims for bitcast in inner if bitcast.opcode == "bitcast")


def _copied(one: Instruction, executable: Executable) -> list[int] | None:
    """The ids of the operands of a copy, also of one that a fusion holds; None of anything else."""
    if one.opcode in ("copy", "copy-start", "transpose"):
        return list(one.operands)
    if one.opcode == "fusion":
        fused = executable.module.computations[one.called[0]]
        moves = {"parameter", "copy", "bitcast", "transpose", "tuple", "reshape"}
        opcodes = {inner.opcode for inner in fused.instructions}
        if opcodes <= moves and opcodes & {"copy", "transpose"}:
            return list(one.operands)
    return None


def _same_place(value: LiveValue, operands: list[int], index: Index, live: LiveValues) -> bool:
    """Whether a copy's source is the bytes that it writes, so that nothing moves."""
    return any(live.values[live.of[operand][()]].slice == value.slice for operand in operands)


def _parameter(executable: Executable, number: int | None, bound: Bound) -> str:
    if number is None:
        return bound.path
    return where(executable.module.main.parameters[number], executable.module)
