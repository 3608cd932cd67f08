"""Control flow: the rules of `scan`, `while` and `cond`.

More than 300 lines: the fixpoint of a loop, with the inputs and outputs of its body.
"""

from collections.abc import Callable, Container, Hashable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ir_passes.contract.normal_form import flatten
from ir_passes.jaxpr import ir
from ir_passes.jaxpr.bodies import counts_up, maker
from ir_passes.jaxpr.fingerprint import PLACES, fingerprint
from ir_passes.proof import refusals
from ir_passes.proof.concerned import pool_path
from ir_passes.proof.intervals import FALSE, dtype_range, hull
from ir_passes.proof.numbering import NONE, Number
from ir_passes.proof.owners import Common, LaneRows, Mixed, OneLane, Owner, PoolRows, Symbol, axis_of, moved
from ir_passes.proof.registry import rule
from ir_passes.proof.rules.addressing import token_tiles, token_windows
from ir_passes.proof.rules.addressing.packed_tokens import at_index, in_branch, relocated
from ir_passes.proof.rules.addressing.token_layout import LAYOUT_FACTS
from ir_passes.proof.rules.lane_loops import counter_of, stops_by_lane
from ir_passes.proof.site import Site, interpret
from ir_passes.proof.values import (
    ActiveCount,
    Constant,
    Greatest,
    Iota,
    PageEntry,
    PreviousLane,
    SlotEntry,
    Tiles,
    TokenSpan,
    Value,
    WithinLane,
)
from ir_passes.proof.views import left

_Carried = Callable[[Value], Value | None]
MAX_ROUNDS = 12
"""Limit on rounds to the fixpoint, per carry; each round drops facts."""


def join_values(site: Site, first: Value, second: Value) -> Value:
    """Join two abstract values: keep the facts of both."""
    if first == second:
        return first
    owner = _checked_order(site, _merge_owners(site, first.owner, second.owner), first, second)
    number = first.number if first.number == second.number else site.prover.fresh()
    fact = first.fact if first.fact == second.fact and not isinstance(first.fact, Constant) else None
    intact = first.intact if first.intact == second.intact else None
    version = first.version if first.version == second.version else None
    if version is None and first.version is not None and second.version is not None:
        leaves = {site.prover.versions.leaf_of[first.version], site.prover.versions.leaf_of[second.version]}
        if len(leaves) == 1:
            version = site.prover.versions.first(leaves.pop())
    bounds = hull(first.range, second.range)
    return Value(owner, number, bounds, fact, intact, version, first.uniform & second.uniform)


def _checked_order(site: Site, owner: Owner, *values: Value) -> Owner:
    """Refuse shared values that reveal an order of all lanes."""
    if not isinstance(owner, LaneRows) or owner.order is None:
        return owner
    if all(not isinstance(value.owner, Common) or owner.axis in value.uniform for value in values):
        return owner
    return site.mixed(*refusals.ARRAY_FOR_ROWS)


def _merge_owners(site: Site, first: Owner, second: Owner) -> Owner:
    """Join two owners; two views of a pool have no join."""
    if isinstance(first, PoolRows) and isinstance(second, PoolRows) and first.view != second.view:
        return site.mixed(*refusals.OTHER_VIEW)
    owner = site.join(first, second)
    if isinstance(owner, PoolRows) and not (isinstance(first, PoolRows) and isinstance(second, PoolRows)):
        return site.unframed(owner)
    return owner


def flowing(site: Site, values: list[Value], predicate: Owner, writes: list[Any]) -> list[Value]:
    """Join results of control flow with the owner of its predicate."""
    if isinstance(predicate, Common):
        return values
    if isinstance(predicate, OneLane):
        # a lane number local to a device is another lane on each device, and lanes of the full step write rows
        writes_own_rows = all(record.lane == predicate and not predicate.split for record in writes)
        exempt = [isinstance(v.owner, PoolRows) and v.owner.unframed is None and writes_own_rows for v in values]
        joined = [value.replace(owner=site.join(value.owner, predicate), number=0) for value in values]
        return [old if is_exempt else new for is_exempt, old, new in zip(exempt, values, joined, strict=True)]
    owner = site.mixed(*refusals.COUPLED_CONTROL)
    return [Value(owner) for _ in values]


