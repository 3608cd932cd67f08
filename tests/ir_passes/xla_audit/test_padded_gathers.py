"""Sums that gather: parts written into zeros, at the place of each device."""

from typing import Any

import pytest
from hlo_text import ADD, module_of
from traced_programs import scheduled

from ir_passes.xla_audit.collectives import collectives
from ir_passes.xla_audit.dataflow import live_values
from ir_passes.xla_audit.findings import Finding, FindingKind
from ir_passes.xla_audit.program import Buffers, Executable

PLACED = f"""
HloModule placed, is_scheduled=true{ADD}
largest {{
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] maximum(a, b)
}}

ENTRY main {{
  x = f32[8] parameter(0)
  other = f32[32] parameter(1)
  i = u32[] parameter(2)
  size = u32[] constant(8)
  zero = f32[] constant(0)
  device = u32[] partition-id()
  place = u32[] multiply(device, size)
  zeros = f32[32] broadcast(zero), dimensions={{}}
  padded = f32[32] dynamic-update-slice(zeros, x, place)
  ROOT whole = f32[32] all-reduce(padded), replica_groups={{{{0,1,2,3}}}}, to_apply=add
}}
"""
"""Four devices of one group."""
TABLE = f"""
HloModule table, is_scheduled=true{ADD}
ENTRY main {{
  x = f32[1,8] parameter(0)
  members = u32[4] constant({{0, 0, 1, 1}})
  zero = f32[] constant(0)
  row = s32[] constant(0)
  begun = (u32[4], u32[4], u32[]) copy-start(members)
  size = u32[1] constant({{8}})
  device = u32[] partition-id()
  done = u32[4] copy-done(begun)
  member = u32[1] dynamic-slice(done, device), dynamic_slice_sizes={{1}}
  product = u32[1] multiply(member, size)
  place = u32[] bitcast(product)
  zeros = f32[1,16] broadcast(zero), dimensions={{}}
  padded = f32[1,16] dynamic-update-slice(zeros, x, row, place)
  ROOT whole = f32[1,16] all-reduce(padded), replica_groups={{{{0,2}},{{1,3}}}}, to_apply=add
}}
"""
"""Two groups; libtpu reads a device's place from a table."""
FUSED = f"""
HloModule fused, is_scheduled=true{ADD}
pads {{
  zeros = f32[32] parameter(0)
  place = u32[] parameter(1)
  row = f32[1,8] parameter(2)
  part = f32[8] bitcast(row)
  ROOT padded = f32[32] dynamic-update-slice(zeros, part, place)
}}

ENTRY main {{
  x = f32[1,8] parameter(0)
  size = u32[] constant(8)
  zero = f32[] constant(0)
  device = u32[] partition-id()
  place = u32[] multiply(device, size)
  zeros = f32[32] broadcast(zero), dimensions={{}}
  padded = f32[32] fusion(zeros, place, x), kind=kLoop, calls=pads
  ROOT whole = f32[32] all-reduce(padded), replica_groups={{{{0,1,2,3}}}}, to_apply=add
}}
"""
PROGRAMS = {"placed": PLACED, "table": TABLE, "fused": FUSED}
GROUPS: dict[str, Any] = {
    "placed": frozenset({(0, 1, 2, 3)}), "table": frozenset({(0, 2), (1, 3)}), "fused": frozenset({(0, 1, 2, 3)})
}  # fmt: skip


def check(
    text: str, groups: frozenset[tuple[int, ...]], operation: str = "all_gather", dtype: str = "float32"
) -> tuple[list[Any], list[Finding]]:
    executable = Executable(module_of(text), Buffers({}, {}), {0: 0}, "tpu", 0, "")
    mesh = (("data", 2), ("model", 2)) if len(groups) == 2 else (("model", 4),)
    return collectives(executable, live_values(executable), mesh, (), [scheduled(operation, groups, dtype=dtype)])


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_sum_of_padded_parts_is_the_gather(name: str) -> None:
    matched, findings = check(PROGRAMS[name], GROUPS[name])
    assert findings == [] and [item.operation for item in matched] == ["all_gather"]


@pytest.mark.parametrize(("name", "old", "new"), [
    ("placed", "zero = f32[] constant(0)", "zero = f32[] constant(1)"),
    ("placed", "broadcast(zero)", "broadcast(x0)"),
    ("placed", "dynamic-update-slice(zeros,", "dynamic-update-slice(other,"),
    ("placed", "size = u32[] constant(8)", "size = u32[] constant(4)"),
    ("placed", "size = u32[] constant(8)", "size = u32[] constant(0)"),
    ("placed", "u32[] multiply(device, size)", "u32[] add(device, size)"),
    ("placed", "u32[] multiply(device, size)", "u32[] multiply(i, size)"),
    ("placed", "u32[] multiply(device, size)", "u32[] subtract(device, size)"),
    ("placed", "to_apply=add", "to_apply=largest"),
    ("placed", "{{0,1,2,3}}", "{{0,1},{2,3}}"),
    ("table", "{0, 0, 1, 1}", "{0, 0, 1, 0}"),
    ("table", "{0, 0, 1, 1}", "{1, 0, 0, 1}"),
    ("table", "{{0,2},{1,3}}", "{{0,1},{2,3}}"),
    ("table", "row = s32[] constant(0)", "row = s32[] constant(1)"),
    ("fused", "fusion(zeros, place, x)", "fusion(zeros, size, x)"),
], ids=["ones around", "a parameter around", "other numbers around", "parts overlap", "all parts at once",
        "places one apart", "a place that depends on data", "another sum", "the largest", "other groups",
        "two members in one place", "members in two orders", "groups over another axis", "another row",
        "one place"])  # fmt: skip
def test_other_sums_of_padded_parts_are_found(name: str, old: str, new: str) -> None:
    text = PROGRAMS[name].replace(old, new)
    assert text != PROGRAMS[name]
    text = text.replace("x = f32[8] parameter(0)", "x = f32[8] parameter(0)\n  x0 = f32[] parameter(3)")
    matched, findings = check(text, GROUPS[name])
    assert matched == [] and {finding.kind for finding in findings} == {
        FindingKind.COLLECTIVE, FindingKind.MISSING_COLLECTIVE
    }  # fmt: skip


@pytest.mark.parametrize(("groups", "operation", "dtype"), [
    (frozenset({(0, 1, 3, 2)}), "all_gather", "float32"),
    (frozenset({(0, 1, 2, 3)}), "all_gather", "int32"),
    (frozenset({(0, 1, 2, 3)}), "psum", "float32"),
], ids=["parts in another order", "of another dtype", "a sum of parts"])  # fmt: skip
def test_the_gather_is_the_programs(groups: frozenset[tuple[int, ...]], operation: str, dtype: str) -> None:
    matched, findings = check(PLACED, groups, operation, dtype)
    assert matched == [] and len(findings) == 2


def test_bytes_are_gathered_as_words_and_numbers_not_as_other_numbers() -> None:
    words = PLACED.replace("f32", "s8").replace("s8[32] all-reduce(padded)", "u32[8] all-reduce(words)")
    words = words.replace("ROOT whole", "words = u32[8] bitcast(padded)\n  ROOT whole")
    assert check(words, GROUPS["placed"], dtype="int8")[1] == []
    # A float's sum of words of four bytes could round them.
    floats = words.replace("u32[8]", "f32[8]")
    assert len(check(floats, GROUPS["placed"], dtype="int8")[1]) == 2
