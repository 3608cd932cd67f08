"""An order of equations in which operands are computed before they are read, and pools read before they are written."""

import heapq
from collections.abc import Sequence

from ir_passes.jaxpr import ir
from ir_passes.rewrites.pool_access import WRITES


def schedule(groups: Sequence[Sequence[ir.JaxprEqn]], versions: set[ir.Var]) -> list[ir.JaxprEqn] | None:
    """The equations in an order that keeps what it can of the given one.

    Args:
        groups: equations that stay together, in a wanted order.
        versions: of pools; those that the equations make are found. Every reader of one of them comes before the
            equation that updates it.

    Returns:
        None if there is no such order. Equations with effects keep theirs.
    """
    versions = set(versions)
    made = {var: i for i, group in enumerate(groups) for eqn in group for var in eqn.outvars}
    before: list[set[int]] = [set() for _ in groups]
    readers: dict[ir.Var, list[int]] = {}
    writers: dict[ir.Var, list[int]] = {}
    last_effect: int | None = None
    for i, group in enumerate(groups):
        for eqn in group:
            for var in ir.variables(eqn.invars):
                if var in made:
                    before[i].add(made[var])
                if var in versions:
                    updates = eqn.primitive.name in WRITES and eqn.invars[0] is var
                    (writers if updates else readers).setdefault(var, []).append(i)
                    if updates:
                        versions.add(eqn.outvars[0])
            if eqn.effects:
                if last_effect is not None:
                    before[i].add(last_effect)
                last_effect = i
    for var, updates in writers.items():
        for i in updates:
            before[i].update(readers.get(var, ()))
    for i, needed in enumerate(before):
        needed.discard(i)
    after: list[list[int]] = [[] for _ in groups]
    waiting = [len(needed) for needed in before]
    for i, needed in enumerate(before):
        for j in needed:
            after[j].append(i)
    ready = [i for i, count in enumerate(waiting) if count == 0]
    heapq.heapify(ready)
    ordered: list[ir.JaxprEqn] = []
    done = 0
    while ready:
        i = heapq.heappop(ready)
        ordered += groups[i]
        done += 1
        for j in after[i]:
            waiting[j] -= 1
            if waiting[j] == 0:
                heapq.heappush(ready, j)
    return ordered if done == len(groups) else None
