"""Reader of a compiled step's scheduled HLO module and buffer assignment.

Only this file, `hlo_schema` and `wire` depend on how JAX and XLA expose these.
"""

import hashlib
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax

from ir_passes.jaxpr import jax_private
from ir_passes.xla_audit import hlo_schema
from ir_passes.xla_audit.collectives import read_groups
from ir_passes.xla_audit.findings import HloError, hlo_errors
from ir_passes.xla_audit.program import (
    MAX_INTEGERS,
    Allocation,
    Array,
    Buffers,
    Computation,
    Executable,
    Index,
    Instruction,
    Module,
    Slice,
)
from ir_passes.xla_audit.wire import decode


def read(compiled: jax.stages.Compiled, dump: bytes | None = None, *, placed: bool = True) -> Executable:
    """Read an executable's module and buffer assignment; raises HloError if they are not exposed.

    Args:
        dump: as for `audit`.
        placed: require the buffer assignment; otherwise a missing one is empty.
    """
    memory: Any = compiled.memory_analysis()
    running = only_module(compiled)
    if dump is None:
        serialized, assignment = running.as_serialized_hlo_module_proto(), given_assignment(compiled)
    else:
        serialized, assignment = unpack_dump(dump)
    if placed and not assignment:
        raise HloError("the executable has no buffer assignment")
    module = read_module(serialized)
    buffers = read_buffers(assignment)
    if not module.schedule:
        raise HloError("the HLO module has no schedule")
    return Executable(
        module,
        buffers,
        {argument: number for number, argument in enumerate(kept_arguments(compiled))},
        platform_of(compiled),
        buffers.temp_bytes if memory is None else int(memory.temp_size_in_bytes),
        fingerprint(running),
    )


def only_module(compiled: jax.stages.Compiled) -> Any:
    """Return the only HLO module of an executable; raises HloError."""
    runtime: Any = compiled.runtime_executable()
    modules = [] if runtime is None else runtime.hlo_modules()
    if len(modules) != 1:
        raise HloError(f"expected an executable with one HLO module, got {len(modules)}")
    return modules[0]


def given_assignment(compiled: jax.stages.Compiled) -> bytes:
    """Return the exposed BufferAssignmentProto, or b""."""
    return getattr(compiled.memory_analysis(), "serialized_buffer_assignment_proto", b"") or b""


def platform_of(compiled: jax.stages.Compiled) -> str:
    places = jax.tree.leaves((compiled.input_shardings, compiled.output_shardings))
    platforms = {device.platform for place in places for device in place.device_set}
    if len(platforms) != 1:
        raise HloError(f"expected an executable for one platform, got {sorted(platforms)}")
    return platforms.pop()


@hlo_errors("XLA's dump of a program")
def unpack_dump(dump: bytes) -> tuple[bytes, bytes]:
    """Return the serialized module and buffer assignment of an HloProto; raises HloError."""
    raw = decode(dump, hlo_schema.HLO)
    return raw["module"], raw["assignment"]


def kept_arguments(compiled: jax.stages.Compiled) -> tuple[int, ...]:
    arguments = jax_private.kept_arguments(compiled)
    if arguments is None:
        raise HloError("the executable does not say which arguments it kept")
    return arguments


def fingerprint(module: Any) -> str:
    """Return the sha256 of a module's text without source paths, equal in every process."""
    return hashlib.sha256(jax_private.text_without_sources(module).encode()).hexdigest()


@hlo_errors("XLA's module")
def read_module(data: bytes) -> Module:
    """Decode an HloModuleProto; raises HloError."""
    raw = decode(data, hlo_schema.MODULE)
    reader = _ModuleReader(raw["stack_frames"])
    computations: dict[int, Computation] = {}
    for entry in raw["computations"]:
        # Called computations come before their callers.
        read = partial(reader.instructions, entry["instructions"], entry["id"], frozenset(computations))
        computations[entry["id"]] = Computation(entry["id"], entry["name"], entry["is_fusion"], entry["root_id"], read)
    sequences = raw["schedule"]["sequences"] if raw["schedule"] else ()
    schedule = {sequence["key"]: sequence["value"]["instruction_ids"] for sequence in sequences if sequence["value"]}
    aliases = {
        (alias["parameter_number"], alias["parameter_index"]): alias["output_index"]
        for alias in (raw["alias"]["entries"] if raw["alias"] else ())
    }
    scheduled = [computation for computation in computations.values() if computation.id in schedule]
    every = {instruction.id: instruction for computation in scheduled for instruction in computation.instructions}
    if len(every) != sum(len(computation.instructions) for computation in scheduled):
        raise HloError("instruction ids are not unique in the module")
    return Module(raw["name"], raw["entry_id"], computations, every, schedule, aliases)


@hlo_errors("XLA's buffer assignment")
def read_buffers(data: bytes) -> Buffers:
    """Decode a BufferAssignmentProto; raises HloError."""
    raw = decode(data, hlo_schema.BUFFER_ASSIGNMENT)
    defined: dict[int, tuple[int, Index]] = {}
    for logical in raw["buffers"]:
        location = logical["defined_at"] or hlo_schema.LOCATION.blank
        defined[logical["id"]] = (location["instruction_id"], location["shape_index"])
    allocations: dict[int, Allocation] = {}
    slices: dict[tuple[int, Index], Slice] = {}
    for allocation in raw["allocations"]:
        parameter = allocation["parameter_number"] if allocation["is_parameter"] else None
        allocations[allocation["index"]] = Allocation(
            allocation["index"],
            allocation["size"],
            parameter,
            allocation["live_out"],
            allocation["is_constant"],
            allocation["is_thread_local"],
            allocation["space"],
        )
        for part in allocation["assigned"]:
            if part["buffer"] not in defined:
                raise HloError(f"allocation {allocation['index']} holds buffer {part['buffer']}, which is not defined")
            slices[defined[part["buffer"]]] = Slice(allocation["index"], part["offset"], part["size"])
    return Buffers(allocations, slices)


