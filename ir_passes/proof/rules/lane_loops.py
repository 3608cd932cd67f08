"""Loops with a stop for each lane, and loops over active lanes.

The number of iterations of `while any(active)` depends on all lanes. The results do not: once the condition of a lane
is false, its values do not change, and its condition stays false.
"""

from collections.abc import Sequence
from typing import Any

from ir_passes.contract.normal_form import flatten
from ir_passes.jaxpr import ir
from ir_passes.proof.numbering import Number
from ir_passes.proof.prover import Env, Prover
from ir_passes.proof.site import interpret
from ir_passes.proof.values import Value

_SPREADING = ("broadcast_in_dim", "reshape", "squeeze", "copy")


def stops_by_lane(
    prover: Prover,
    condition: ir.ClosedJaxpr,
    body: ir.ClosedJaxpr,
    outer: Sequence[Value],
    inner: Sequence[Value],
    carry: Sequence[Value],
) -> bool:
    """True if lanes with a false condition keep every carry of a loop.

    Args:
        prover: after the loop has settled.
        condition, body: programs of the loop.
        outer, inner: values of their constants.
        carry: values of the carries.
    """
    condition, body = flatten(condition), flatten(body)
    active = _tested_array(condition.jaxpr, condition.jaxpr.outvars[0])
    if active is None:
        return False
    carry = [value.replace(number=prover.fresh()) for value in carry]
    with prover.trial():
        for program, consts in ((condition, outer), (body, inner)):
            interpret(prover, program.jaxpr, [prover.constant(c) for c in program.consts], [*consts, *carry])
    flags = _opposites(prover, condition.jaxpr, *active)
    env, carries = prover.values[body.jaxpr], body.jaxpr.invars[len(inner) :]
    return all(_keeps_carry(body.jaxpr, env, *pair, flags) for pair in zip(body.jaxpr.outvars, carries, strict=True))


def counter_of(
    condition: ir.ClosedJaxpr, body: ir.ClosedJaxpr, outer: Sequence[Value], inner: int, carry: Sequence[Value]
) -> tuple[int, Value] | None:
    """Return the index of a carry that counts iterations, and its bound; None without one.

    The carry begins at 0 or above, each iteration adds 1, and the condition compares it with the bound. So the carry is
    below the bound in every iteration. If the bound is the number of active lanes, the carry is the number of an active
    lane.

    Args:
        condition, body: programs of the loop.
        outer: values of the condition's constants.
        inner: number of constants of the body.
        carry: values of the carries before the loop.
    """
    test = maker(condition.jaxpr, condition.jaxpr.outvars[0])
    variables = condition.jaxpr.invars
    compared = [] if test is None else [_unconverted(condition.jaxpr, atom) for atom in test.invars]
    if test is None or test.primitive.name != "lt" or any(atom not in variables for atom in compared):
        return None
    k, bound = (variables.index(atom) - len(outer) for atom in compared)
    count = outer[bound] if bound < 0 else carry[bound]
    inputs, outputs = body.jaxpr.invars[inner:], body.jaxpr.outvars
    if k < 0 or (bound >= 0 and outputs[bound] is not inputs[bound]):
        return None
    step = maker(body.jaxpr, outputs[k])
    if step is None or step.primitive.name != "add" or step.invars[0] is not inputs[k]:
        return None
    by, start = step.invars[1], carry[k].range
    by_one = isinstance(by, ir.Literal) and int(by.val) == 1
    return (k, count) if by_one and start is not None and start[0] >= 0 else None


def _unconverted(jaxpr: Any, atom: Any) -> Any:
    """Return the operand of a conversion that changes the weak type only."""
    eqn = maker(jaxpr, atom)
    if eqn is None or eqn.primitive.name != "convert_element_type":
        return atom
    return eqn.invars[0] if ir.dtype_of(eqn.invars[0]) == ir.dtype_of(atom) else atom


def _tested_array(jaxpr: Any, atom: Any) -> tuple[Any, bool] | None:
    """Return an array and a truth value if a condition tests any element for it."""
    eqn, negated = maker(jaxpr, atom), False
    if eqn is not None and eqn.primitive.name == "not":
        eqn, negated = maker(jaxpr, eqn.invars[0]), True
    if eqn is None or eqn.primitive.name != ("reduce_and" if negated else "reduce_or"):
        return None
    (var,) = eqn.invars
    reduces_all = len(eqn.params["axes"]) == len(var.aval.shape)
    return (var, not negated) if reduces_all and not isinstance(var, ir.Literal) else None


def _opposites(prover: Prover, jaxpr: Any, var: Any, when: bool) -> dict[Number, bool]:
    """Return the numbers of an array and its negation, with their values in active lanes."""
    env = prover.values[jaxpr]
    flags = {env[var].number: when}
    eqn = maker(jaxpr, var)
    if eqn is not None and eqn.primitive.name == "not" and not isinstance(eqn.invars[0], ir.Literal):
        flags[env[eqn.invars[0]].number] = not when
    return flags


def _keeps_carry(body: Any, env: Env, out: Any, carry: Any, flags: dict[Number, bool]) -> bool:
    """Return True if a result of the body is the carry in inactive lanes."""
    if out is carry:
        return True
    eqn = maker(body, out)
    if eqn is None:
        return False
    if eqn.primitive.name in ("and", "or"):
        when = flags.get(env[carry].number)
        return carry in eqn.invars and when == (eqn.primitive.name == "and")
    if eqn.primitive.name != "select_n" or len(eqn.invars) != 3:
        return False
    predicate, *cases = eqn.invars
    number = _source(body, env, predicate)
    return number is not None and number in flags and cases[not flags[number]] is carry


def _source(body: Any, env: Env, atom: Any) -> Number | None:
    """Return the number of the array under a broadcast mask."""
    while (eqn := maker(body, atom)) is not None and eqn.primitive.name in _SPREADING:
        atom = eqn.invars[0]
    return None if isinstance(atom, ir.Literal) else env[atom].number


def maker(jaxpr: Any, atom: Any) -> Any:
    """Return the equation of a value; None for an input or a literal."""
    return next((eqn for eqn in jaxpr.eqns if any(var is atom for var in eqn.outvars)), None)
