"""Collectives of compiled programs: sums that XLA:GPU joins, the order of devices, and constants."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hlo_text import ADD, module_of
from traced_programs import scheduled

from ir_passes.xla_audit.collectives import collectives
from ir_passes.xla_audit.dataflow import live_values
from ir_passes.xla_audit.findings import Finding, FindingKind
from ir_passes.xla_audit.program import Buffers, Executable

JOINED = """
HloModule joined, is_scheduled=true

sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] REDUCER(a, b)
}

after {
  one = f32[SIZES0] parameter(0)
  two = f32[SIZES1] parameter(1)
  ROOT both = f32[SIZES2] concatenate(one, two), dimensions={0}
}

ENTRY main {
  x = f32[SIZES0] parameter(0)
  y = f32[SIZES1] parameter(1)
  z = f32[SIZES2] fusion(x, y), kind=kLoop, calls=after
  begun = f32[SIZES2] all-reduce-start(z), to_apply=sum, channel_id=1, replica_groups={GROUPS},
    use_global_device_ids=true
  ROOT done = f32[SIZES2] all-reduce-done(begun)
}
"""
MESH = (("data", 2), ("model", 2))
OVER_MODEL = frozenset({(0, 1), (2, 3)})


psum = partial(scheduled, "psum", OVER_MODEL)


def check(scheduled: list[Any], sizes: Any = (16, 4, 20), reducer: str = "add", groups: str = "{0,1},{2,3}") -> Any:
    text = JOINED.replace("REDUCER", reducer).replace("GROUPS", groups)
    for i, size in enumerate(sizes):
        text = text.replace(f"SIZES{i}", str(size))
    executable = Executable(module_of(text), Buffers({}, {}), {0: 0, 1: 1}, "gpu", 0, "")
    return collectives(executable, live_values(executable), MESH, (), scheduled)


def test_sums_of_consecutive_elements_match_the_program() -> None:
    result, findings = check([psum(4, source="b:2"), psum(16, source="a:1")])
    assert findings == [] and [item.source for item in result] == ["a:1", "b:2"]


def test_a_sum_of_concatenated_operands_counts_once() -> None:
    result, findings = check([psum(20, source="a:1")])
    assert findings == [] and [item.source for item in result] == ["a:1"]


@pytest.mark.parametrize(("scheduled", "settings"), [
    ([psum(16, source="a:1")], {}),
    ([psum(16, source="a:1"), psum(5, source="b:2")], {}),
    ([psum(16, source="a:1"), psum(4, "int32", "b:2")], {}),
    ([psum(16, source="a:1"), psum(4, source="b:2")], {"reducer": "maximum"}),
    ([psum(16, source="a:1"), psum(4, source="b:2")], {"groups": "{0,2},{1,3}"}),
    ([psum(32, source="a:1"), psum(8, source="b:2")], {"sizes": ("16,2", "4,2", "20,2")}),
], ids=["one too few", "of another length",
        "of another dtype", "not summed", "over another axis", "not flat"])  # fmt: skip
def test_what_is_not_joined_of_the_programs_sums_is_found(scheduled: list[Any], settings: dict[str, Any]) -> None:
    result, findings = check(scheduled, **settings)
    assert result == [] and len(findings) == 1 + len(scheduled)


ORDERED = {
    "all_gather": "all-gather(x), dimensions={0}",
    "all_to_all": "all-to-all(x), dimensions={0}",
    "reduce_scatter": "reduce-scatter(x), dimensions={0}, to_apply=add",
    "psum": "all-reduce(x), to_apply=add",
}
SIZES = {"all_gather": 16, "reduce_scatter": 4}
EXCHANGED = (
    f"HloModule exchanged, is_scheduled=true{ADD}"
    + """
ENTRY main {
  x = f32[8] parameter(0)
  ROOT y = f32[SIZE] OPERATION, replica_groups={GROUPS}
}
"""
)


def exchanging(operation: str, groups: str) -> Executable:
    text = EXCHANGED.replace("SIZE", str(SIZES.get(operation, 8)))
    text = text.replace("OPERATION", ORDERED[operation]).replace("GROUPS", groups)
    return Executable(module_of(text), Buffers({}, {}), {0: 0}, "cpu", 0, "")


def exchange(
    operation: str, groups: str, *, constant: bool = False, members: frozenset[tuple[int, ...]] = OVER_MODEL
) -> tuple[list[Any], list[Finding]]:
    executable = exchanging(operation, groups)
    expected = [scheduled(operation, members, constant=constant)]
    return collectives(executable, live_values(executable), MESH, (), expected)


@pytest.mark.parametrize("operation", ORDERED)
def test_devices_of_a_group_are_in_the_programs_order(operation: str) -> None:
    assert exchange(operation, "{0,1},{2,3}")[1] == []
    kinds = {finding.kind for finding in exchange(operation, "{1,0},{2,3}")[1]}
    assert kinds == (set() if operation == "psum" else {FindingKind.COLLECTIVE, FindingKind.MISSING_COLLECTIVE})


@pytest.mark.parametrize("operation", ["all_gather", "all_to_all", "reduce_scatter"])
def test_groups_in_another_order_than_the_mesh(operation: str) -> None:
    turned = frozenset({(1, 0), (3, 2)})
    assert exchange(operation, "{1,0},{3,2}", members=turned)[1] == []
    assert len(exchange(operation, "{0,1},{2,3}", members=turned)[1]) == 2


@pytest.mark.parametrize("constant", [False, True])
def test_only_a_collective_of_a_constant_may_be_missing(constant: bool) -> None:
    assert exchange("psum", "{0,1},{2,3}", constant=constant)[1] == []
    kinds = {finding.kind for finding in exchange("psum", "{0,2},{1,3}", constant=constant)[1]}
    assert kinds == {FindingKind.COLLECTIVE} | (set() if constant else {FindingKind.MISSING_COLLECTIVE})


def test_a_compiled_sum_matches_the_input_and_not_of_a_constant() -> None:
    executable = exchanging("psum", "{0,1},{2,3}")
    table = replace(psum(8, source="constant:1"), constant=True)
    result, findings = collectives(executable, live_values(executable), MESH, (), [table, psum(8, source="input:2")])
    assert findings == [] and [item.source for item in result] == ["input:2"]
