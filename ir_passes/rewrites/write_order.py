"""Pass that orders writes of pools after earlier reads, so that XLA writes in place.

XLA copies a pool if a read of its old version may run after the write. The pass makes an operand of the write depend on
the results of these reads: `select(flag, operand, other)` with a flag, computed from an element of each result, that is
always false. The proof knows this, XLA does not, and LLVM removes the select. XLA's CPU compiler drops an
`optimization_barrier` before it looks for copies.
"""

from collections.abc import Sequence
from typing import Any

import jax
from jax import lax
from jax import numpy as jnp

from ir_passes.jaxpr import ir, rewriting
from ir_passes.jaxpr.dtypes import is_key
from ir_passes.jaxpr.primitives import ELEMENTWISE, MOVES, PARTS, REDUCTIONS, WRITES
from ir_passes.jaxpr.rewriting import emit, renamed
from ir_passes.rewrites.carried_layers import with_carried_layers
from ir_passes.rewrites.graph import Graph, Say, quiet
from ir_passes.scratch.liveness import bytes_of, is_view

_FUSED = ELEMENTWISE | MOVES | PARTS | {"gather", "dynamic_slice", "concatenate", "pad", "stack"}
"""Operations that XLA may recompute in the fusion of their readers."""
_LOOPS = ("scan", "while")


def write_in_place(graph: Graph, say: Say = quiet) -> Graph:
    """Carry pools through scans over layers, and order their writes after earlier reads.

    Results are bit-identical. Loop bodies are ordered, too. Several writes of one version are left alone.
    """
    carried, layers = with_carried_layers(graph)
    jaxpr = carried.program.jaxpr
    order = _WriteOrder(jaxpr, [*graph.bound.successors.items()])
    eqns = order.eqns()
    if not layers and not order.count:
        return graph
    say(f"carried {layers} stacked pools through scans, ordered {order.count} writes after earlier reads")
    program = rewriting.with_eqns(carried.program, eqns, jaxpr.outvars, order.consts)
    return carried.with_program(program)


