"""Operations of a compiled program with bytes, arithmetic and pools.

Accelerators do not expose XLA's cost analysis. Operands and results count; of slices, gathers and in-place updates the
rows. Caches and a TPU's on-chip memory are ignored. A Pallas GPU kernel counts by its metadata, else by operands and
results; `ir_passes.kernels.reads` counts loads and stores.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import jax

from ir_passes.contract.contract import BoundContract, Pool
from ir_passes.xla_audit.dataflow import live_values
from ir_passes.xla_audit.dataflow.asynchronous import COPYING, STARTED
from ir_passes.xla_audit.findings import hlo_errors
from ir_passes.xla_audit.hlo import read
from ir_passes.xla_audit.products import multiplies, product_flops
from ir_passes.xla_audit.program import Array, Computation, Executable, Index, Instruction, Module

# fmt: off
FREE = frozenset({
    "add-dependency", "after-all", "bitcast", "call", "conditional", "constant", "domain", "get-tuple-element",
    "opt-barrier", "parameter", "partition-id", "replica-id", "tuple", "while",
})
# fmt: on
"""Opcodes that move nothing; called computations count instead."""
ROWS = frozenset({"dynamic-slice", "gather", "slice"})
"""Opcodes that read as many bytes of their first operand as they return."""
UPDATES = {"dynamic-update-slice": 1, "scatter": 2}
"""Opcodes that write into their first operand -> operand with new rows."""
NEW: dict[str, Index] = {COPYING: (0,), STARTED: (1,)}
"""Asynchronous opcode -> index of its written result."""
CUBLAS = "__cublas$"
"""Prefix of cuBLAS targets; their last result is a workspace (xla/service/gpu/cublas_cudnn.h)."""
TRITON = "__gpu$xla.gpu.triton"
DECLARED = {
    name: re.compile(rb'serialized_metadata = "[^"]*\\22%s\\22: \\22(\d+)\\22' % name.encode())
    for name in ("read", "written")
}
"""Declared bytes of a kernel: `pallas_call(..., metadata={"read": "123", "written": "45"})`."""
KNOWN_TURNS = re.compile(rb'"known_trip_count"\s*:\s*\{\s*"n"\s*:\s*"?(\d+)')


@dataclass(frozen=True)
class ScheduledKernel:
    """One operation of the schedule.

    Attributes:
        kind: opcode, fusion kind, or custom call target.
        op_name, source: of JAX.
        read, written: bytes of device memory per run.
        flops: of products per run.
        dtype: of product operands, or "".
        times: runs per call, or per iteration of a data-dependent loop.
        loop: JAX's name of the outermost such loop, or ""; None outside.
        pools: paths of its pools.
        shapes: operands of a Pallas GPU kernel.
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
    shapes: tuple[tuple[int, ...], ...] = ()

    @property
    def by_data(self) -> bool:
        """True inside a loop with a data-dependent trip count."""
        return self.loop is not None

    @property
    def moved(self) -> int:
        """Bytes read and written in all its runs."""
        return self.times * (self.read + self.written)


@dataclass(frozen=True)
class Kernels:
    """Operations of a program in schedule order.

    Sums are over all runs; `..._in_a_turn` is one iteration of each data-dependent loop, and other sums exclude these.
    """

    kernels: tuple[ScheduledKernel, ...]

    @property
    def count(self) -> int:
        return sum(kernel.times for kernel in self.kernels if not kernel.by_data)

    @property
    def moved(self) -> int:
        return sum(kernel.moved for kernel in self.kernels if not kernel.by_data)

    @property
    def moved_in_a_turn(self) -> int:
        return sum(kernel.moved for kernel in self.kernels if kernel.by_data)

    @property
    def flops(self) -> int:
        return sum(kernel.times * kernel.flops for kernel in self.kernels if not kernel.by_data)

    @property
    def flops_in_a_turn(self) -> int:
        return sum(kernel.times * kernel.flops for kernel in self.kernels if kernel.by_data)

    def largest(self, limit: int) -> tuple[ScheduledKernel, ...]:
        return tuple(sorted(self.kernels, key=lambda kernel: -kernel.moved)[:limit])


