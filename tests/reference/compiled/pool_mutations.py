"""Scheduled programs with whole pools outside their bytes: dtypes, shapes, operations, places.

They are written as text, and their buffers are assigned here, one for each value: XLA compiles none of them.
"""

import re
from collections.abc import Iterator
from functools import cache
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from hlo_text import module_of

from ir_passes import FindingKind, Lane, LaneContract, Pool, SlotMap
from ir_passes.contract.contract import BoundContract
from ir_passes.xla_audit.audit import audit_executable
from ir_passes.xla_audit.program import Allocation, Buffers, Executable, Slice

LANES, ROWS = 4, 9
DTYPES: dict[str, tuple[Any, str, str]] = {
    "f32": (jnp.float32, "bf16", "u32"), "bf16": (jnp.bfloat16, "f32", "u16"), "f16": (jnp.float16, "f32", "s16"),
    "f8e4m3fn": (jnp.float8_e4m3fn, "f16", "u8"), "s32": (jnp.int32, "f32", "f32"), "s8": (jnp.int8, "s32", "u8"),
    "s4": (jnp.int4, "s8", "u4"), "pred": (jnp.bool_, "s32", "pred"), "c64": (jnp.complex64, "c128", "c64"),
    "u32": (jnp.uint32, "f32", "s32"),
}  # fmt: skip
"""Dtypes of pools by XLA's names: JAX's, one to convert to, one of the same bits. Random keys are u32."""
FORMS: dict[str, tuple[tuple[int, ...], int]] = {
    "numbers": ((ROWS,), 0),
    "vectors": ((ROWS, 8), 0),
    "matrices": ((ROWS, 4, 2), 0),
    "layers": ((3, ROWS, 8), 1),
}
"""Dimensions of pools, each with the axis of rows."""
MOVES = {
    "copy": "r = {type} copy(p)",
    "asynchronous copy": "begun = ({type}, {type}, u32[]) copy-start(p)\n r = {type} copy-done(begun)",
    "convert": "r = {wide} convert(p)",
    "bits": "r = {bits} bitcast-convert(p)",
    "transpose": "r = {turned} transpose(p), dimensions={{{order}}}",
    "reshape": "r = {column} reshape(p)",
    "all rows but one": "r = {fewer} slice(p), slice={{{but_one}}}",
    "all rows but one, flat": "part = {fewer} slice(p), slice={{{but_one}}}\n r = {flat} reshape(part)",
    "reverse": "r = {type} reverse(p), dimensions={{{axis}}}",
    "pieces": "a = {three} slice(p), slice={{{to_three}}}\n b = {six} slice(p), slice={{{from_three}}}\n"
    " r = {type} concatenate(b, a), dimensions={{{axis}}}",
    "pad": "z = {number} constant({zero})\n r = {more} pad(p, z), padding={padding}",
    "broadcast": "r = {twice} broadcast(p), dimensions={{{behind}}}",
    "dynamic-slice": "o = s32[] constant(0)\n r = {type} dynamic-slice(p, {starts}), dynamic_slice_sizes={{{dims}}}",
    "dynamic-update-slice": "o = s32[] constant(0)\n z = {number} constant({zero})\n"
    " zeros = {type} broadcast(z), dimensions={{}}\n r = {type} dynamic-update-slice(zeros, p, {starts})",
    "gather": "each = s32[9] iota(), iota_dimension=0\n r = {type} gather(p, each), offset_dims={{{others}}},"
    " collapsed_slice_dims={{{axis}}}, start_index_map={{{axis}}}, index_vector_dim=1, slice_sizes={{{row}}}",
    "all-gather": "r = {gathered} all-gather(p), replica_groups={{{{0,1}}}}, dimensions={{{axis}}}",
    "sort": "r = {type} sort(p), dimensions={{{axis}}}, to_apply=less",
}
"""Operations that move a pool's elements: `r` holds the elements of `p`."""
COMPUTATIONS = {
    "select": "z = {number} constant({zero})\n zeros = {type} broadcast(z), dimensions={{}}\n"
    " yes = pred[] constant(1)\n mask = {mask} broadcast(yes), dimensions={{}}\n r = {type} select(mask, p, zeros)",
    "arithmetic": "r = {type} {combine}(p, p)",
    "comparison": "r = {mask} compare(p, p), direction=EQ",
    "call": 'r = {type} custom-call(p), custom_call_target="beside"',
}
"""Operations with results computed from a pool's elements, and new rows if these are the lanes'."""
PLACES = {
    "entry": """
ENTRY main {{
  pool = {type} parameter(0)
  slots = s32[4] parameter(1)
  x = f32[4] parameter(2)
  {body}
  ROOT pool_out = ({type}, f32[4]) tuple(pool, x)
}}""",
    "fusion": """
fused {{
  p = {type} parameter(0)
  {root}
}}
ENTRY main {{
  pool = {type} parameter(0)
  slots = s32[4] parameter(1)
  x = f32[4] parameter(2)
  r = {result} fusion(pool), kind=kLoop, calls=fused
  ROOT pool_out = ({type}, f32[4]) tuple(pool, x)
}}""",
    "loop": """
body {{
  pool_carried = (s32[], {type}) parameter(0)
  i = s32[] get-tuple-element(pool_carried), index=0
  pool = {type} get-tuple-element(pool_carried), index=1
  {body}
  ROOT next = (s32[], {type}) tuple(i, pool)
}}
condition {{
  pool_seen = (s32[], {type}) parameter(0)
  ROOT yes = pred[] constant(1)
}}
ENTRY main {{
  pool = {type} parameter(0)
  slots = s32[4] parameter(1)
  x = f32[4] parameter(2)
  first = s32[] constant(0)
  begin = (s32[], {type}) tuple(first, pool)
  pool_loop = (s32[], {type}) while(begin), body=body, condition=condition
  pool_end = {type} get-tuple-element(pool_loop), index=1
  ROOT pool_out = ({type}, f32[4]) tuple(pool_end, x)
}}""",
    "branch": """
yes {{
  pool = {type} parameter(0)
  {body}
  ROOT done = s32[] constant(1)
}}
no {{
  pool_unread = {type} parameter(0)
  ROOT done = s32[] constant(0)
}}
ENTRY main {{
  pool = {type} parameter(0)
  slots = s32[4] parameter(1)
  x = f32[4] parameter(2)
  choose = pred[] constant(1)
  chosen = s32[] conditional(choose, pool, pool), true_computation=yes, false_computation=no
  ROOT pool_out = ({type}, f32[4]) tuple(pool, x)
}}""",
}
"""Programs around an operation: bare, in a fusion, in the body of a loop, in a branch."""
LESS = """
less {{
  a = {number} parameter(0)
  b = {number} parameter(1)
  ROOT c = pred[] compare(a, b), direction=LT
}}"""


