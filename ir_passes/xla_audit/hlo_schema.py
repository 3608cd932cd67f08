"""Field numbers of XLA's protobufs (openxla/xla, xla/service/hlo.proto and xla/xla_data.proto).

XLA does not promise stable numbers, so a test reads a known program through this table.
"""

from ir_passes.xla_audit.wire import Field, Kind, WireMessage


def _one(kind: Kind | WireMessage, repeated: bool = False, **numbers: int) -> dict[int, Field]:
    if isinstance(kind, WireMessage):
        return {number: Field(name, "message", repeated, kind) for name, number in numbers.items()}
    return {number: Field(name, kind, repeated) for name, number in numbers.items()}


def _many(kind: Kind | WireMessage, **numbers: int) -> dict[int, Field]:
    return _one(kind, True, **numbers)


TILE = WireMessage("TileProto", _many("int", dimensions=1))
LAYOUT = WireMessage(
    "LayoutProto", _many("int", minor_to_major=1) | _many(TILE, tiles=6) | _one("int", element_size_in_bits=7)
)
SHAPE = WireMessage(
    "ShapeProto",
    _one("int", element_type=2)
    | _many("int", dimensions=3)
    | _many("message", tuple_shapes=4)
    | _one(LAYOUT, layout=5),
)
METADATA = WireMessage(
    "OpMetadata", _one("str", op_name=2, source_file=3) | _one("int", source_line=4, stack_frame_id=15)
)
LITERAL = WireMessage(
    "LiteralProto",
    _many("int", preds=2, s32s=4, s64s=5, u32s=6, u64s=7)
    | _one("bytes", u8s=3, f32s=8, f64s=9, f16s=11, bf16s=13, s8s=15),
)
OTHER_VALUES = ("preds", "u8s", "s8s", "f32s", "f64s", "f16s", "bf16s")
"""Values of a literal that are no integers of 32 or 64 bits."""
SLICE = WireMessage("SliceDimensions", _one("int", start=1, limit=2, stride=3))
REPLICA_GROUP = WireMessage("ReplicaGroup", _many("int", replica_ids=1))
IOTA_GROUPS = WireMessage(
    "IotaReplicaGroupListProto", _one("int", groups=1, devices=2) | _many("int", reshape=3, transpose=4)
)
DEVICE_LIST = WireMessage(
    "CollectiveDeviceListProto", _many(REPLICA_GROUP, replica_groups=1) | _one(IOTA_GROUPS, iota=2)
)
MESH = WireMessage(
    "MeshProto", _many(WireMessage("MeshAxis", _one("str", name=1) | _one("int", size=2)), axes=1), rest="rest"
)
MESH_GROUPS = WireMessage(
    "MeshAxesReplicaGroupListProto",
    _one(MESH, mesh=1) | _many(WireMessage("AxisRef", _one("int", index=1), rest="rest"), axes=2),
)
ALIASING = WireMessage("OutputOperandAliasing", _many("int", output_index=1, operand_index=3) | _one("int", operand=2))
# Skipped fields do not affect the value; fields that are not listed are in `attributes`.
INSTRUCTION = WireMessage(
    "HloInstructionProto",
    _one("str", name=1, opcode=2, fusion_kind=11, target=28)
    | _one("bytes", shape=3, metadata=7, literal=8, backend_config=43)
    | _one("int", parameter_number=9, tuple_index=13, id=35)
    | _many(SLICE, slices=17)
    | _many("int", slice_sizes=20, operands=36, called=38)
    | _many(REPLICA_GROUP, replica_groups=49)
    | _many(WireMessage("SourceTarget", _one("int", source=1, target=2)), pairs=52)
    | _many(ALIASING, aliasing=74)
    | _one(DEVICE_LIST, devices=87)
    | _one(MESH_GROUPS, mesh_groups=93)
    | _one("skip", control_predecessors=37, sharding=40, frontend_attributes=68, statistics=82, original_value=88),
    rest="attributes",
)
CONVOLUTION = WireMessage(
    "ConvolutionDimensionNumbers",
    _one("int", kernel_input_feature=3, output_batch=9, output_feature=10) | _many("int", input_spatial=11),
)
WINDOW = WireMessage(
    "WindowDimension", _one("int", size=1, stride=2, padding_low=3, padding_high=4, window_dilation=5, base_dilation=6)
)
PRODUCT = WireMessage(
    "HloInstructionProto",
    _one(WireMessage("Window", _many(WINDOW, dimensions=1)), window=15)
    | _one(CONVOLUTION, convolution=16)
    | _one(WireMessage("DotDimensionNumbers", _many("int", lhs_contracting=1)), dot=30),
)
"""Contracted dimensions of products and convolutions, inside `attributes`."""
COMPUTATION = WireMessage(
    "HloComputationProto",
    _one("str", name=1) | _many("bytes", instructions=2) | _one("int", id=5, root_id=6) | _one("bool", is_fusion=7),
)
SEQUENCE = WireMessage("InstructionSequence", _many("int", instruction_ids=1))
SCHEDULE = WireMessage(
    "HloScheduleProto", _many(WireMessage("SequencesEntry", _one("int", key=1) | _one(SEQUENCE, value=2)), sequences=1)
)
ALIAS_ENTRY = WireMessage(
    "AliasEntryProto", _many("int", output_index=1, parameter_index=3) | _one("int", parameter_number=2)
)
STACK_FRAMES = WireMessage(
    "StackFrameIndexProto",
    _many("str", files=1)
    | _many(WireMessage("FileLocation", _one("int", file=1, line=3)), locations=3)
    | _many(WireMessage("StackFrame", _one("int", location=1)), frames=4),
)
MODULE = WireMessage(
    "HloModuleProto",
    _one("str", name=1)
    | _many(COMPUTATION, computations=3)
    | _one("int", entry_id=6)
    | _one(SCHEDULE, schedule=7)
    | _one(WireMessage("HloInputOutputAliasProto", _many(ALIAS_ENTRY, entries=1)), alias=8)
    | _one(STACK_FRAMES, stack_frames=17),
)
LOCATION = WireMessage("Location", _many("int", shape_index=3) | _one("int", instruction_id=4))
LOGICAL_BUFFER = WireMessage("LogicalBufferProto", _one("int", id=1) | _one(LOCATION, defined_at=3))
ASSIGNED = WireMessage("Assigned", _one("int", buffer=1, offset=2, size=3))
ALLOCATION = WireMessage(
    "BufferAllocationProto",
    _one("int", index=1, size=2, parameter_number=6, space=8)
    | _one("bool", is_thread_local=3, is_parameter=5, live_out=7, is_constant=12)
    | _many(ASSIGNED, assigned=9),
)
BUFFER_ASSIGNMENT = WireMessage(
    "BufferAssignmentProto", _many(LOGICAL_BUFFER, buffers=1) | _many(ALLOCATION, allocations=3)
)
HLO = WireMessage("HloProto", _one("bytes", module=1, assignment=3))

