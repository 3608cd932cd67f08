"""Loops with a stop for each lane, and loops over active lanes or real tokens.

The number of iterations of `while any(active)`, or of a loop to the greatest length, depends on all lanes. The results
do not if a stopped lane stays stopped and keeps its values. `stops_by_lane` proves this: in every carry, a stopped
lane's rows equal the rows before the iteration.

* `while any(active)`: a lane has stopped if its element of `active` is false. It stays stopped: `active` follows from
  carries that do not change in stopped lanes, or is `t < lengths` with a counter t. The condition may have shared
  parts, as in `any(active) & (t < limit)`. Shared carries may change; then their last values depend on all lanes.
* A counter t to the greatest of all lengths: a lane has stopped if its length is at most t. It stays stopped, since t
  grows. The loop runs until every lane has stopped, or until t is a shared number. Only the counter may change in
  stopped lanes; its last value depends on all lanes.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from ir_passes.contract.normal_form import flatten
from ir_passes.jaxpr import ir
from ir_passes.jaxpr.bodies import counts_up, maker
from ir_passes.proof.intervals import FALSE, TRUE
from ir_passes.proof.numbering import Leaf, Number
from ir_passes.proof.owners import Common
from ir_passes.proof.prover import Prover
from ir_passes.proof.site import Site, interpret
from ir_passes.proof.values import Greatest, Range, UnchangedRows, Value

_SPREADING = ("broadcast_in_dim", "reshape", "squeeze", "copy")


Counter = tuple[int, Value]
"""A carry that counts iterations, below its bound."""


def _stopped_bounds(
    flags: dict[Number, Range], counter: Number, lengths: Number, site: Site, number: Number
) -> Range | None:
    """Return the bounds of a result for a lane that has stopped.

    Args:
        flags: number of an array -> its elements of this lane.
        counter, lengths: numbers of a counter, and of lengths that are not greater for this lane, or -1.
        number: of the result.
    """
    if number in flags or site.name not in ("lt", "gt", "ge", "le"):
        return flags.get(number)
    spread = (_spread_from(site.jaxpr, atom) for atom in site.eqn.invars)
    sources = [None if isinstance(atom, ir.Literal) else site.env[atom].number for atom in spread]
    is_compared = sources[:: -1 if site.name in ("gt", "le") else 1] == [counter, lengths]
    return (FALSE if site.name in ("lt", "gt") else TRUE) if is_compared else None


def stops_by_lane(
    prover: Prover,
    condition: ir.ClosedJaxpr,
    body: ir.ClosedJaxpr,
    outer: Sequence[Value],
    inner: Sequence[Value],
    carry: Sequence[Value],
    counter: Counter | None,
) -> set[int] | None:
    """Return a loop's changed shared carries if stopped lanes keep all others.

    Args:
        prover: after the loop has settled.
        outer, inner: constants of `condition` and `body`.
        counter: with `Greatest` as its bound; None for a loop under `any(active)`.
    """
    condition, body = flatten(condition), flatten(body)
    shared = {k for k, value in enumerate(carry) if isinstance(value.owner, Common)}
    carry = [value.replace(number=prover.fresh(), intact=UnchangedRows(Leaf(-1 - k))) for k, value in enumerate(carry)]
    flags, tested, numbers = dict[Number, Range](), set[int](), (Number(-1), Number(-1))
    with prover.trial():
        if counter is None:
            interpret(prover, condition, [*outer, *carry])
            flags, tested = _flags(prover, condition.jaxpr, len(outer), body.jaxpr, len(inner))
            carry = [value.replace(range=flags.get(value.number, value.range)) for value in carry]
        else:
            index, bound = counter
            assert isinstance(bound.fact, Greatest)
            numbers, shared = (carry[index].number, bound.fact.number), {index}
        with prover.given(stopped=partial(_stopped_bounds, flags, *numbers)):
            results = interpret(prover, body, [*inner, *carry])
    changed = {
        k
        for k, (old, new) in enumerate(zip(carry, results, strict=True))
        if new.intact != old.intact
        and not (old.range is not None and old.range[0] == old.range[1] and new.range == old.range)
    }
    stays_stopped = counter is not None or (bool(flags) and not changed & tested)
    return changed if stays_stopped and changed <= shared else None


def counter_of(
    prover: Prover,
    condition: ir.ClosedJaxpr,
    body: ir.ClosedJaxpr,
    outer: Sequence[Value],
    inner: int,
    carry: Sequence[Value],
) -> Counter | None:
    """Return the carry that counts iterations, with its bound.

    The carry begins at 0 or above, each iteration adds 1, and the condition compares it with an unchanged bound. With
    the number of active lanes as bound, the carry is an active lane; with the last lane's end, a real token.

    """
    condition, inputs, outputs = flatten(condition), body.jaxpr.invars[inner:], body.jaxpr.outvars
    test, carries = maker(condition.jaxpr, condition.jaxpr.outvars[0]), condition.jaxpr.invars[len(outer) :]
    if test is None or test.primitive.name not in ("lt", "gt"):
        return None
    number, bound = (
        _unconverted(condition.jaxpr, atom) for atom in test.invars[:: 1 if test.primitive.name == "lt" else -1]
    )
    if number not in carries or isinstance(bound, ir.Literal):
        return None
    k = carries.index(number)
    start = carry[k].range
    changing = {var for var, old, new in zip(carries, inputs, outputs, strict=True) if old is not new}
    for eqn in condition.jaxpr.eqns:
        changing.update(eqn.outvars if any(var in changing for var in ir.variables(eqn.invars)) else ())
    if not counts_up(body.jaxpr, k, inner) or start is None or start[0] < 0 or bound in changing:
        return None
    with prover.trial():
        interpret(prover, condition, [*outer, *carry])
    return (k, prover.values[condition.jaxpr][bound])


def _unconverted(jaxpr: Any, atom: Any) -> Any:
    eqn = maker(jaxpr, atom)
    if eqn is None or eqn.primitive.name != "convert_element_type":
        return atom
    return eqn.invars[0] if ir.dtype_of(eqn.invars[0]) == ir.dtype_of(atom) else atom


def _tested_array(jaxpr: Any, atom: Any) -> tuple[Any, bool] | None:
    """Return an array and a truth value if a condition tests any element for it.

    It may be a conjunction with one such test; the caller checks that its other parts are shared.
    """
    eqn, negated = maker(jaxpr, atom), False
    if eqn is not None and eqn.primitive.name == "and" and eqn.outvars[0].aval.shape == ():
        tests = [(_tested_array(jaxpr, part), part) for part in eqn.invars]
        arrays = [test for test, _ in tests if test is not None]
        return arrays[0] if len(arrays) == 1 else None
    if eqn is not None and eqn.primitive.name == "not":
        eqn, negated = maker(jaxpr, eqn.invars[0]), True
    if eqn is None or eqn.primitive.name != ("reduce_and" if negated else "reduce_or"):
        return None
    (var,) = eqn.invars
    reduces_all = len(eqn.params["axes"]) == len(var.aval.shape)
    return (var, not negated) if reduces_all and not isinstance(var, ir.Literal) else None


def _flags(prover: Prover, condition: Any, outer: int, body: Any, inner: int) -> tuple[dict[Number, Range], set[int]]:
    """Return value numbers of the tested array and its negation, in stopped lanes.

    Also return the carries that decide about it, except a counter compared with lengths.
    """
    active = _tested_array(condition, condition.outvars[0])
    if active is None or not _shared_otherwise(prover, condition, condition.outvars[0]):
        return {}, set()
    (var, when), env = active, prover.values[condition]
    flags = {env[var].number: FALSE if when else TRUE}
    eqn = maker(condition, var)
    if eqn is not None and eqn.primitive.name == "not" and not isinstance(eqn.invars[0], ir.Literal):
        flags[env[eqn.invars[0]].number] = TRUE if when else FALSE
    carries = condition.invars[outer:]
    needed = _needed(condition, [var])
    if eqn is not None and eqn.primitive.name in ("lt", "gt") and when:
        counter, lengths = eqn.invars[:: 1 if eqn.primitive.name == "lt" else -1]
        source = _spread_from(condition, counter)
        if source in carries and counts_up(body, carries.index(source), inner):
            needed = _needed(condition, [lengths])
    return flags, {k for k, carry in enumerate(carries) if carry in needed}


def _shared_otherwise(prover: Prover, condition: Any, atom: Any) -> bool:
    """True if a conjunction is shared, except for the test of an array."""
    eqn = maker(condition, atom)
    if eqn is None or eqn.primitive.name != "and":
        return True
    env = prover.values[condition]
    return all(
        _shared_otherwise(prover, condition, part)
        if _tested_array(condition, part) is not None
        else isinstance(part, ir.Literal) or isinstance(env[part].owner, Common)
        for part in eqn.invars
    )


def _needed(jaxpr: Any, atoms: Sequence[Any]) -> set[Any]:
    needed, pending = set[Any](), ir.variables(atoms)
    while pending:
        var = pending.pop()
        if var not in needed:
            needed.add(var)
            eqn = maker(jaxpr, var)
            pending += [] if eqn is None else ir.variables(eqn.invars)
    return needed


def _spread_from(jaxpr: Any, atom: Any) -> Any:
    """Return the value before broadcasts, reshapes and weak types."""
    while (eqn := maker(jaxpr, _unconverted(jaxpr, atom))) is not None and eqn.primitive.name in _SPREADING:
        atom = eqn.invars[0]
    return _unconverted(jaxpr, atom)
