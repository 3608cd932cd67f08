"""Field numbers of XLA's protobufs, in one table.

XLA does not promise stable numbers, so a test reads a known program through this table. Sources:
https://github.com/openxla/xla, xla/service/hlo.proto and xla/xla_data.proto.
"""

from ir_passes.xla_audit.wire import Field, Kind, WireMessage


def _many(name: str, kind: Kind) -> Field:
    return Field(name, kind, repeated=True)


def _one(name: str, message: WireMessage) -> Field:
    return Field(name, "message", message=message)


def _list(name: str, message: WireMessage) -> Field:
    return Field(name, "message", repeated=True, message=message)


TILE = WireMessage("TileProto", {1: _many("dimensions", "int")})
LAYOUT = WireMessage(
    "LayoutProto", {1: _many("minor_to_major", "int"), 6: _list("tiles", TILE), 7: Field("element_size_in_bits", "int")}
)

SHAPE = WireMessage(
    "ShapeProto",
    {
        2: Field("element_type", "int"),
        3: _many("dimensions", "int"),
        4: _many("tuple_shapes", "message"),
        5: _one("layout", LAYOUT),
    },
)

METADATA = WireMessage(
    "OpMetadata",
    {
        2: Field("op_name", "str"),
        3: Field("source_file", "str"),
        4: Field("source_line", "int"),
        15: Field("stack_frame_id", "int"),
    },
)
LITERAL = WireMessage(
    "LiteralProto",
    {
        2: _many("preds", "int"),
        3: Field("u8s", "bytes"),
        4: _many("s32s", "int"),
        5: _many("s64s", "int"),
        6: _many("u32s", "int"),
        7: _many("u64s", "int"),
        8: Field("f32s", "bytes"),
        9: Field("f64s", "bytes"),
        11: Field("f16s", "bytes"),
        13: Field("bf16s", "bytes"),
        15: Field("s8s", "bytes"),
    },
)
OTHER_VALUES = ("preds", "u8s", "s8s", "f32s", "f64s", "f16s", "bf16s")
"""Values of a literal that are no integers of 32 or 64 bits."""
SLICE = WireMessage("SliceDimensions", {1: Field("start", "int"), 2: Field("limit", "int"), 3: Field("stride", "int")})
REPLICA_GROUP = WireMessage("ReplicaGroup", {1: _many("replica_ids", "int")})
IOTA_GROUPS = WireMessage(
    "IotaReplicaGroupListProto",
    {1: Field("groups", "int"), 2: Field("devices", "int"), 3: _many("reshape", "int"), 4: _many("transpose", "int")},
)
DEVICE_LIST = WireMessage(
    "CollectiveDeviceListProto", {1: _list("replica_groups", REPLICA_GROUP), 2: _one("iota", IOTA_GROUPS)}
)
MESH = WireMessage(
    "MeshProto",
    {1: _list("axes", WireMessage("MeshAxis", {1: Field("name", "str"), 2: Field("size", "int")}))},
    rest="rest",
)
MESH_GROUPS = WireMessage(
    "MeshAxesReplicaGroupListProto",
    {1: _one("mesh", MESH), 2: _list("axes", WireMessage("AxisRef", {1: Field("index", "int")}, rest="rest"))},
)
ALIASING = WireMessage(
    "OutputOperandAliasing",
    {1: _many("output_index", "int"), 2: Field("operand", "int"), 3: _many("operand_index", "int")},
)
INSTRUCTION = WireMessage(
    "HloInstructionProto",
    {
        1: Field("name", "str"),
        2: Field("opcode", "str"),
        3: Field("shape", "bytes"),
        7: Field("metadata", "bytes"),
        8: Field("literal", "bytes"),
        9: Field("parameter_number", "int"),
        11: Field("fusion_kind", "str"),
        13: Field("tuple_index", "int"),
        17: _list("slices", SLICE),
        20: _many("slice_sizes", "int"),
        28: Field("target", "str"),
        35: Field("id", "int"),
        36: _many("operands", "int"),
        38: _many("called", "int"),
        43: Field("backend_config", "bytes"),
        49: _list("replica_groups", REPLICA_GROUP),
        52: _list("pairs", WireMessage("SourceTarget", {1: Field("source", "int"), 2: Field("target", "int")})),
        74: _list("aliasing", ALIASING),
        87: _one("devices", DEVICE_LIST),
        93: _one("mesh_groups", MESH_GROUPS),
        # Fields that do not affect the value: order, sharding, frontend attributes, statistics, origin.
        37: Field("control_predecessors", "skip"),
        40: Field("sharding", "skip"),
        68: Field("frontend_attributes", "skip"),
        82: Field("statistics", "skip"),
        88: Field("original_value", "skip"),
    },
    rest="attributes",
)
CONVOLUTION = WireMessage(
    "ConvolutionDimensionNumbers",
    {
        3: Field("kernel_input_feature", "int"),
        9: Field("output_batch", "int"),
        10: Field("output_feature", "int"),
        11: _many("input_spatial", "int"),
    },
)
WINDOW = WireMessage(
    "WindowDimension",
    {
        1: Field("size", "int"),
        2: Field("stride", "int"),
        3: Field("padding_low", "int"),
        4: Field("padding_high", "int"),
        5: Field("window_dilation", "int"),
        6: Field("base_dilation", "int"),
    },
)
PRODUCT = WireMessage(
    "HloInstructionProto",
    {
        15: _one("window", WireMessage("Window", {1: _list("dimensions", WINDOW)})),
        16: _one("convolution", CONVOLUTION),
        30: _one("dot", WireMessage("DotDimensionNumbers", {1: _many("lhs_contracting", "int")})),
    },
)
"""Contracted dimensions of products and convolutions, in `attributes`."""
COMPUTATION = WireMessage(
    "HloComputationProto",
    {
        1: Field("name", "str"),
        2: _many("instructions", "bytes"),
        5: Field("id", "int"),
        6: Field("root_id", "int"),
        7: Field("is_fusion", "bool"),
    },
)
SEQUENCE = WireMessage("InstructionSequence", {1: _many("instruction_ids", "int")})
SCHEDULE = WireMessage(
    "HloScheduleProto",
    {1: _list("sequences", WireMessage("SequencesEntry", {1: Field("key", "int"), 2: _one("value", SEQUENCE)}))},
)
ALIAS_ENTRY = WireMessage(
    "AliasEntryProto",
    {1: _many("output_index", "int"), 2: Field("parameter_number", "int"), 3: _many("parameter_index", "int")},
)
STACK_FRAMES = WireMessage(
    "StackFrameIndexProto",
    {
        1: _many("files", "str"),
        3: _list("locations", WireMessage("FileLocation", {1: Field("file", "int"), 3: Field("line", "int")})),
        4: _list("frames", WireMessage("StackFrame", {1: Field("location", "int")})),
    },
)
MODULE = WireMessage(
    "HloModuleProto",
    {
        1: Field("name", "str"),
        3: _list("computations", COMPUTATION),
        6: Field("entry_id", "int"),
        7: _one("schedule", SCHEDULE),
        8: _one("alias", WireMessage("HloInputOutputAliasProto", {1: _list("entries", ALIAS_ENTRY)})),
        17: _one("stack_frames", STACK_FRAMES),
    },
)

