"""In-place fusions of XLA:GPU for an H100, and the same with faults."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest
from card_kernels import executable_on
from hlo_text import ADD, Place, placed

from ir_passes.xla_audit.dataflow import in_place_hazards, live_values
from ir_passes.xla_audit.findings import FindingKind
from ir_passes.xla_audit.memory import misplaced, overlaps
from ir_passes.xla_audit.program import Index

REDUCTION = (
    f"HloModule m, is_scheduled=true{ADD}"
    + """
fused {
  p = f32[64,128]{1,0} parameter(0)
  q = f32[64,128]{1,0} parameter(1)
  zero = f32[] constant(0)
  product = f32[64,128]{1,0} multiply(p, q)
  sum = f32[64]{0} reduce(product, zero), dimensions={1}, to_apply=add
  rest = f32[64,128]{1,0} subtract(p, q)
  ROOT results = (f32[64]{0}, f32[64,128]{1,0}) tuple(sum, rest)
}

ENTRY main {
  x = f32[64,128]{1,0} parameter(0)
  y = f32[64,128]{1,0} parameter(1)
  ROOT made = (f32[64]{0}, f32[64,128]{1,0}) fusion(x, y), kind=kInput, calls=fused
}
"""
)

SORT = """
HloModule m, is_scheduled=true

order {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  c = s32[] parameter(2)
  d = s32[] parameter(3)
  e = s32[] parameter(4)
  f = s32[] parameter(5)
  ROOT g = pred[] compare(a, b), direction=GT
}

fused {
  p = f32[4,16]{1,0} parameter(0)
  q = s32[4,16]{1,0} parameter(1)
  places = s32[4,16]{1,0} iota(), iota_dimension=1
  ROOT sorted = (f32[4,16]{1,0}, s32[4,16]{1,0}, s32[4,16]{1,0}) sort(p, q, places), dimensions={1}, to_apply=order
}

ENTRY main {
  x = f32[4,16]{1,0} parameter(0)
  y = s32[4,16]{1,0} parameter(1)
  ROOT made = (f32[4,16]{1,0}, s32[4,16]{1,0}, s32[4,16]{1,0}) fusion(x, y), kind=kCustom, calls=fused
}
"""


class Case(NamedTuple):
    """A program, its results in argument bytes, and other changes.

    Attributes:
        shared: index of a result -> the argument.
    """

    text: str
    shared: dict[Index, int]
    changes: tuple[tuple[str, str], ...] = ()
    platform: str = "gpu"


def found(case: Case) -> list[tuple[int, Index, str]]:
    """Return operand, result and opcode of each hazard's displaced read."""
    text = case.text
    for old, new in case.changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return hazards_of(
        text, {("made", index): ("xy"[argument], ()) for index, argument in case.shared.items()}, case.platform
    )


def hazards_of(text: str, equal: Mapping[Place, Place], platform: str = "gpu") -> list[tuple[int, Index, str]]:
    executable = placed(text, equal, platform)
    hazards = in_place_hazards(executable, live_values(executable))
    return [(hazard.operand, hazard.index, hazard.through.opcode) for hazard in hazards]


ROWS, BOTH = "(f32[64]{0}, f32[64,128]{1,0})", "(f32[64]{0}, f32[64,128]{1,0}, f32[64,128]{1,0})"
PRODUCT, REST = "product = f32[64,128]{1,0} multiply(p, q)", "rest = f32[64,128]{1,0} subtract(p, q)"
BACK = "back = f32[64,128]{1,0} reverse(p), dimensions={0}"
TRITON = 'kind=kCustom, backend_config={"fusion_backend_config":{"kind":"__triton"}}'


def reduction(*changes: tuple[str, str], results: str = ROWS, **options: Any) -> Case:
    """A program with its second result in the bytes of its first argument."""
    text = REDUCTION.replace(f"made = {ROWS}", f"made = {results}").replace(f"results = {ROWS}", f"results = {results}")
    return Case(text, **{"shared": {(1,): 0}, **options}, changes=changes)


def sort(shared: dict[Index, int], *changes: tuple[str, str], **options: Any) -> Case:
    return Case(SORT, shared, changes, **options)