@rule("cond", reads="branches", ignores="branches_platforms")
def cond(site: Site, index: Value, *operands: Value) -> list[Value]:
    prover = site.prover
    branches = site.params["branches"]
    if index.range is not None and index.range[0] == index.range[1]:
        branches = [branches[min(max(index.range[0], 0), len(branches) - 1)]]
    test, flag = maker(site.jaxpr, site.eqn.invars[0]), None
    if len(branches) == 2 and test is not None and test.primitive.name == "convert_element_type":
        flag = prover.read(site.env, test.invars[0]) if ir.dtype_of(test.invars[0]) == np.bool_ else None
    initially_consumed, start = set(prover.versions.consumed), len(prover.accesses)
    consumed, merged, parts = set(initially_consumed), None, list[range]()
    for k, branch in enumerate(branches):
        prover.versions.consumed = set(initially_consumed)
        begin = len(prover.accesses)
        inputs = operands if flag is None else in_branch(site, flag, k == 1, operands)
        active = prover.active | (_active_lane(site, test) if flag is not None and k == 1 else set())
        with prover.decided_by(site.eqn.invars[0]), prover.given(active=active):
            values = interpret(prover, branch, inputs)
        parts.append(range(begin, len(prover.accesses)))
        consumed |= prover.versions.consumed
        merged = values if merged is None else [join_values(site, a, b) for a, b in zip(merged, values, strict=True)]
    prover.versions.consumed = consumed
    in_all = set.intersection(*({prover.accesses[i].row for i in part} for part in parts))
    for k, part in enumerate(parts):
        _place_writes(site, part, ("branch", index.number, k), in_all)
    return flowing(site, merged or [], index.owner, [record for record in prover.accesses[start:] if record.write])


def _place_writes(site: Site, part: range, place: Hashable, in_all: Container[Any] = ()) -> None:
    """Add a branch or loop to the coordinates of its writes, which may not run.

    Args:
        part: of the prover's accesses.
        in_all: rows that all branches write.
    """
    for i in part:
        access = site.prover.accesses[i]
        if access.write and access.row not in in_all:
            site.prover.accesses[i] = replace(access, coordinate=(place, access.coordinate))


def _refuse_stale(site: Site, values: Iterable[Value]) -> None:
    """Refuse old versions of pools in a loop's next iteration."""
    for value in values:
        if value.version is not None and site.prover.versions.stale(value.version):
            site.report(*refusals.STALE_READ(path=pool_path(site.prover, value)))


def _active_lane(site: Site, conversion: Any) -> set[Number]:
    test = site.maker(conversion.invars[0])
    if test is None or test.primitive.name not in ("lt", "gt"):
        return set()
    lane, count = (
        site.prover.read(site.env, atom) for atom in test.invars[:: 1 if test.primitive.name == "lt" else -1]
    )
    is_lane = isinstance(lane.owner, Common) and lane.range is not None and lane.range[0] >= 0
    return {lane.number} if count.fact == ActiveCount() and is_lane else set()