LOCATION = WireMessage("Location", {3: _many("shape_index", "int"), 4: Field("instruction_id", "int")})
LOGICAL_BUFFER = WireMessage("LogicalBufferProto", {1: Field("id", "int"), 3: _one("defined_at", LOCATION)})
ASSIGNED = WireMessage("Assigned", {1: Field("buffer", "int"), 2: Field("offset", "int"), 3: Field("size", "int")})
ALLOCATION = WireMessage(
    "BufferAllocationProto",
    {
        1: Field("index", "int"),
        2: Field("size", "int"),
        3: Field("is_thread_local", "bool"),
        5: Field("is_parameter", "bool"),
        6: Field("parameter_number", "int"),
        7: Field("live_out", "bool"),
        8: Field("space", "int"),
        9: _list("assigned", ASSIGNED),
        12: Field("is_constant", "bool"),
    },
)
BUFFER_ASSIGNMENT = WireMessage(
    "BufferAssignmentProto", {1: _list("buffers", LOGICAL_BUFFER), 3: _list("allocations", ALLOCATION)}
)
HLO = WireMessage("HloProto", {1: Field("module", "bytes"), 3: Field("assignment", "bytes")})

DTYPES: dict[int, tuple[str, int]] = {
    1: ("pred", 8),
    2: ("s8", 8),
    3: ("s16", 16),
    4: ("s32", 32),
    5: ("s64", 64),
    6: ("u8", 8),
    7: ("u16", 16),
    8: ("u32", 32),
    9: ("u64", 64),
    10: ("f16", 16),
    11: ("f32", 32),
    12: ("f64", 64),
    15: ("c64", 64),
    16: ("bf16", 16),
    17: ("token", 0),
    18: ("c128", 128),
    19: ("f8e5m2", 8),
    20: ("f8e4m3fn", 8),
    21: ("s4", 8),
    22: ("u4", 8),
    23: ("f8e4m3b11fnuz", 8),
    24: ("f8e5m2fnuz", 8),
    25: ("f8e4m3fnuz", 8),
    26: ("s2", 8),
    27: ("u2", 8),
    28: ("f8e4m3", 8),
    29: ("f8e3m4", 8),
    30: ("s1", 8),
    31: ("u1", 8),
    32: ("f4e2m1fn", 8),
    33: ("f8e8m0fnu", 8),
}
"""PrimitiveType: name and bits of an element; only layouts have elements below a byte."""
TUPLE = 13

COLLECTIVES = (
    "all-gather",
    "all-reduce",
    "all-to-all",
    "collective-broadcast",
    "collective-permute",
    "ragged-all-to-all",
    "recv",
    "reduce-scatter",
    "send",
)
"""Prefixes of opcodes that move data between devices."""