RIGHT = {
    "elements beside a sum of them": reduction(),
    "in the bytes of the other operand": reduction(shared={(1,): 1}),
    "sum of columns": reduction(
        ("f32[64]{0} reduce(product, zero), dimensions={1}", "f32[128]{0} reduce(product, zero), dimensions={0}"),
        results="(f32[128]{0}, f32[64,128]{1,0})",
    ),
    "sum that is returned in another shape": reduction(("  rest =", "  shaped = f32[8,8]{1,0} bitcast(sum)\n  rest ="),
        ("tuple(sum", "tuple(shaped"), results="(f32[8,8]{1,0}, f32[64,128]{1,0})"),
    "sorted where it was": sort({(0,): 0}),
    "both sorted where they were": sort({(0,): 0, (1,): 1}),
}  # fmt: skip
WRONG = {
    "sum on a CPU": (reduction(platform="cpu"), (0, (1,), "reduce")),
    "sum in a loop": (reduction(("kInput", "kLoop")), (0, (1,), "reduce")),
    "sum of another row": (reduction((PRODUCT, f"{BACK}\n  {PRODUCT.replace('(p', '(back')}")), (0, (1,), "reverse")),
    "sum of a part": (reduction((PRODUCT, "product = f32[64,64]{1,0} slice(p), slice={[0:64], [0:64]}")),
        (0, (1,), "reduce")),
    "what needs the sum first": (
        reduction(
            (REST, f"spread = f32[64,128]{{1,0}} broadcast(sum), dimensions={{0}}\n  {REST.replace('q', 'spread')}")
        ),
        (0, (1,), "broadcast"),
    ),
    "sum with something after it": (
        reduction(("  rest =", "  root = f32[64]{0} sqrt(sum)\n  rest ="), ("tuple(sum", "tuple(root")),
        (0, (1,), "reduce"),
    ),
    "sum that another result is made of": (
        reduction(
            ("  rest =", "  root = f32[64]{0} sqrt(sum)\n  rest ="),
            ("tuple(sum, rest", "tuple(sum, rest, root"),
            results="(f32[64]{0}, f32[64,128]{1,0}, f32[64]{0})",
        ),
        (0, (1,), "reduce"),
    ),
    "rows turned round beside the sum": (
        reduction(
            ("  ROOT results", f"  {BACK}\n  ROOT results"), ("tuple(sum, rest", "tuple(sum, rest, back"), results=BOTH
        ),
        (0, (1,), "reverse"),
    ),
    "the sum itself": (reduction(shared={(0,): 0}), (0, (0,), "reduce")),
    "sum of rows of one element": (reduction(shared={(0,): 0})._replace(text=REDUCTION.replace("64,128", "64,1")),
        (0, (0,), "reduce")),
    "sort on a CPU": (sort({(0,): 0}, platform="cpu"), (0, (0,), "sort")),
    "sort in a loop": (sort({(0,): 0}, ("kCustom", "kLoop")), (0, (0,), "sort")),
    "sort by Triton": (sort({(0,): 0}, ("kind=kCustom", TRITON)), (0, (0,), "sort")),
    # The first operand is copied there before the second is read.
    "first result in the bytes of the second operand": (sort({(0,): 1}), (1, (0,), "sort")),
    "places in the bytes of an operand": (sort({(2,): 0}), (0, (2,), "sort")),
    "turned round before it is sorted": (
        sort(
            {(0,): 0},
            ("  places =", "  back = f32[4,16]{1,0} reverse(p), dimensions={1}\n  places ="),
            ("sort(p, q, places)", "sort(back, q, places)"),
        ),
        (0, (0,), "sort"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_fusions_of_a_gpu_that_are_right_in_place(name: str) -> None:
    assert found(RIGHT[name]) == []


@pytest.mark.parametrize("name", WRONG)
def test_fusions_that_overwrite_their_operands_are_found(name: str) -> None:
    case, expected = WRONG[name]
    assert found(case) == [expected]


@pytest.mark.parametrize("name", WRONG)
def test_the_same_fusions_with_separate_bytes_are_right(name: str) -> None:
    assert found(WRONG[name][0]._replace(shared={})) == []


ALL_REDUCE = (
    f"HloModule exchanged, is_scheduled=true{ADD}"
    + """
ENTRY main {
  x = f32[4,16]{1,0} parameter(0)
  y = f32[4,16]{1,0} parameter(1)
  both = (f32[4,16]{1,0}, f32[4,16]{1,0}) all-reduce-start(x, y), to_apply=add, MORE
  ROOT made = (f32[4,16]{1,0}, f32[4,16]{1,0}) all-reduce-done(both)
}
"""
)


@pytest.mark.parametrize(("result", "operand", "backend", "expected"), [
    (0, 0, "NCCL", []), (1, 1, "NCCL", []), (0, 1, "NCCL", [(1, (0,))]), (1, 0, "NCCL", [(0, (1,))]),
    (0, 0, "NVSHMEM", [(0, (0,))]),
])  # fmt: skip
def test_sums_over_devices_are_taken_where_their_own_operands_lie(
    result: int, operand: int, backend: str, expected: list[tuple[int, Index]]
) -> None:
    text = ALL_REDUCE.replace("MORE", f'backend_config={{"backend":"{backend}"}}')
    hazards = hazards_of(text, {("both", (result,)): ("xy"[operand], ())})
    assert [hazard[:2] for hazard in hazards] == expected


CALL = """
HloModule called, is_scheduled=true

ENTRY main {
  x = f32[16,16]{1,0} parameter(0)
  y = f32[16,16]{1,0} parameter(1)
  z = f32[16,16]{1,0} parameter(2)
  ROOT made = f32[16,16]{1,0} custom-call(x, y, z), custom_call_target="TARGET"MORE
}
"""
OVER_THE_LAST = ", output_to_operand_aliasing={{}: (2, {})}"


@pytest.mark.parametrize("target", ["__cublas$lt$matmul", "__cudnn$convBiasActivationForward", "__gpu$xla.gpu.triton"])
@pytest.mark.parametrize(
    ("message", "operand", "good"), [(OVER_THE_LAST, 2, True), (OVER_THE_LAST, 0, False), ("", 2, False)]
)
def test_a_call_of_a_library_writes_over_the_operand_alone_that_it_names(
    target: str, message: str, operand: int, good: bool
) -> None:
    """A product added to an operand, or a kernel that overwrites its named operand."""
    hazards = hazards_of(CALL.replace("TARGET", target).replace("MORE", message), {("made", ()): ("xyz"[operand], ())})
    assert [hazard[:2] for hazard in hazards] == ([] if good else [(operand, ())])


ALL_GATHER = """
HloModule gathered, is_scheduled=true

ENTRY main {
  x = f32[4,16]{1,0} parameter(0)
  own = f32[4,16]{1,0} negate(x)
  begun = (f32[4,16]{1,0}, f32[8,16]{1,0}) all-gather-start(own), replica_groups={{0,1}}, dimensions={0}
  meanwhile = f32[4,16]{1,0} negate(x)
  whole = f32[8,16]{1,0} all-gather-done(begun)
  ROOT both = (f32[8,16]{1,0}, f32[4,16]{1,0}) tuple(whole, meanwhile)
}
"""


def check_overlap(text: str, equal: Mapping[Place, Place], good: bool) -> None:
    executable = placed(text, equal)
    live = live_values(executable)
    assert list(misplaced(executable, live)) == []
    assert [overlap.kind for overlap in overlaps(executable, live)] == ([] if good else [FindingKind.OVERLAP])


@pytest.mark.parametrize("separate", [True, False])
def test_operand_of_a_gather_is_in_use_until_it_is_done(separate: bool) -> None:
    """Values computed during a gather must not use its bytes."""
    check_overlap(ALL_GATHER, {} if separate else {("meanwhile", ()): ("own", ())}, separate)


MEANWHILE = (
    f"HloModule exchanged, is_scheduled=true{ADD}"
    + """
ENTRY main {
  x = f32[4,16]{1,0} parameter(0)
  own = f32[4,16]{1,0} negate(x)
  begun = f32[4,16]{1,0} all-reduce-start(own), to_apply=add
  meanwhile = f32[4,16]{1,0} negate(x)
  summed = f32[4,16]{1,0} all-reduce-done(begun)
  ROOT both = (f32[4,16]{1,0}, f32[4,16]{1,0}) tuple(summed, meanwhile)
}
"""
)


OWN, BEGUN, BESIDE = ("own", ()), ("begun", ()), ("meanwhile", ())


@pytest.mark.parametrize(("equal", "good"), [
    ({BEGUN: OWN}, True), ({}, True), ({BESIDE: OWN}, False), ({BEGUN: OWN, BESIDE: OWN}, False),
], ids=["in place", "apart", "over what is read", "over the sum"])  # fmt: skip
def test_operand_of_a_sum_that_begins_early_is_in_use_until_it_is_done(
    equal: Mapping[Place, Place], good: bool
) -> None:
    check_overlap(MEANWHILE, equal, good)


sums_beside = lambda p, x: (p - x, (p * x).sum(-1))
best = lambda x: jax.lax.top_k(x * 2.0, 4)


@pytest.mark.target_cuda
@pytest.mark.parametrize(("fn", "shapes", "donated"), [(sums_beside, [(64, 128)] * 2, (0,)), (best, [(4, 16)], ())])
def test_operations_of_gpus_in_place(fn: Any, shapes: Any, donated: tuple[int, ...]) -> None:
    """XLA does so, and by the rules of a CPU it would be a hazard."""
    arrays = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)
    executable = executable_on("nvidia-h100", fn, *arrays, donated=donated)
    hazards = [
        len(list(in_place_hazards(program, live_values(program))))
        for program in (executable, replace(executable, platform="cpu"))
    ]
    assert hazards == [0, 1]