# fmt: off
DTYPES: dict[int, tuple[str, int]] = {
    1: ("pred", 8), 2: ("s8", 8), 3: ("s16", 16), 4: ("s32", 32), 5: ("s64", 64), 6: ("u8", 8), 7: ("u16", 16),
    8: ("u32", 32), 9: ("u64", 64), 10: ("f16", 16), 11: ("f32", 32), 12: ("f64", 64), 15: ("c64", 64),
    16: ("bf16", 16), 17: ("token", 0), 18: ("c128", 128), 19: ("f8e5m2", 8), 20: ("f8e4m3fn", 8), 21: ("s4", 8),
    22: ("u4", 8), 23: ("f8e4m3b11fnuz", 8), 24: ("f8e5m2fnuz", 8), 25: ("f8e4m3fnuz", 8), 26: ("s2", 8),
    27: ("u2", 8), 28: ("f8e4m3", 8), 29: ("f8e3m4", 8), 30: ("s1", 8), 31: ("u1", 8), 32: ("f4e2m1fn", 8),
    33: ("f8e8m0fnu", 8),
}
# fmt: on
"""PrimitiveType -> name and bits of an element; layouts may pack elements below a byte."""
TUPLE = 13

COLLECTIVES = (
    "all-gather", "all-reduce", "all-to-all", "collective-broadcast", "collective-permute", "ragged-all-to-all", "recv",
    "reduce-scatter", "send",
)  # fmt: skip
"""Prefixes of opcodes that communicate."""