@rule("while", reads="body_jaxpr body_nconsts cond_jaxpr cond_nconsts")
def while_loop(site: Site, *operands: Value) -> list[Value]:
    """Iterate the carries to their fixpoint.

    The condition must be the same for all lanes, or stop each lane separately, as under `vmap`.
    """
    prover, params = site.prover, site.params
    condition, body = params["cond_jaxpr"], params["body_jaxpr"]
    condition_count, body_count = params["cond_nconsts"], params["body_nconsts"]
    outer, inner = operands[:condition_count], operands[condition_count : condition_count + body_count]
    start, first = len(prover.accesses), operands[condition_count + body_count :]
    counter, mark, index = counter_of(prover, condition, body, outer, body_count, first), prover.fresh(), prover.fresh()
    counters, counted = {}, {}
    if counter is not None:
        k, bound = counter
        bounds, limits = first[k].range, dtype_range(body.jaxpr.outvars[k].aval)
        if bounds and limits:
            counters = {k: (bounds[0], limits[1])}
            stop = limits[1] if bound.range is None else max(bound.range[1], bounds[0] + 1)
            if bound.fact == ActiveCount():
                prover.active.add(index)
            counted = {
                k: {"range": (bounds[0], stop - 1), "fact": token_tiles.counted(site, first[k], bound), "number": index}
            }

    def run_body(carry: list[Value]) -> tuple[list[Value], list[Value]]:
        with prover.decided_by(condition.jaxpr.outvars[0]):
            test = interpret(prover, condition, [*outer, *carry])
            values = [value.replace(**counted.get(k, {})) for k, value in enumerate(carry)]
            outputs = interpret(prover, body, [*inner, *values])
        if is_array_condition and not isinstance(test[0].owner, Mixed):
            outputs = [value.replace(owner=site.join(test[0].owner, value.owner), number=NONE) for value in outputs]
        return outputs, test

    is_array_condition = condition.jaxpr.outvars[0].aval.shape != ()
    layouts = prover.bound.layouts.items() if counted else ()
    tokens = {OneLane(Symbol(index, size), packed=name): False for name, size in layouts if size}
    neighbours = partial(token_windows.carried, site, tokens=tokens)
    carry, test = _fixpoint(site, list(first), run_body, counters, mark, neighbours)
    _refuse_stale(site, (*outer, *inner, *carry))
    count = id(site.eqn) if counter is None else (first[counter[0]].number, counter[1].number)
    _place_writes(site, range(start, len(prover.accesses)), ("while", count))
    if test[0].range == FALSE and not isinstance(test[0].owner, Mixed):  # no iteration, of an idle lane or at all
        carry = [value.replace(intact=old.intact) for value, old in zip(carry, first, strict=True)]
    if is_array_condition and not isinstance(test[0].owner, Mixed):
        return carry
    greatest = counter if counter is not None and isinstance(counter[1].fact, Greatest) else None
    if isinstance(test[0].owner, Mixed):
        changed = stops_by_lane(prover, condition, body, outer, inner, carry, greatest)
        if changed is not None:
            # the last values of shared carries depend on the number of iterations
            return [Value(test[0].owner) if k in changed else value for k, value in enumerate(carry)]
    writes = [record for record in prover.accesses[start:] if record.write]
    return flowing(site, carry, test[0].owner, writes)


def _fixpoint(
    site: Site, carry: list[Value], run_body: Any, counters: dict[int, Any], mark: int, carried: _Carried
) -> tuple[list[Value], list[Value]]:
    """Return carries that hold in every iteration, and the body's other results.

    Versions of pools advance with the iterations, and belong to one chain if the body continues the chain.

    Args:
        mark: value numbers from `mark` on are inside the loop.
        carried: the body's result as the next iteration sees it, or None.
    """
    prover = site.prover
    carry = [_initial_carry(site, value, counters.get(k)) for k, value in enumerate(carry)]
    for _ in range(MAX_ROUNDS * len(carry)):
        forget, varying = prover.mark(), len(prover.device_varying)
        outputs, rest = run_body([value.replace(number=prover.fresh()) for value in carry])
        next_carry = [
            _widened_carry(site, old, carried(new) or _after_iteration(site, new, mark), counters.get(k))
            for k, (old, new) in enumerate(zip(carry, outputs, strict=True))
        ]
        if next_carry == carry and varying == len(prover.device_varying):
            break
        forget()
        carry = next_carry
    else:
        owner = site.mixed(*refusals.NOT_SETTLED)
        carry = [Value(owner) for _ in carry]
        outputs, rest = run_body([value.replace(number=prover.fresh()) for value in carry])
    results = []
    for old, new in zip(carry, outputs, strict=True):
        new = _after_iteration(site, new, mark)
        is_stale = old.version is not None and new.version is None
        results.append(
            join_values(site, old, new).replace(number=prover.fresh(), version=None if is_stale else new.version)
        )
    return results, rest


