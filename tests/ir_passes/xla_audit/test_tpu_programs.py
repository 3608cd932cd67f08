"""Programs of XLA:TPU: asynchronous copies, on-chip memories, tiles, shared branch bytes."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hlo_text import Place, placed

from ir_passes import MeasuredFault
from ir_passes.xla_audit.dataflow import in_place_hazards, live_values
from ir_passes.xla_audit.findings import FindingKind
from ir_passes.xla_audit.kernels import kernels_in
from ir_passes.xla_audit.memory import misplaced, overlaps, scratch_lower_bound
from ir_passes.xla_audit.program import Buffers, Executable, Index, Slice

HBM, CHIP = "f32[64,128]{1,0:T(8,128)}", "f32[64,128]{1,0:T(8,128)S(1)}"
SIZE = 4 * 64 * 128
COPY = f"""
HloModule m, is_scheduled=true

ENTRY main {{
  x = {HBM} parameter(0)
  y = {HBM} parameter(1)
  new = {HBM} negate(x)
  start = ({CHIP}, {HBM}, u32[]{{:S(2)}}) copy-start(new)
  other = {CHIP} negate(y)
  done = {CHIP} copy-done(start)
  more = {CHIP} negate(y)
  sum = {CHIP} add(done, other)
  ROOT all = {HBM} add(sum, more)
}}
"""
ASYNC = f"""
HloModule m, is_scheduled=true

slices {{
  p = {HBM} parameter(0)
  ROOT part = f32[8,128]{{1,0:T(8,128)S(1)}} slice(p), slice={{[0:8], [0:128]}}
}}

ENTRY main {{
  x = {HBM} parameter(0)
  y = {HBM} parameter(1)
  new = {HBM} negate(x)
  start = (({HBM}), f32[8,128]{{1,0:T(8,128)S(1)}}, u32[]{{:S(2)}}) async-start(new), calls=slices
  other = {HBM} negate(y)
  done = f32[8,128]{{1,0:T(8,128)S(1)}} async-done(start)
  ROOT all = (f32[8,128]{{1,0:T(8,128)S(1)}}, {HBM}) tuple(done, other)
}}
"""
BRANCHES = """
HloModule m, is_scheduled=true

first {
  p = (f32[8]{0}, f32[8]{0}) parameter(0)
  a = f32[8]{0} get-tuple-element(p), index=0
  b = f32[8]{0} get-tuple-element(p), index=1
  twice = f32[8]{0} add(b, b)
  ROOT r = f32[8]{0} negate(twice)
}

second {
  q = (f32[8]{0}, f32[8]{0}) parameter(0)
  c = f32[8]{0} get-tuple-element(q), index=0
  ROOT s = f32[8]{0} negate(c)
}

ENTRY main {
  i = s32[] parameter(0)
  x = f32[8]{0} parameter(1)
  y = f32[8]{0} parameter(2)
  kept = f32[8]{0} negate(x)
  both = (f32[8]{0}, f32[8]{0}) tuple(kept, y)
  out = f32[8]{0} conditional(i, both, both), branch_computations={first, second}
  ROOT end = f32[8]{0} negate(out)
}
"""
SAME = f"""
HloModule m, is_scheduled=true

ENTRY main {{
  x = {HBM} parameter(0)
  new = {HBM} negate(x)
  again = {HBM} copy(new)
  ROOT all = ({HBM}, {HBM}) tuple(new, again)
}}
"""
FUSED = f"""
HloModule m, is_scheduled=true

fused {{
  p = {HBM} parameter(0)
  q = {HBM} parameter(1)
  less = pred[64,128]{{1,0:T(32,128)(4,1)}} compare(p, q), direction=LT
  ROOT picked = {HBM} select(less, p, q)
}}

ENTRY main {{
  x = {HBM} parameter(0)
  y = {HBM} parameter(1)
  new = {HBM} negate(x)
  ROOT all = {HBM} fusion(new, y), kind=kLoop, calls=fused
}}
"""

NESTED = FUSED.replace("fused {", "inner {").replace(
    "ENTRY",
    f"""fused {{
  u = {HBM} parameter(0)
  v = {HBM} parameter(1)
  ROOT nested = {HBM} fusion(u, v), kind=kCustom, calls=inner
}}

ENTRY""",
)

SUM = f"""
HloModule m, is_scheduled=true

plus {{
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}}

fused {{
  p = {HBM} parameter(0)
  q = {HBM} parameter(1)
  zero = f32[] constant(0)
  product = {HBM} multiply(p, q)
  total = f32[64]{{0:T(128)}} reduce(product, zero), dimensions={{1}}, to_apply=plus
  ROOT results = (f32[64]{{0:T(128)}}, {HBM}) tuple(total, product)
}}