def addresses(arrays: Any) -> tuple[tuple[int, ...], ...]:
    """Return device addresses of each array and local shard."""
    return tuple(
        tuple(shard.data.unsafe_buffer_pointer() for shard in leaf.addressable_shards)
        for leaf in jax.tree.leaves(arrays)
    )


def argument_shardings(compiled: jax.stages.Compiled) -> list[Any]:
    return compiled.in_tree.flatten_up_to(compiled.input_shardings)


def shardings(compiled: jax.stages.Compiled, argument: int, result: int) -> tuple[Any, Any]:
    results = compiled.out_tree.flatten_up_to(compiled.output_shardings)
    return argument_shardings(compiled)[argument], results[result]


def _frames(table: dict[str, Any] | None) -> list[str]:
    """Return `file:line` of each stack frame; id 0 is no frame."""
    names = [""]
    for frame in table["frames"] if table else ():
        location = table["locations"][frame["location"] - 1] if table and frame["location"] else None
        names.append(f"{table['files'][location['file'] - 1]}:{location['line']}" if table and location else "")
    return names


def _shape(raw: dict[str, Any], index: Index, arrays: dict[Index, Array]) -> dict[Index, Array]:
    """Fill `arrays` with the types in a shape; tokens have 0 bytes."""
    if raw["element_type"] == hlo_schema.TUPLE:
        parts = raw["tuple_shapes"]
        arrays[index] = Array("tuple", (len(parts),), (0,), 64)
        for i, part in enumerate(parts):
            _shape(part, (*index, i), arrays)
        return arrays
    dtype, bits = hlo_schema.DTYPES.get(raw["element_type"], ("opaque", 0))
    layout = raw["layout"] or hlo_schema.LAYOUT.blank
    bits = layout["element_size_in_bits"] or bits
    tiles = tuple(tile["dimensions"] for tile in layout["tiles"])
    arrays[index] = Array(dtype, raw["dimensions"], layout["minor_to_major"], bits, tiles)
    return arrays


class _ModuleReader:
    """Decoder of a module's instructions that decodes equal shapes and lines once."""

    def __init__(self, stack_frames: dict[str, Any] | None):
        self._frames = _frames(stack_frames)
        self._shapes: dict[bytes, dict[Index, Array]] = {}
        self._metadata: dict[bytes, tuple[str, str]] = {b"": ("", "")}

    def instructions(
        self, serialized: Sequence[bytes], computation: int, callees: frozenset[int]
    ) -> tuple[Instruction, ...]:
        """Decode the instructions of a computation that may call `callees`; raises HloError."""
        decoded: dict[int, Instruction] = {}
        for data in serialized:
            instruction = self.instruction(decode(data, hlo_schema.INSTRUCTION), computation)
            if (
                instruction.id in decoded
                or not callees.issuperset(instruction.called)
                or not decoded.keys() >= set(instruction.operands)
            ):
                raise HloError(f"%{instruction.name} reads or calls something that is not defined before it")
            decoded[instruction.id] = instruction
        return tuple(decoded.values())

    def instruction(self, raw: dict[str, Any], computation: int) -> Instruction:
        arrays = self._shapes.get(raw["shape"])
        if arrays is None:
            arrays = self._shapes[raw["shape"]] = _shape(decode(raw["shape"], hlo_schema.SHAPE), (), {})
        op_name, source = self._origin(raw["metadata"])
        literal = raw["literal"]
        return Instruction(
            raw["id"],
            raw["name"],
            raw["opcode"],
            computation,
            arrays,
            raw["operands"],
            raw["called"],
            op_name,
            source,
            raw["parameter_number"],
            raw["tuple_index"],
            tuple((part["start"], part["limit"], part["stride"]) for part in raw["slices"]),
            raw["slice_sizes"],
            raw["target"],
            tuple((alias["output_index"], alias["operand"], alias["operand_index"]) for alias in raw["aliasing"]),
            read_groups(raw) if raw["opcode"].startswith(hlo_schema.COLLECTIVES) else None,
            raw["backend_config"],
            raw["attributes"] + literal,
            raw["fusion_kind"],
            *_constant(literal if arrays[()].count <= MAX_INTEGERS else b""),
        )

    def _origin(self, metadata: bytes) -> tuple[str, str]:
        origin = self._metadata.get(metadata)
        if origin is None:
            raw = decode(metadata, hlo_schema.METADATA)
            frame = raw["stack_frame_id"]
            source = f"{raw['source_file']}:{raw['source_line']}" if raw["source_file"] else ""
            if 0 < frame < len(self._frames):
                source = self._frames[frame]
            origin = self._metadata[metadata] = (raw["op_name"], source)
        return origin


def _constant(literal: bytes) -> tuple[tuple[int, ...], bool]:
    """Return the integers of a literal, and whether its bits are 0."""
    raw = decode(literal, hlo_schema.LITERAL)
    integers = (*raw["s32s"], *raw["s64s"], *raw["u32s"], *raw["u64s"])
    parts = (integers, *(raw[name] for name in hlo_schema.OTHER_VALUES))
    return integers, any(parts) and not any(map(any, parts))