def _initial_carry(site: Site, value: Value, counter: Any) -> Value:
    fact = value.fact if isinstance(value.fact, ActiveCount | SlotEntry | PageEntry) else None
    bounds = counter if counter is not None else value.range
    return value.replace(number=0, fact=fact, range=bounds)


def _widened_carry(site: Site, old: Value, new: Value, counter: Any) -> Value:
    """Widen a carry: keep facts that an iteration does not change."""
    joined = join_values(site, old, new)
    # a first value that is no lane: the fixpoint shows if the carry is the previous token's lane from then on
    is_no_lane = old.range is not None and (old.range[1] < 0 or old.range[0] > site.prover.bound.lanes)
    if is_no_lane and old.fact is None and isinstance(new.fact, PreviousLane):
        joined = joined.replace(fact=new.fact)
    keeps_bounds = counter is not None or hull(old.range, new.range) == old.range
    version = None if joined.version is None else old.version
    return joined.replace(number=NONE, range=old.range if keeps_bounds else None, version=version)


def _after_iteration(site: Site, value: Value, mark: int) -> Value:
    """Refuse owners of one iteration, such as the lane of the loop's index."""
    owner = value.owner
    value = value.replace(fact=None) if isinstance(value.fact, PreviousLane) else value
    if isinstance(owner, OneLane) and isinstance(owner.lane, Symbol) and owner.lane.number >= mark:
        return Value(site.mixed(*refusals.CARRIED_LANE), range=value.range)
    if isinstance(owner, OneLane | LaneRows) and any(
        isinstance(tile, Symbol) and tile.number >= mark for tile in owner.split
    ):
        return Value(site.mixed(*refusals.CARRIED_TILE), range=value.range)
    if isinstance(owner, LaneRows) and owner.order is not None and owner.order.number >= mark:
        return Value(site.mixed(*refusals.ORDER_INSIDE))
    return value


def _counters(jaxpr: Any, num_consts: int, carry: list[Value], length: int) -> dict[int, tuple[int, int]]:
    counters = {}
    for k, value in enumerate(carry):
        limits, is_scalar = dtype_range(jaxpr.outvars[k].aval), ir.shape_of(jaxpr.outvars[k]) == ()
        if value.range is None or limits is None or length < 1 or not is_scalar or not counts_up(jaxpr, k, num_consts):
            continue
        bounds = value.range[0], value.range[1] + length - 1
        counters |= {k: bounds} if bounds[1] < limits[1] else {}
    return counters