def kernels_of(compiled: jax.stages.Compiled, dump: bytes | None, bound: BoundContract) -> Kernels:
    """Return the operations of an executable; raises HloError if JAX does not expose the program.

    Without an exposed buffer assignment and a `dump` (as for `audit`), no pools are named.
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
    return Kernels(tuple(_ScheduleWalk(executable, pools).kernels(executable.module.main, 1, None)))


class _ScheduleWalk:
    def __init__(self, executable: Executable, pools: Mapping[int, str]):
        self._executable, self._module, self._pools = executable, executable.module, pools
        self._buffers = executable.buffers
        self._live = live_values(executable)

    def kernels(self, computation: Computation, times: int, loop: str | None) -> Iterator[ScheduledKernel]:
        for id in self._module.schedule[computation.id]:
            instruction = self._module.instructions[id]
            if instruction.opcode == "while":
                trip_count = KNOWN_TURNS.search(instruction.backend_config)
                turns, body_loop = (
                    (int(trip_count[1]), loop) if trip_count else (1, instruction.op_name if loop is None else loop)
                )
                # body, then condition; XLA:GPU skips the condition for a known count (gpu/runtime/while_thunk.cc)
                bodies = (
                    instruction.called[:1] if trip_count and self._executable.platform == "gpu" else instruction.called
                )
                for called in bodies:
                    yield from self.kernels(self._module.computations[called], times * turns, body_loop)
            elif instruction.opcode == "conditional":
                branches = [
                    list(self.kernels(self._module.computations[branch], times, loop)) for branch in instruction.called
                ]
                yield from max(
                    branches, key=lambda branch_kernels: sum(kernel.moved for kernel in branch_kernels), default=[]
                )
            elif instruction.opcode == "call":
                yield from self.kernels(self._module.computations[instruction.called[0]], times, loop)
            elif instruction.opcode not in FREE and not instruction.opcode.endswith("-done"):
                yield self._kernel(instruction, times, loop)

    def _kernel(self, instruction: Instruction, times: int, loop: str | None) -> ScheduledKernel:
        operands = [self._module.instructions[id] for id in instruction.operands]
        if instruction.opcode == "fusion":
            fused = self._module.computations[instruction.called[0]]
            read = sum(
                _read_of(fused.parameters[number], fused, self._module)
                for number, operand in enumerate(instruction.operands)
                if number in fused.parameters and not self._on_chip(operand, ())
            )
            written = sum(size for index, size in _results(fused) if not self._on_chip(instruction.id, index))
            kind = instruction.fusion_kind
            products = [(part, product_flops(part, _arrays(part, fused))) for part in fused.instructions]
            dtypes = [_arrays(part, fused)[0].dtype for part, flops in products if flops]
            flops = sum(flops for _, flops in products)
        else:
            arrays = tuple(operand.array for operand in operands)
            read, written = _plain(instruction, arrays)
            on_chip = [operand.array.bytes for operand in operands if self._on_chip(operand.id, ())]
            if instruction.opcode in (*ROWS, *NEW):
                read = 0 if self._on_chip(instruction.operands[0], ()) else read
            else:
                read = max(0, read - sum(on_chip))
            written = 0 if self._on_chip(instruction.id, NEW.get(instruction.opcode, ())) else written
            flops, kind = product_flops(instruction, arrays), instruction.target or instruction.opcode
            dtypes = [arrays[0].dtype] if flops else []
        touched = {path for id in (instruction.id, *instruction.operands) for path in self._touched(id)}
        return ScheduledKernel(
            instruction.name, kind, instruction.op_name, instruction.source, read, written, flops,
            dtypes[0] if dtypes else "", times, loop, tuple(sorted(touched)),
            tuple(operand.array.dims for operand in operands) if instruction.target == TRITON else (),
        )  # fmt: skip

    def _on_chip(self, instruction: int, index: Index) -> bool:
        place = self._live.of.get(instruction, {}).get(index)
        return place is not None and self._executable.on_chip(self._live.values[place].slice)

    def _touched(self, instruction: int) -> Iterator[str]:
        """Yield the pools that share bytes with an instruction's results."""
        for position in self._live.of.get(instruction, {}).values():
            value = self._live.values[position]
            if value.slice is not None:
                parameter = self._buffers.allocations[value.slice.allocation].parameter
            else:  # without a buffer assignment only the pool argument is known, not its versions
                definition = value.instruction
                is_argument = definition.opcode == "parameter" and definition.computation == self._module.entry
                parameter = definition.parameter if is_argument else None
            if parameter is not None and parameter in self._pools and value.array.dtype != "tuple":
                yield self._pools[parameter]