ENTRY main {{
  x = {HBM} parameter(0)
  y = {HBM} parameter(1)
  new = {HBM} negate(x)
  ROOT all = (f32[64]{{0:T(128)}}, {HBM}) fusion(new, y), kind=kLoop, calls=fused,
    backend_config={{"aliasing_operands":{{"lists":[{{"indices":["0","3"]}}]}}}}
}}
"""

HALF = "f32[32,128]{1,0:T(8,128)S(1)}"
JOIN = f"""
HloModule m, is_scheduled=true

low {{
  p = {HBM} parameter(0)
  ROOT first = {HALF} slice(p), slice={{[0:32], [0:128]}}
}}

high {{
  q = {HBM} parameter(0)
  ROOT second = {HALF} slice(q), slice={{[32:64], [0:128]}}
}}

ENTRY main {{
  x = {HBM} parameter(0)
  y = {HBM} parameter(1)
  a = (({HBM}), {HALF}, u32[]{{:S(2)}}) async-start(x), calls=high
  b = (({HBM}), {HALF}, u32[]{{:S(2)}}) async-start(x), calls=low
  a_done = {HALF} async-done(a)
  b_done = {HALF} async-done(b)
  whole = {CHIP} custom-call(a_done, b_done), custom_call_target="ConcatBitcast"
  ROOT all = {HBM} negate(whole)
}}
"""


ON_CHIP = [*((name, ()) for name in ("other", "done", "more", "sum", "part")), *(("start", (i,)) for i in range(3))]


def program(text: str, equal: Mapping[Place, Place] | None = None) -> Executable:
    executable = placed(text, equal, "tpu", ON_CHIP)
    ids = {instruction.name: instruction.id for instruction in executable.module.instructions.values()}
    slices = {key: place for key, place in executable.buffers.slices.items() if key != (ids.get("start"), (1,))}
    return replace(executable, buffers=Buffers(executable.buffers.allocations, slices))


def found(executable: Executable) -> list[FindingKind | MeasuredFault]:
    live = live_values(executable)
    assert live.uncovered == ()
    hazards = [FindingKind.READ_AFTER_WRITE for _ in in_place_hazards(executable, live)]
    return [*hazards, *(finding.kind for check in (overlaps, misplaced) for finding in check(executable, live))]


def at(name: str, *index: int) -> Place:
    return name, index


JOINED = {at("r"): at("out"), at("s"): at("out")}
KEPT = {**JOINED, at("twice"): at("kept")}
RIGHT = {
    "a copy beside others": (COPY, {}),
    "its source is free when it is done": (COPY, {at("more"): at("new")}),
    "a slice beside others": (ASYNC, {}),
    "branches": (BRANCHES, JOINED),
    "a branch writes over what another reads": (BRANCHES, KEPT),
    "a copy that stays where it is": (SAME, {at("again"): at("new")}),
    "elements of a narrower type between": (FUSED, {at("all"): at("new")}),
    "a fusion in a fusion": (NESTED, {at("all"): at("new")}),
    "elements beside a sum of them": (SUM, {at("all", 1): at("new")}),
}  # fmt: skip
WRONG = {
    "its source is written before it is done": (COPY, {at("other"): at("new")}, FindingKind.OVERLAP),
    "its result is written while it is copied": (COPY, {at("other"): at("start", 0)}, FindingKind.OVERLAP),
    "a slice's source is written before it is done": (ASYNC, {at("other"): at("new")}, FindingKind.OVERLAP),
    "a branch reads what it has written over": (BRANCHES.replace("negate(twice)", "add(twice, a)"), KEPT,
        FindingKind.OVERLAP),
    "what follows the branches reads it": (BRANCHES.replace("negate(out)", "add(out, kept)"), KEPT,
        FindingKind.OVERLAP),
    "a copy that is turned where it is": (
        SAME.replace("again = f32[64,128]{1,0", "again = f32[64,128]{0,1").replace(
            f"ROOT all = ({HBM}, {HBM}", f"ROOT all = ({HBM}, {HBM.replace('1,0', '0,1')}"
        ),
        {at("again"): at("new")},
        FindingKind.READ_AFTER_WRITE,
    ),
    "a copy into other tiles where it is": (
        SAME.replace("again = f32[64,128]{1,0:T(8", "again = f32[64,128]{1,0:T(4").replace(
            f"ROOT all = ({HBM}, {HBM}", f"ROOT all = ({HBM}, {HBM.replace('T(8', 'T(4')}"
        ),
        {at("again"): at("new")},
        FindingKind.READ_AFTER_WRITE,
    ),
    "a sum beside elements that may not share bytes": (SUM.replace('["0","3"]', '["1","3"]'), {at("all", 1): at("new")},
        FindingKind.READ_AFTER_WRITE),
    "a sum beside elements of which nothing is said": (SUM.replace("aliasing_operands", "others"),
        {at("all", 1): at("new")}, FindingKind.READ_AFTER_WRITE),
    "a sum of rows turned round beside elements": (
        SUM.replace("product = ", f"back = {HBM} reverse(p), dimensions={{0}}\n  product = ").replace(
            "multiply(p, q)", "multiply(back, q)"
        ),
        {at("all", 1): at("new")},
        FindingKind.READ_AFTER_WRITE,
    ),
    "a fusion in a fusion that turns rows round": (
        NESTED.replace("less = ", f"back = {HBM} reverse(p), dimensions={{0}}\n  less = ").replace(
            "select(less, p, q)", "select(less, back, q)"
        ),
        {at("all"): at("new")},
        FindingKind.READ_AFTER_WRITE,
    ),
    "a fusion into other tiles where it is": (
        FUSED.replace(f"picked = {HBM}", f"picked = {HBM.replace('T(8', 'T(4')}").replace(
            f"all = {HBM}", f"all = {HBM.replace('T(8', 'T(4')}"
        ),
        {at("all"): at("new")},
        FindingKind.READ_AFTER_WRITE,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("text", "equal"), RIGHT.values(), ids=RIGHT)
def test_right_programs(text: str, equal: Mapping[Place, Place]) -> None:
    assert found(program(text, equal)) == []


@pytest.mark.parametrize(("text", "equal", "kind"), WRONG.values(), ids=WRONG)
def test_wrong_programs(text: str, equal: Mapping[Place, Place], kind: FindingKind) -> None:
    assert kind in found(program(text, equal))


CUTS = {
    "each where it was cut from": ({}, 0, SIZE // 2, True),
    "the other way round": ({}, SIZE // 2, 0, False),
    "a hole between them": ({}, 0, SIZE, False),
    "of two arrays": ({"async-start(x), calls=low": "async-start(y), calls=low"}, 0, SIZE // 2, False),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "low", "high", "right"), CUTS.values(), ids=CUTS)
def test_slices_are_taken_for_the_array_that_they_fill(changes: Mapping[str, str], low: int, high: int, right: bool):
    text = JOIN
    for old, new in changes.items():
        text = text.replace(old, new)
    executable = program(text)
    ids = {instruction.name: instruction.id for instruction in executable.module.instructions.values()}
    full = executable.buffers.slices[ids["whole"], ()]
    slices = {key: place for key, place in executable.buffers.slices.items() if key[1] != (1,)}
    for name, offset in (("first", low), ("second", high)):
        slices[ids[name], ()] = Slice(full.allocation, offset, SIZE // 2)
    grown = {full.allocation: replace(executable.buffers.allocations[full.allocation], size=2 * SIZE)}
    moved = replace(executable, buffers=Buffers({**executable.buffers.allocations, **grown}, slices))
    kinds = set(found(moved))
    assert kinds == set() if right else {FindingKind.OVERLAP, FindingKind.READ_AFTER_WRITE} <= kinds


def test_tables_of_a_tpu_have_pointers_of_32_bits() -> None:
    executable = program(SAME)
    key: tuple[int, Index] = (executable.module.main.root, ())
    place = executable.buffers.slices[key]
    for size, kinds in ((8, []), (7, [FindingKind.MISPLACED])):
        slices = {**executable.buffers.slices, key: replace(place, size=size)}
        assert found(replace(executable, buffers=Buffers(executable.buffers.allocations, slices))) == kinds


def test_bytes_that_are_moved_match_the_devices_own_memory() -> None:
    executable = program(COPY)
    moved = {kernel.name: (kernel.read, kernel.written) for kernel in kernels_in(executable, {}).kernels}
    assert moved == {
        "new": (SIZE, SIZE), "start": (SIZE, 0), "other": (SIZE, 0), "more": (SIZE, 0), "sum": (0, 0),
        "all": (0, SIZE),
    }  # fmt: skip
    sliced = {kernel.name: (kernel.read, kernel.written) for kernel in kernels_in(program(ASYNC), {}).kernels}
    assert sliced["start"] == (4 * 8 * 128, 0), "a slice alone, and that on the chip"
    gpu = replace(executable, platform="gpu")
    assert {kernel.name: kernel.written for kernel in kernels_in(gpu, {}).kernels}["sum"] == SIZE


def test_scratch_on_the_chip_is_no_scratch_of_the_device() -> None:
    executable = program(COPY)
    live = live_values(executable)
    assert scratch_lower_bound(executable, live) < scratch_lower_bound(replace(executable, platform="gpu"), live)