class _WriteOrder:
    """Writes of pools in one program, ordered after the reads.

    Attributes:
        count: number of ordered writes, also inside loops.
        consts: constants of the new equations.
    """

    def __init__(self, jaxpr: ir.Jaxpr, pools: Sequence[tuple[int, int]]) -> None:
        self.count, self.consts = 0, dict[ir.Var, Any]()
        self._inner: dict[int, _WriteOrder] = {}
        self._read(jaxpr, pools)
        copied = self._with_copies()
        if copied is not None:
            self._read(copied, pools)

    def _read(self, jaxpr: ir.Jaxpr, pools: Sequence[tuple[int, int]]) -> None:
        self.jaxpr = jaxpr
        self._users: dict[ir.Var, list[int]] = {}
        self._version = {jaxpr.invars[start]: k for k, (start, _) in enumerate(pools)}  # variable -> version
        self._links: list[tuple[int, ir.Var, ir.Var]] = []  # equation, version before it, version after it
        for index, eqn in enumerate(jaxpr.eqns):
            for var in dict.fromkeys(ir.variables(eqn.invars)):
                self._users.setdefault(var, []).append(index)
            self._note(index, eqn)
        path = {id(jaxpr.outvars[end]) for _, end in pools}  # versions that become a result
        for _, version, successor in reversed(self._links):
            path |= {id(version)} if id(successor) in path else set()
        self._writes: dict[int, list[int]] = {}  # version -> equations that write it
        for index, version, successor in self._links:
            if id(successor) in path and self._version[version] != self._version[successor]:
                self._writes.setdefault(self._version[version], []).append(index)

    def _note(self, index: int, eqn: ir.JaxprEqn) -> None:
        versions = [var for var in ir.variables(eqn.invars) if var in self._version]
        if not versions:
            return
        name = eqn.primitive.name
        if is_view(eqn):
            self._version[eqn.outvars[0]] = self._version[versions[0]]
            self._links.append((index, versions[0], eqn.outvars[0]))
            return
        pairs: list[tuple[Any, ir.Var]] = []
        if name in WRITES and self._has_version(eqn.invars[0]):
            pairs = [(eqn.invars[0], eqn.outvars[0])]
        elif name in ELEMENTWISE:
            pairs = [(var, eqn.outvars[0]) for var in versions if ir.types([var]) == ir.types(eqn.outvars)][:1]
        elif name in _LOOPS:
            pairs = self._loop(index, eqn)
        elif name == "cond":
            pairs = [(var, out) for var in versions for out in eqn.outvars if ir.types([var]) == ir.types([out])][:1]
        for version, successor in pairs:
            self._links.append((index, version, successor))
            self._version[successor] = len(self._links) + len(self.jaxpr.invars)

    def _loop(self, index: int, eqn: ir.JaxprEqn) -> list[tuple[Any, ir.Var]]:
        """Return the pools that a loop carries, before and after it; order its body."""
        if eqn.primitive.name == "scan":
            body, (inner, carries) = eqn.params["jaxpr"].jaxpr, ir.scan_counts(eqn)
            first = inner
        else:
            body, inner = eqn.params["body_jaxpr"].jaxpr, eqn.params["body_nconsts"]
            first = eqn.params["cond_nconsts"] + inner
            carries = len(eqn.invars) - first
        carried = [k for k in range(carries) if self._has_version(eqn.invars[first + k])]
        if carried:
            self._inner[index] = _WriteOrder(body, [(inner + k, k) for k in carried])
        return [(eqn.invars[first + k], eqn.outvars[k]) for k in carried]

    def _with_copies(self) -> ir.Jaxpr | None:
        """Copy each elementwise write for its readers; return None without such a write.

        XLA recomputes an elementwise write in the fusion of its readers, from the old pool. So they get a copy of the
        write, and the write waits for them.
        """
        eqns = list(self.jaxpr.eqns)
        copies: dict[int, ir.JaxprEqn] = {}
        results = set(ir.variables(self.jaxpr.outvars))
        on_path = {index for writes in self._writes.values() for index in writes}
        for index, _, successor in self._links:
            readers = [user for user in self._users.get(successor, []) if user not in on_path]
            is_fused = all(eqns[user].primitive.name in _FUSED | REDUCTIONS for user in readers)
            if (
                index in on_path
                and eqns[index].primitive.name in ELEMENTWISE
                and readers
                and is_fused
                and successor in results
            ):
                (copy,) = ir.of_types([successor.aval])
                copies[index] = eqns[index].replace(outvars=[copy])
                eqns[:] = [renamed(eqn, {successor: copy}) if user in readers else eqn for user, eqn in enumerate(eqns)]
        if not copies:
            return None
        ordered = [eqn for k, eqn in enumerate(eqns) for eqn in ((eqn, copies[k]) if k in copies else (eqn,))]
        return self.jaxpr.replace(eqns=ordered)

    def _has_version(self, atom: ir.Atom) -> bool:
        return not isinstance(atom, ir.Literal) and atom in self._version

    def eqns(self) -> list[ir.JaxprEqn]:
        eqns: list[ir.JaxprEqn] = []
        reads = {
            writes[0]: self._last_reads(version, writes[0])
            for version, writes in self._writes.items()
            if len(set(writes)) == 1
        }
        for index, eqn in enumerate(self.jaxpr.eqns):
            inner = self._inner.get(index)
            if inner is not None:
                eqn = self._with_body(eqn, inner)
            results = reads.get(index, [])
            operand = self._operand(eqn) if results else None
            if operand is not None:
                new_eqns, (flagged,), consts = emit(_ordered, [eqn.invars[operand], *results], eqn)
                self.consts |= consts
                eqns += new_eqns
                eqn = eqn.replace(invars=[*eqn.invars[:operand], flagged, *eqn.invars[operand + 1 :]])
                self.count += 1
            eqns.append(eqn)
        return self._sorted(eqns)

    def _with_body(self, eqn: ir.JaxprEqn, inner: "_WriteOrder") -> ir.JaxprEqn:
        key = "jaxpr" if eqn.primitive.name == "scan" else "body_jaxpr"
        body = eqn.params[key]
        eqns = inner.eqns()
        if not inner.count or inner.consts:
            return eqn
        self.count += inner.count
        return eqn.replace(params={**eqn.params, key: rewriting.with_eqns(body, eqns, body.jaxpr.outvars, {})})

    def _last_reads(self, version: int, write: int) -> list[ir.Var]:
        """Return results of earlier reads of a version that the write must wait for."""
        reached = self._reached(self.jaxpr.eqns[write].outvars)
        needed = self._needed(write)
        views = [var for var, number in self._version.items() if number == version]
        results: dict[ir.Var, None] = {}
        pending = [
            (self.jaxpr.eqns[user], user)
            for var in views
            for user in self._users.get(var, [])
            if user != write and user not in reached and self.jaxpr.eqns[user].outvars[0] not in views
        ]
        visited = set[int]()
        outputs = set(ir.variables(self.jaxpr.outvars))
        while pending:
            eqn, index = pending.pop()
            if index in visited:
                continue
            visited.add(index)
            for var in eqn.outvars:
                users = self._users.get(var, [])
                early_users = [user for user in users if user != write and user not in reached]
                is_end = (
                    eqn.primitive.name not in _FUSED or var in outputs or len(early_users) < len(users) or not users
                )
                if is_end and var not in needed and not isinstance(var, ir.DropVar):
                    results[var] = None
                if eqn.primitive.name in _FUSED:
                    pending += [(self.jaxpr.eqns[user], user) for user in early_users]
        return [var for var in results if _is_array(var) and bytes_of(var.aval)]

    def _reached(self, variables: Sequence[ir.Var]) -> set[int]:
        reached, pending = set[int](), list(variables)
        while pending:
            for user in self._users.get(pending.pop(), []):
                if user not in reached:
                    reached.add(user)
                    pending += self.jaxpr.eqns[user].outvars
        return reached

    def _needed(self, write: int) -> set[ir.Var]:
        made_by = {var: eqn for eqn in self.jaxpr.eqns[:write] for var in eqn.outvars}
        needed, pending = set[ir.Var](), ir.variables(self.jaxpr.eqns[write].invars)
        while pending:
            var = pending.pop()
            if var not in needed:
                needed.add(var)
                pending += ir.variables(made_by[var].invars) if var in made_by else []
        return needed

    def _operand(self, eqn: ir.JaxprEqn) -> int | None:
        """Return the operand of a write that waits: an index, or the smallest array."""
        if eqn.primitive.name == "dynamic_update_slice":
            return 2
        if eqn.primitive.name in WRITES:
            return 1
        sizes = {
            k: bytes_of(atom.aval)
            for k, atom in enumerate(eqn.invars)
            if _is_array(atom)
            and (eqn.primitive.name in ELEMENTWISE or isinstance(atom, ir.Literal) or not self._has_version(atom))
        }  # fmt: skip
        return min(sizes, key=lambda k: sizes[k]) if sizes else None

    def _sorted(self, eqns: list[ir.JaxprEqn]) -> list[ir.JaxprEqn]:
        """Move each equation after the definitions of its operands, else keep the order."""
        makers = {id(var): index for index, eqn in enumerate(eqns) for var in eqn.outvars}
        placed, order = set[int](), list[ir.JaxprEqn]()
        for first in range(len(eqns)):
            pending = [first]
            while pending:
                index = pending[-1]
                needed = [makers[id(var)] for var in ir.variables(eqns[index].invars) if id(var) in makers]
                missing = [maker for maker in needed if maker not in placed]
                if missing and index not in placed:
                    pending += missing
                    continue
                pending.pop()
                if index not in placed:
                    placed.add(index)
                    order.append(eqns[index])
        return order


def _is_array(atom: ir.Atom) -> bool:
    aval: Any = atom.aval
    return hasattr(aval, "dtype") and not is_key(aval.dtype)


def _ordered(operand: jax.Array, *results: jax.Array) -> jax.Array:
    """Return the operand, computed after the results."""
    flag = jnp.array(False)
    for result in results:
        flag = flag | _never(result)
    other = jnp.ones_like(operand) if operand.ndim == 0 else jnp.zeros_like(operand)
    return lax.select_n(flag, operand, other)


def _never(result: jax.Array) -> jax.Array:
    first = lax.reshape(lax.slice(result, (0,) * result.ndim, (1,) * result.ndim), ())
    if jnp.issubdtype(first.dtype, jnp.complexfloating):
        first = lax.real(first)
    if first.dtype == jnp.bool_ or first.dtype.itemsize == 1 or jnp.issubdtype(first.dtype, jnp.integer):
        word = lax.convert_element_type(first, jnp.int32)
    else:
        word = lax.bitcast_convert_type(first, jnp.dtype(f"uint{8 * first.dtype.itemsize}"))
    limit = jnp.ones((), word.dtype)
    return lax.gt(lax.min(word, limit), limit)