def _read_of(instruction: Instruction, fused: Computation, module: Module) -> int:
    """Return the bytes of a value that a fusion, perhaps nested, reads."""
    size, total = _bytes(instruction), 0
    if any(fused.unviewed(result).id == instruction.id for result in fused.results):
        return size  # all of it is read behind the result
    for user in fused.users.get(instruction.id, []):
        if user.opcode == "bitcast":
            total += _read_of(user, fused, module)
        elif user.opcode == "fusion":
            inner = module.computations[user.called[0]]
            places = [number for number, operand in enumerate(user.operands) if operand == instruction.id]
            total += sum(_read_of(inner.parameters[number], inner, module) for number in places)
        elif user.opcode in ROWS and user.operands[0] == instruction.id:
            total += _bytes(user)
        elif user.opcode in UPDATES and user.operands[0] == instruction.id:
            continue
        else:
            return size
    return min(size, total)


def _results(fused: Computation) -> Iterator[tuple[Index, int]]:
    """Yield index and written bytes of each result; updates write only new rows."""
    several = fused.result.opcode == "tuple"
    for number, instruction in enumerate(map(fused.unviewed, fused.results)):
        size = _bytes(
            fused.operands(instruction)[UPDATES[instruction.opcode]] if instruction.opcode in UPDATES else instruction
        )
        yield (number,) if several else (), size


def _plain(instruction: Instruction, operands: tuple[Array, ...]) -> tuple[int, int]:
    """Return read and written bytes of an unfused operation, without cuBLAS workspaces."""
    result = _bytes(instruction)
    if instruction.target == TRITON:
        moved = {"read": sum(map(_array_bytes, operands)), "written": result}
        declared = {name: pattern.search(instruction.backend_config) for name, pattern in DECLARED.items()}
        moved |= {name: int(match[1]) for name, match in declared.items() if match}
        return moved["read"], moved["written"]
    if instruction.target.startswith(CUBLAS) and (1,) in instruction.arrays:
        result -= instruction.arrays[max(instruction.arrays)].bytes
    if instruction.opcode in ROWS:
        return result + sum(array.bytes for array in operands[1:]), result
    if instruction.opcode in UPDATES:
        return sum(array.bytes for array in operands[1:]), operands[UPDATES[instruction.opcode]].bytes
    if instruction.opcode.endswith("-start") and (1,) in instruction.arrays:
        # operands, results and the device's context
        moved = sum(
            array.bytes for index, array in instruction.arrays.items() if index[:1] == (1,) and array.dtype != "tuple"
        )
        return moved, moved
    return sum(map(_array_bytes, operands)), result


def _bytes(instruction: Instruction) -> int:
    return sum(map(_array_bytes, instruction.arrays.values()))


def _array_bytes(array: Array) -> int:
    return 0 if array.dtype == "tuple" else array.bytes


def _arrays(instruction: Instruction, fused: Computation) -> tuple[Array, ...]:
    return tuple(operand.array for operand in fused.operands(instruction)) if multiplies(instruction) else ()