@rule("scan", reads="ft_in ft_out jaxpr length num_carry num_consts reverse", ignores="_split_transpose linear unroll")
def scan(site: Site, *operands: Value) -> list[Value]:
    """Iterate to the fixpoint, with one index of `xs` and `ys` per iteration."""
    prover, params = site.prover, site.params
    num_consts, num_carry = ir.scan_counts(site.eqn)
    body, length = ir.closed(params["jaxpr"]), params["length"]
    consts, xs = operands[:num_consts], operands[num_consts + num_carry :]
    loop, start = prover.fresh(), len(prover.accesses)
    shapes = site.shapes[num_consts + num_carry :]
    slices = [_slice_at_iteration(site, value, shape, loop) for value, shape in zip(xs, shapes, strict=True)]
    # the counter of iterations selects the iteration's lane
    counts = {k for k, value in enumerate(xs) if value.fact == Iota(0) and isinstance(value.owner, Common)}
    iteration_number = _symbol_of_iteration(site, loop, LaneRows(0), length).number
    carry = list(operands[num_consts : num_consts + num_carry])
    counters = _counters(body.jaxpr, num_consts, carry, length)
    counted = {k for k in counters if carry[k].range == (0, 0) and counters[k] == (0, length - 1) and length > 1}
    counted = set() if params["reverse"] else counted

    def run_body(carry: list[Value]) -> tuple[list[Value], list[Value]]:
        numbers = [iteration_number if k in counts else prover.fresh() for k in range(len(slices))]
        carry = [value.replace(number=iteration_number) if k in counted else value for k, value in enumerate(carry)]
        parts = [value.replace(number=number) for value, number in zip(slices, numbers, strict=True)]
        results = interpret(prover, body, [*consts, *carry, *parts])
        return results[:num_carry], results[num_carry:]

    tokens, reverse = dict[OneLane, bool](), params["reverse"]
    for name, size in prover.bound.layouts.items():
        tokens[OneLane(_symbol_of_iteration(site, loop, LaneRows(0, packed=name), length), packed=name)] = reverse
        tokens[OneLane(Symbol(iteration_number, size or length), packed=name)] = reverse
        tokens[OneLane(_from_the_end(site, name, loop, length), packed=name)] = not reverse
    neighbours = partial(token_windows.carried, site, tokens=tokens)
    carry, rest = _fixpoint(site, carry, run_body, counters, loop, neighbours)
    if length > 1:
        _refuse_stale(site, (*consts, *xs, *carry))
    elif not length:
        del prover.accesses[start:]
    is_shared = all(isinstance(value.owner, Common) for value in operands)
    if prover.refine is not None and is_shared and not site.eqn.effects:
        # two loops with one body over the same arrays have the same results
        key = ("scan", fingerprint(flatten(body), without=PLACES), length, params["reverse"], num_consts, num_carry)
        operand_numbers = [value.number for value in operands]
        carry = [value.replace(number=prover.number((*key, k), *operand_numbers)) for k, value in enumerate(carry)]
    sources = [value.owner for value in xs if isinstance(value.owner, LaneRows) and value.owner.axis == 0]
    tiles = [value.fact for value in xs if isinstance(value.fact, Tiles) and value.fact.tiles == 0]
    lengths = [shape[:1] for shape in ir.shapes(body.jaxpr.outvars[num_carry:])]
    stacked = [
        _stacked_tiles(site, value, loop, tiles, length, size) or _stacked_output(site, value, loop, sources, length)
        for value, size in zip(rest, lengths, strict=True)
    ]
    return [*carry, *stacked]


def _slice_at_iteration(site: Site, value: Value, shape: tuple[int, ...], loop: Number) -> Value:
    owner, step = value.owner, ("scan", loop)
    axis = axis_of(owner)
    if axis == 0:
        if isinstance(owner, LaneRows) and owner.order is not None:
            owner = site.mixed(*refusals.LOOP_IN_ORDER)
        elif isinstance(owner, LaneRows):
            owner = OneLane(_symbol_of_iteration(site, loop, owner, shape[0]), owner.split, packed=owner.packed)
        else:
            owner = site.mixed(*refusals.LOOP_OVER_POOL)
    elif isinstance(value.fact, TokenSpan) and value.fact == TokenSpan(value.fact.layout, 0, shape[0] - 1, -1):
        owner = OneLane(_from_the_end(site, value.fact.layout, loop, shape[0]), packed=value.fact.layout)
    elif isinstance(value.fact, Tiles) and value.fact.tiles == 0 and not value.fact.rows.packed:
        owner = LaneRows(0, split=(_symbol_of_tile(site, loop, value.fact, shape[0]),))
    elif axis is not None:
        owner = moved(owner, axis - 1)
    if isinstance(owner, PoolRows):
        owner = replace(owner, view=(*owner.view, step))
    intact = value.intact and value.intact.seen(lambda view: (*view, step))
    fact = value.fact if isinstance(value.fact, SlotEntry | PageEntry) else None
    if isinstance(value.fact, LAYOUT_FACTS):
        lanes_are_rows = shape[0] == site.prover.bound.lanes

        def symbol_of(layout: str) -> Symbol | None:
            rows = LaneRows(0, packed=layout)
            return _symbol_of_iteration(site, loop, rows, shape[0]) if layout or lanes_are_rows else None

        if isinstance(value.fact, WithinLane) and (value.fact.shift, value.fact.stride) == (shape[0] - 1, -1):
            in_order = replace(value.fact, shift=0, stride=1)
            fact = at_index(in_order, lambda name: _from_the_end(site, name, loop, shape[0]))
        fact = fact or at_index(value.fact, symbol_of) or relocated(value.fact, lambda axis: axis - 1 if axis else None)
    return Value(owner, NONE, value.range, fact, intact, site.prover.versions.part_of(value.version))


