"""The operations that a compiled program runs, with the bytes that each moves, its arithmetic and the pools it touches.

XLA's own cost analysis is not given out by the compilers of accelerators. This one counts the operands and results of
every scheduled operation. If a fusion reads an operand through slices or gathers, or updates a result in place, only
the rows that are read or written count. An operand that an earlier operation has left in a cache of the device counts
all the same. Values that a TPU's program keeps in the memory on the chip do not: the buffer assignment names them.
A Pallas kernel for GPUs reads the bytes that its metadata declares, or without it each operand once. Arithmetic is that
of products and convolutions.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import jax

from ir_passes.contract.contract import BoundContract, Pool
from ir_passes.xla_audit.damage import hlo_errors
from ir_passes.xla_audit.dataflow import live_values
from ir_passes.xla_audit.dataflow.asynchronous import COPYING, STARTED
from ir_passes.xla_audit.hlo import read
from ir_passes.xla_audit.products import multiplies, product_flops
from ir_passes.xla_audit.program import Array, Computation, Executable, Index, Instruction, Module

# fmt: off
FREE = frozenset({
    "add-dependency", "after-all", "bitcast", "call", "conditional", "constant", "domain", "get-tuple-element",
    "opt-barrier", "parameter", "partition-id", "replica-id", "tuple", "while",
})
# fmt: on
"""Opcodes that move nothing themselves; loops, calls and branches do so by what they call."""
ROWS = frozenset({"dynamic-slice", "gather", "slice"})
"""Opcodes that read of their first operand as much as they return."""
UPDATES = {"dynamic-update-slice": 1, "scatter": 2}
"""Opcodes that write into their first operand, each with the number of the operand that has the new rows."""
NEW: dict[str, Index] = {COPYING: (0,), STARTED: (1,)}
"""The result that an operation writes beside others."""
CUBLAS = "__cublas$"
"""Beginning of the targets of cuBLAS products, whose last result is a workspace (xla/service/gpu/cublas_cudnn.h)."""
TRITON = "__gpu$xla.gpu.triton"
"""Target of Pallas kernels for GPUs."""
DECLARED_READS = re.compile(rb'serialized_metadata = "[^"]*\\22read\\22: \\22(\d+)\\22')
"""Bytes that a kernel reads, by `pallas_call(..., metadata={"read": "123"})`."""
KNOWN_TURNS = re.compile(rb'"known_trip_count"\s*:\s*\{\s*"n"\s*:\s*"?(\d+)')


@dataclass(frozen=True)
class ScheduledKernel:
    """One operation of the schedule.

    Attributes:
        name: of the instruction.
        kind: its opcode, or of a fusion its kind; of a custom call its target.
        op_name, source: JAX's name and the source line of the operation that it was made for.
        read, written: bytes in one run, of the device's own memory.
        flops: operations of products in one run.
        dtype: of the operands of its products; "" without one.
        times: runs in one call of the step, within each turn of a loop whose turns the data decide.
        loop: JAX's name of the outermost such loop that it is in, "" where XLA has none for it; None outside of all.
        pools: paths of the pools that it reads or writes.
    """

    name: str
    kind: str
    op_name: str
    source: str
    read: int
    written: int
    flops: int
    dtype: str
    times: int
    loop: str | None
    pools: tuple[str, ...]

    @property
    def by_data(self) -> bool:
        """Whether it is in a loop whose turns the data decide."""
        return self.loop is not None

    @property
    def moved(self) -> int:
        """Bytes read and written in all its runs."""
        return self.times * (self.read + self.written)


@dataclass(frozen=True)
class Kernels:
    """The operations of one program, in the order in which they run; a loop's are there once."""

    kernels: tuple[ScheduledKernel, ...]

    @property
    def count(self) -> int:
        """Number of runs of operations outside loops whose turns the data decide."""
        return sum(one.times for one in self.kernels if not one.by_data)

    @property
    def moved(self) -> int:
        """Bytes moved outside loops whose turns the data decide."""
        return sum(one.moved for one in self.kernels if not one.by_data)

    @property
    def moved_in_a_turn(self) -> int:
        """Bytes moved by one turn of each loop whose turns the data decide."""
        return sum(one.moved for one in self.kernels if one.by_data)

    @property
    def flops(self) -> int:
        """Operations of products outside loops whose turns the data decide."""
        return sum(one.times * one.flops for one in self.kernels if not one.by_data)

    @property
    def flops_in_a_turn(self) -> int:
        """Operations of products in one turn of each loop whose turns the data decide."""
        return sum(one.times * one.flops for one in self.kernels if one.by_data)

    def largest(self, most: int) -> tuple[ScheduledKernel, ...]:
        """Return those that move most, at most so many."""
        return tuple(sorted(self.kernels, key=lambda one: -one.moved)[:most])