def mutations(operation: str) -> Iterator[tuple[str, str, str, str]]:
    """Yield dtype, form, operation and place, the four places by turns."""
    for i, dtype in enumerate(DTYPES):
        for j, (form, (dims, _)) in enumerate(FORMS.items()):
            places = [place for place in PLACES if (operation, place) != ("asynchronous copy", "fusion")]
            none = (operation, dtype) in (("bits", "pred"), ("bits", "c64"), ("sort", "c64"))
            if not none and not (operation == "transpose" and len(dims) == 1):
                yield dtype, form, operation, places[(i + j) % len(places)]


def kinds_of(
    dtype: str, form: str, operation: str, place: str, *, by_lane: bool = False, lanes: int = LANES
) -> set[FindingKind]:
    """The kinds of the findings about the pool of one program.

    Args:
        by_lane: every row is a lane's; otherwise a slot map names the rows.
        lanes: number of lanes with a slot map.
    """
    executable = executable_of(_text(dtype, form, (MOVES | COMPUTATIONS)[operation], place))
    report = audit_executable(executable, bound_of(dtype, form, by_lane, lanes))
    kinds = {finding.kind for finding in report.findings}
    return {kind for kind in (FindingKind.POOL_COPY, FindingKind.SECOND_POOL) if kind in kinds}


