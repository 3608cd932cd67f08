"""The bodies of scans, whiles and conds, with the operands that their inputs come from."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ir_passes.jaxpr import ir


@dataclass(frozen=True)
class Body:
    """One jaxpr of an equation.

    Attributes:
        parameter: of the equation that holds it.
        branch: its place, where the parameter holds several.
        closed: the jaxpr.
        operands: for each input of the jaxpr the operand of the equation that it is, or a part of.
        sliced: for each input whether it is a slice of the operand along its first axis.
    """

    parameter: str
    branch: int | None
    closed: ir.ClosedJaxpr
    operands: tuple[int, ...]
    sliced: tuple[bool, ...]


def bodies(eqn: ir.JaxprEqn) -> Iterator[Body]:
    """The bodies of a scan, while or cond that may read and write arrays; none of other equations."""
    name, params, count = eqn.primitive.name, eqn.params, len(eqn.invars)
    if name == "scan":
        consts, carry = ir.scan_counts(eqn)
        sliced = tuple(i >= consts + carry for i in range(count))
        yield Body("jaxpr", None, params["jaxpr"], tuple(range(count)), sliced)
    elif name == "while":
        first = params["cond_nconsts"]
        operands = tuple(range(first, count))
        yield Body("body_jaxpr", None, params["body_jaxpr"], operands, (False,) * len(operands))
    elif name == "cond":
        operands = tuple(range(1, count))
        for branch, closed in enumerate(params["branches"]):
            yield Body("branches", branch, closed, operands, (False,) * len(operands))


def carried(eqn: ir.JaxprEqn) -> Iterator[tuple[int, int]]:
    """Operand and result of every carry of a scan or while."""
    name = eqn.primitive.name
    if name == "scan":
        first, count = ir.scan_counts(eqn)
    elif name == "while":
        first = eqn.params["cond_nconsts"] + eqn.params["body_nconsts"]
        count = len(eqn.outvars)
    else:
        return
    yield from ((first + i, i) for i in range(count))


def with_bodies(eqn: ir.JaxprEqn, changed: Sequence[tuple[Body, ir.ClosedJaxpr]]) -> ir.JaxprEqn:
    """Return the equation with other jaxprs of the same types in place of some bodies."""
    params = dict(eqn.params)
    for body, closed in changed:
        if body.branch is None:
            params[body.parameter] = closed
        else:
            branches = list(params[body.parameter])
            branches[body.branch] = closed
            params[body.parameter] = tuple(branches)
    return eqn.replace(params=params)