def kernels_of(compiled: jax.stages.Compiled, dump: bytes | None, bound: BoundContract) -> Kernels:
    """Return the operations of an executable.

    Args:
        compiled: the executable.
        dump: its HloProto, of one that does not give out its buffer assignment; without either no pools are named.
        bound: the contract of its step.

    Raises:
        HloError: this version of JAX or XLA does not give out the program.
    """
    executable = read(compiled, dump, placed=False)
    pools = {
        number: bound.inputs[argument].path
        for argument, number in executable.parameters.items()
        if isinstance(bound.inputs[argument].entry, Pool)
    }
    return kernels_in(executable, pools)


@hlo_errors("XLA's program")
def kernels_in(executable: Executable, pools: Mapping[int, str]) -> Kernels:
    """Return the operations of an executable that has been read.

    Args:
        executable: its program; pools are named where it has a buffer assignment.
        pools: number of an entry parameter that is a pool -> its path.
    """
    return Kernels(tuple(_ScheduleWalk(executable, pools).kernels(executable.module.main, 1, None)))


class _ScheduleWalk:
    """A walk over the schedule of a program, its called computations included, that counts bytes and products."""

    def __init__(self, executable: Executable, pools: Mapping[int, str]):
        self._executable, self._module, self._pools = executable, executable.module, pools
        self._buffers = executable.buffers
        self._live = live_values(executable)

    def kernels(self, computation: Computation, times: int, loop: str | None) -> Iterator[ScheduledKernel]:
        for id in self._module.schedule[computation.id]:
            one = self._module.instructions[id]
            if one.opcode == "while":
                known = KNOWN_TURNS.search(one.backend_config)
                turns, inside = (int(known[1]), loop) if known else (1, one.op_name if loop is None else loop)
                # body, then condition, which XLA:GPU does not run if it knows the count (gpu/runtime/while_thunk.cc)
                bodies = one.called[:1] if known and self._executable.platform == "gpu" else one.called
                for called in bodies:
                    yield from self.kernels(self._module.computations[called], times * turns, inside)
            elif one.opcode == "conditional":
                branches = [list(self.kernels(self._module.computations[at], times, loop)) for at in one.called]
                yield from max(branches, key=lambda found: sum(kernel.moved for kernel in found), default=[])
            elif one.opcode == "call":
                yield from self.kernels(self._module.computations[one.called[0]], times, loop)
            elif one.opcode not in FREE and not one.opcode.endswith("-done"):
                yield self._kernel(one, times, loop)

    def _kernel(self, one: Instruction, times: int, loop: str | None) -> ScheduledKernel:
        operands = [self._module.instructions[id] for id in one.operands]
        if one.opcode == "fusion":
            fused = self._module.computations[one.called[0]]
            read = sum(
                _read_of(fused.parameters[number], fused, self._module)
                for number, operand in enumerate(one.operands)
                if number in fused.parameters and not self._on_chip(operand, ())
            )
            written = sum(size for index, size in _results(fused) if not self._on_chip(one.id, index))
            kind = one.fusion_kind
            products = [(each, product_flops(each, _arrays(each, fused))) for each in fused.instructions]
            dtypes = [_dtype(each, fused) for each, flops in products if flops]
            flops = sum(flops for _, flops in products)
        else:
            given = tuple(operand.array for operand in operands)
            read, written = _plain(one, given)
            on_chip = [operand.array.bytes for operand in operands if self._on_chip(operand.id, ())]
            if one.opcode in (*ROWS, *NEW):
                read = 0 if self._on_chip(one.operands[0], ()) else read
            else:
                read = max(0, read - sum(on_chip))
            written = 0 if self._on_chip(one.id, NEW.get(one.opcode, ())) else written
            flops, kind = product_flops(one, given), one.target or one.opcode
            dtypes = [given[0].dtype] if flops else []
        touched = {path for id in (one.id, *one.operands) for path in self._touched(id)}
        return ScheduledKernel(
            one.name, kind, one.op_name, one.source, read, written, flops, dtypes[0] if dtypes else "", times, loop,
            tuple(sorted(touched)),
        )  # fmt: skip

    def _on_chip(self, instruction: int, index: Index) -> bool:
        """Whether a result of an instruction lies in a memory on the chip."""
        place = self._live.of.get(instruction, {}).get(index)
        return place is not None and self._executable.on_chip(self._live.values[place].slice)

    def _touched(self, instruction: int) -> Iterator[str]:
        """Yield the paths of the pools in whose bytes the values of an instruction lie."""
        for position in self._live.of.get(instruction, {}).values():
            value = self._live.values[position]
            if value.slice is not None:
                parameter = self._buffers.allocations[value.slice.allocation].parameter
            else:  # without a buffer assignment only a pool itself is known, not its versions
                parameter = value.instruction.parameter if self._is_argument(value.instruction) else None
            if parameter is not None and parameter in self._pools and value.array.dtype != "tuple":
                yield self._pools[parameter]

    def _is_argument(self, one: Instruction) -> bool:
        return one.opcode == "parameter" and one.computation == self._module.entry


