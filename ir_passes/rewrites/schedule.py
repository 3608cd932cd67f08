"""Order equations: operands are computed before their readers, pools are read before they are written."""

import heapq
from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter

from ir_passes.jaxpr import ir
from ir_passes.rewrites.pool_access import WRITES


def schedule(eqns: Sequence[ir.JaxprEqn], versions: set[ir.Var]) -> list[ir.JaxprEqn] | None:
    """Return the equations in a valid order; None if there is no valid order.

    Equations with effects keep their order.

    Args:
        eqns: in the preferred order.
        versions: versions of pools. New versions are found here. All readers of a version precede its update.
    """
    versions = set(versions)
    makers = {var: i for i, eqn in enumerate(eqns) for var in eqn.outvars}
    needed: list[set[int]] = [set() for _ in eqns]
    readers: dict[ir.Var, list[int]] = {}
    updates: list[tuple[ir.Var, int]] = []
    last_effect: int | None = None
    for i, eqn in enumerate(eqns):
        for var in ir.variables(eqn.invars):
            if var in makers:
                needed[i].add(makers[var])
            if var not in versions:
                continue
            if eqn.primitive.name in WRITES and eqn.invars[0] is var:
                updates.append((var, i))
                versions.add(eqn.outvars[0])
            else:
                readers.setdefault(var, []).append(i)
        if eqn.effects:
            needed[i].update(() if last_effect is None else (last_effect,))
            last_effect = i
    for var, i in updates:
        needed[i].update(readers.get(var, ()))
    sorter = TopologicalSorter({i: sources - {i} for i, sources in enumerate(needed)})
    try:
        sorter.prepare()
    except CycleError:
        return None
    ready, ordered = list[int](), list[ir.JaxprEqn]()
    while sorter.is_active():
        for i in sorter.get_ready():
            heapq.heappush(ready, i)
        i = heapq.heappop(ready)
        ordered.append(eqns[i])
        sorter.done(i)
    return ordered