def _from_the_end(site: Site, layout: str, loop: Number, length: int) -> Symbol:
    """Return an iteration's token, in the opposite order from token `length - 1`."""
    return Symbol(site.prover.number(("from the end", layout), loop), length)


def _symbol_of_tile(site: Site, loop: Number, tiles: Tiles, length: int) -> Symbol:
    return Symbol(site.prover.number(("tile", tiles.size, tiles.rows), loop), length)


def _stacked_tiles(
    site: Site, value: Value, loop: Number, tiles: list[Tiles], length: int, shape: tuple[int, ...]
) -> Value | None:
    """Stack the rows of tiles of `xs`; `shape` has the value's first axis, if any."""
    for fact in tiles:
        tile = LaneRows(0, split=(_symbol_of_tile(site, loop, fact, length),))
        if value.owner == tile and shape == (fact.size,) and not fact.rows.packed:
            return Value(site.mixed(*refusals.STACKED_TILES), range=value.range, fact=fact)
    return None


def _symbol_of_iteration(site: Site, loop: Number, rows: LaneRows, length: int) -> Symbol:
    """Return an iteration's lane or token; record the rows of all iterations."""
    layout, order = (rows.inner, rows.start, rows.packed), rows.order
    form, numbers = ("scan", layout, order and order.inverse), () if order is None else (order.number,)
    symbol = Symbol(site.prover.number(form, loop, *numbers), length)
    if rows.inner == 1:
        key = rows.start, length, order, rows.packed
        site.prover.scanned[symbol] = key
    return symbol


def _stacked_output(site: Site, value: Value, loop: Number, sources: list[LaneRows], length: int) -> Value:
    """Stack the value of each iteration along a new axis 0; `sources` own `xs`."""
    owner, step = value.owner, ("scan", loop)
    iteration = _symbol_of_iteration(site, loop, LaneRows(0), length)
    intact = value.intact and value.intact.seen(lambda view: left(view, step))
    if isinstance(owner, OneLane) and isinstance(owner.lane, Symbol):
        for rows in (*sources, LaneRows(0, packed=owner.packed)):
            lane = OneLane(_symbol_of_iteration(site, loop, rows, length), rows.split, owner.unreduced, rows.packed)
            by_number = OneLane(iteration, unreduced=owner.unreduced, packed=rows.packed)
            is_number = rows == LaneRows(0, packed=rows.packed) and length == site.prover.bound.layouts.get(rows.packed)
            if owner == lane or (is_number and owner == by_number):
                return Value(replace(rows, axis=0, unreduced=owner.unreduced), range=value.range, intact=intact)
    if isinstance(owner, OneLane) and owner.lane == _from_the_end(site, owner.packed, loop, length):
        fact = TokenSpan(owner.packed, 0, length - 1, -1)
        return Value(site.mixed(*refusals.REVERSED_LANES), range=value.range, fact=fact)
    if isinstance(owner, PoolRows):
        view = left(owner.view, step)
        if view is None:
            return Value(site.mixed(*refusals.STACKED_VERSIONS))
        owner = replace(owner, axis=owner.axis + 1, view=view)
        return Value(owner, intact=intact, version=site.prover.versions.put_together(value.version))
    value = _after_iteration(site, value, loop)
    return Value(moved(value.owner, lambda axis: axis + 1), range=value.range, intact=intact)