def executable_of(text: str) -> Executable:
    """An executable with "pool..." values in parameter 0 and others separate."""
    module = module_of("HloModule step, is_scheduled=true, input_output_alias={ {0}: (0, {}) }\n" + text)
    pool = module.main.parameters[0].array
    allocations = {0: Allocation(0, pool.bytes, 0, True, False, False)}
    slices: dict[tuple[int, tuple[int, ...]], Slice] = {}
    for instruction in module.instructions.values():
        for index, array in instruction.arrays.items():
            if instruction.name.startswith("pool") and array == pool:
                slices[instruction.id, index] = Slice(0, 0, pool.bytes)
                continue
            number = len(allocations)
            entry = instruction.computation == module.entry and instruction.opcode == "parameter"
            allocations[number] = Allocation(
                number, array.bytes, instruction.parameter if entry else None, False, False, False
            )
            slices[instruction.id, index] = Slice(number, 0, array.bytes)
    parameters = {number: number for number in module.main.parameters}
    return Executable(module, Buffers(allocations, slices), parameters, "cpu", 0, "")


@cache
def bound_of(dtype: str, form: str, by_lane: bool, lanes: int) -> BoundContract:
    dims, axis = FORMS[form]
    slots = Lane() if by_lane else SlotMap("p", ROWS)
    contract = LaneContract((Pool("p", axis=axis), slots, Lane()), (Pool("p", axis=axis), Lane()))
    count = ROWS if by_lane else lanes
    arrays = ((dims, DTYPES[dtype][0]), ((count,), jnp.int32), ((count,), jnp.float32))
    return contract.bind(lambda pool, slots, x: (pool, x), tuple(jax.ShapeDtypeStruct(*array) for array in arrays))


def _text(dtype: str, form: str, operation: str, place: str) -> str:
    dims, axis = FORMS[form]
    _, wide, bits = DTYPES[dtype]
    rest = [i for i in range(len(dims)) if i != axis]
    order = list(reversed(range(len(dims))))

    def array(sizes: tuple[int, ...], of: str = dtype) -> str:
        layout = ",".join(str(i) for i in reversed(range(len(sizes))))
        packed = f"{{{layout}:E(4)}}" if of in ("s4", "u4") else ""
        return f"{of}[{_listed(sizes)}]{packed}"

    rows = lambda count: (*dims[:axis], count, *dims[axis + 1 :])

    def cut(start: int, stop: int) -> str:
        return ", ".join(f"[{start}:{stop}]" if i == axis else f"[0:{size}]" for i, size in enumerate(dims))

    fields = {
        "type": array(dims), "wide": array(dims, wide), "bits": array(dims, bits), "mask": array(dims, "pred"),
        "number": array(()), "turned": array(tuple(dims[i] for i in order)), "column": array((prod(dims), 1)),
        "fewer": array(rows(ROWS - 1)), "flat": array((prod(rows(ROWS - 1)),)), "three": array(rows(3)),
        "six": array(rows(6)), "more": array(rows(ROWS + 2)), "twice": array((2, *dims)),
        "gathered": array(rows(2 * ROWS)), "but_one": cut(1, ROWS), "to_three": cut(0, 3), "from_three": cut(3, ROWS),
        "axis": axis, "order": _listed(order), "others": _listed(rest), "dims": _listed(dims),
        "row": _listed(rows(1)),
        "behind": _listed([i + 1 for i in range(len(dims))]), "starts": ", ".join("o" for _ in dims),
        "padding": "x".join("1_1" if i == axis else "0_0" for i in range(len(dims))),
        "zero": {"pred": "false", "c64": "(0, 0)"}.get(dtype, "0"), "combine": "or" if dtype == "pred" else "add",
    }  # fmt: skip
    body = operation.format(**fields)
    result = body.rsplit("r = ", 1)[1].split(" ")[0]
    fields |= {"body": re.sub(r"\bp\b", "pool", body), "result": result}
    fields["root"] = "ROOT r = ".join(body.rsplit("r = ", 1))
    return (LESS.format(**fields) if "less" in operation else "") + PLACES[place].format(**fields)


def _listed(numbers: Any) -> str:
    return ",".join(map(str, numbers))
