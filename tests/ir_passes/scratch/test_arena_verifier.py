"""Wrong plans as offset tables, and wrong planners, are refused with equation and bytes."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arena_programs import MUTANTS, PROGRAMS, mutant_plan

from ir_passes import Lane, LaneContract, Opaque
from ir_passes.jaxpr import ir
from ir_passes.scratch.planner import Plan, PlanError, declared_scratch, plan, verify_plan

X = jax.ShapeDtypeStruct((4, 8), np.float32)  # 128 bytes


def simple(x):
    """add.0 [0, 1], mul.1 [1, 2], sin.2 [2, 3]; exp.3 is the output."""
    return jnp.exp(jnp.sin((x + 1) * 2))


def planned(fn, offsets: str, size: int = 1 << 12) -> Plan:
    """The plan of `fn` with other offsets, `name@offset` for each value in order."""
    result = plan(fn, (X,))
    settings = dict(item.split("@") for item in offsets.split())
    assert set(settings) == {p.name for p in result.placements}
    moved = tuple(replace(p, offset=int(settings[p.name])) for p in result.placements)
    return replace(result, placements=moved, size=size)


def test_values_at_different_times_may_share() -> None:
    plan = planned(simple, "add.0@0 mul.1@128 sin.2@0", size=256)
    verify_plan(plan.jaxpr, plan)


FAULTS = {
    "the same bytes at touching ends": (
        "add.0@0 mul.1@0 sin.2@128",
        r"equation 1: mul.1 in bytes \[0, 128\) live at equations \[1, 2\] overlaps "
        r"add.0 in bytes \[0, 128\) live at equations \[0, 1\]",
    ),
    "one block of 64 in common": ("add.0@0 mul.1@64 sin.2@192", r"equation 1: mul.1 .*overlaps add.0"),
    "one inside the other's end": ("add.0@256 mul.1@0 sin.2@64", r"equation 2: sin.2 .*overlaps mul.1"),
    "an odd offset": ("add.0@0 mul.1@136 sin.2@0", r"equation 1: .*\[136, 264\).* is not aligned to 64"),
    "the end of the arena": ("add.0@4032 mul.1@0 sin.2@128", r"equation 0: .*outside the arena of 4096 bytes"),
    "before the arena": ("add.0@-64 mul.1@64 sin.2@256", r"equation 0: .*outside the arena"),
}


@pytest.mark.parametrize(("offsets", "message"), FAULTS.values(), ids=FAULTS)
def test_refuses(offsets: str, message: str) -> None:
    plan = planned(simple, offsets)
    with pytest.raises(PlanError, match=message):
        verify_plan(plan.jaxpr, plan)


def edited(fn, edit) -> Plan:
    result = plan(fn, (X,))
    return replace(result, placements=tuple(edit(list(result.placements))))


EDITS = {
    "a missing value": (lambda ps: ps[1:], "equation 0: result 0 of add has no place"),
    "a value twice": (lambda ps: [ps[0], *ps], "equation 0: add.0 is placed twice, or is an output"),
    "an output": (lambda ps: [*ps, replace(ps[0], equation=3)], "equation 3: add.3 is placed twice, or is an output"),
    "no value": (lambda ps: [*ps, replace(ps[0], result=1)], "is an output, a view or no value"),
    "too few bytes": (lambda ps: [replace(ps[0], bytes=32), *ps[1:]], "add.0 has 128 bytes, the plan has 32"),
    "an early end": (
        lambda ps: [replace(ps[0], end=0), *ps[1:]],
        r"add.0 is live at equations \[0, 1\], the plan keeps its bytes at \[0, 0\]",
    ),
}


@pytest.mark.parametrize(("edit", "message"), EDITS.values(), ids=EDITS)
def test_refuses_a_plan_with(edit, message: str) -> None:
    result = edited(simple, edit)
    with pytest.raises(PlanError, match=message):
        verify_plan(result.jaxpr, result)


def test_refuses_to_plan_an_output_that_has_a_view() -> None:
    closed = ir.inline(ir.trace(lambda x: jnp.exp(x).reshape(-1), X))
    other = plan(simple, (X,))
    with pytest.raises(PlanError, match="equation 0: add.0 is placed twice, or is an output"):
        verify_plan(closed, replace(other, placements=other.placements[:1]))


def test_each_plan_of_a_body_that_runs_twice_is_checked() -> None:
    """Both loops share one jaxpr, and only its first plan is right."""
    body = jax.make_jaxpr(lambda carry, x: (jnp.sin(carry * 2) + x, carry))(jnp.float32(0), jnp.float32(0))

    def fn(x):
        run: Any = ir.as_function(body)
        carry, first = jax.lax.scan(run, jnp.float32(0), x)
        return jax.lax.scan(run, carry, first * 2)

    result = plan(fn, (jnp.zeros(4),))
    blocks = dict(result.blocks)
    *_, (equation, block) = blocks.items()
    ((offset, inner),) = block.bodies
    moved = replace(inner, placements=tuple(replace(placement, offset=0) for placement in inner.placements))
    assert len(blocks) == 2
    verify_plan(result.jaxpr, result)
    blocks[equation] = replace(block, bodies=((offset, moved),))
    with pytest.raises(PlanError, match=f"equation {equation}, in its body: .*overlaps"):
        verify_plan(result.jaxpr, replace(result, blocks=blocks))


def body_plan(name: str, edit) -> Plan:
    program = PROGRAMS[name]
    result = plan(program.fn, program.args(4))
    ((equation, block),) = result.blocks.items()
    return replace(result, blocks=edit(equation, block))


BODIES = {
    "without its body": (lambda e, b: {}, r"equations \[\d+\] need blocks, the plan has them for \[\]"),
    "with one body of two": (lambda e, b: {e: replace(b, bodies=b.bodies[:1])}, "runs 2 bodies, the plan has 1"),
    "with bodies on the same bytes": (
        lambda e, b: {e: replace(b, bodies=tuple((0, body) for _, body in b.bodies))},
        "bodies overlap",
    ),
    "with a body outside its block": (
        lambda e, b: {e: replace(b, bodies=tuple((offset + 64, body) for offset, body in b.bodies))},
        r"a body in bytes \[128, \d+\) of a block of \d+",
    ),
    "with a smaller arena for a body": (
        lambda e, b: {e: replace(b, bodies=(b.bodies[0], (64, replace(b.bodies[1][1], size=64))))},
        r"in its body: .*outside the arena of 64",
    ),
}


@pytest.mark.parametrize(("edit", "message"), BODIES.values(), ids=BODIES)
def test_refuses_a_loop(edit, message: str) -> None:
    plan = body_plan("loop", edit)
    with pytest.raises(PlanError, match=message):
        verify_plan(plan.jaxpr, plan)


def test_refuses_a_body_on_the_bytes_of_live_scratch() -> None:
    plan = body_plan("loop", lambda e, b: {e: b})
    ((equation, block),) = plan.blocks.items()
    live = next(p for p in plan.placements if p.start <= equation <= p.end)
    wrong = replace(plan, blocks={equation: replace(block, offset=live.offset)}, size=1 << 12)
    with pytest.raises(
        PlanError, match=f"equation {equation}: bodies of while.{equation} .*overlaps|overlaps bodies of"
    ):
        verify_plan(plan.jaxpr, wrong)


def test_branches_may_share_their_bytes() -> None:
    plan = body_plan("branch", lambda e, b: {e: b})
    ((_, block),) = plan.blocks.items()
    assert {offset for offset, _ in block.bodies} == {0}
    verify_plan(plan.jaxpr, plan)


@pytest.mark.parametrize(("mutant", "name"), [(mutant, name) for mutant, names in MUTANTS.items() for name in names])
def test_refuses_the_planner_with(mutant: str, name: str, monkeypatch) -> None:
    plan = mutant_plan(mutant, name, 4, monkeypatch)
    message = None if mutant == "size for one lane" else r"equation \d+: .* in bytes \[.*overlaps .* in bytes \["
    with pytest.raises(PlanError, match=message):
        verify_plan(plan.jaxpr, plan)


def doubled_by_host(x):
    return 2 * x


def calls_twice(x):
    call = lambda x: jax.pure_callback(doubled_by_host, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
    return (call(call(x * 3) + 1),)


def scratch_contract(size) -> LaneContract:
    declared = Opaque((Lane(),), (Lane(),), scratch_bytes=size)
    return LaneContract((Lane(),), (Lane(),), opaque={"doubled_by_host": declared})


@pytest.mark.parametrize("lanes", [1, 2, 3, 8])
def test_scratch_of_opaque_operations_comes_from_the_plan(lanes: int) -> None:
    contract = scratch_contract(lambda n: 1000 * n)
    result = plan(calls_twice, (jnp.ones((lanes, 5)),), contract)
    assert [block.bytes for block in list(result.blocks.values())] == [1000 * lanes, 1000 * lanes]
    assert result.size >= result.lower_bound >= 1000 * lanes + 20 * lanes
    assert result.size < plan(calls_twice, (jnp.ones((lanes, 5)),)).size + 2000 * lanes  # the calls share their scratch


def test_refuses_scratch_sized_for_one_lane() -> None:
    args = (jnp.ones((4, 5)),)
    small = plan(calls_twice, args, scratch_contract(lambda n: 1000))
    opaque: Any = scratch_contract(lambda n: 1000 * n).opaque
    with pytest.raises(PlanError, match="uses 4000 bytes of scratch, the plan gives it 1000"):
        verify_plan(small.jaxpr, small, opaque_scratch=declared_scratch(opaque, 4))
    with pytest.raises(ValueError, match="expected bytes, got -1"):
        plan(calls_twice, args, scratch_contract(lambda n: -1))