def _read_of(one: Instruction, fused: Computation, module: Module) -> int:
    """Bytes that are read of a value in a fusion: of its rows if nothing else is. TPUs have fusions in fusions."""
    whole, total = _bytes(one), 0
    for user in fused.users.get(one.id, []):
        if user.opcode == "bitcast":
            total += _read_of(user, fused, module)
        elif user.opcode == "fusion":
            inner = module.computations[user.called[0]]
            places = [number for number, operand in enumerate(user.operands) if operand == one.id]
            total += sum(_read_of(inner.parameters[number], inner, module) for number in places)
        elif user.opcode in ROWS and user.operands[0] == one.id:
            total += _bytes(user)
        elif user.opcode in UPDATES and user.operands[0] == one.id:
            continue
        else:
            return whole
    return min(whole, total)


def _results(fused: Computation) -> Iterator[tuple[Index, int]]:
    """Yield each result of a fusion with the bytes that it writes of it: of one that is an update, the new rows."""
    several = fused.result.opcode == "tuple"
    for number, one in enumerate(map(fused.unviewed, fused.results)):
        size = _bytes(fused.operands(one)[UPDATES[one.opcode]] if one.opcode in UPDATES else one)
        yield (number,) if several else (), size


def _plain(one: Instruction, operands: tuple[Array, ...]) -> tuple[int, int]:
    """Bytes that an operation outside fusions reads and writes; the workspace of a cuBLAS product is neither."""
    result = _bytes(one)
    if one.target == TRITON and (declared := DECLARED_READS.search(one.backend_config)):
        return int(declared[1]), result
    if one.target.startswith(CUBLAS) and (1,) in one.arrays:
        result -= one.arrays[max(one.arrays)].bytes
    if one.opcode in ROWS:
        return result + sum(array.bytes for array in operands[1:]), result
    if one.opcode in UPDATES:
        return sum(array.bytes for array in operands[1:]), operands[UPDATES[one.opcode]].bytes
    if one.opcode.endswith("-start") and (1,) in one.arrays:  # operands, results and what the device needs beside them
        moved = sum(array.bytes for index, array in one.arrays.items() if index[:1] == (1,) and array.dtype != "tuple")
        return moved, moved
    return sum(array.bytes for array in operands if array.dtype != "tuple"), result


def _bytes(one: Instruction) -> int:
    return sum(array.bytes for array in one.arrays.values() if array.dtype != "tuple")


def _arrays(one: Instruction, fused: Computation) -> tuple[Array, ...]:
    return tuple(operand.array for operand in fused.operands(one)) if multiplies(one) else ()


def _dtype(one: Instruction, fused: Computation) -> str:
    return _arrays(one, fused)[0].dtype
