"""Pass that orders writes of pools after earlier reads, so that XLA writes in place.

XLA copies a pool if a read of its old version may run after the write. The pass makes an operand of the write depend on
the results of these reads: `select(flag, operand, other)` with a flag, computed from an element of each result, that is
always false. The proof knows this, XLA does not, and LLVM removes the select. XLA's CPU compiler drops an
`optimization_barrier` before it looks for copies.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import jax
from jax import lax
from jax import numpy as jnp

from ir_passes.jaxpr import ir, rewriting
from ir_passes.jaxpr.dtypes import is_key
from ir_passes.jaxpr.primitives import ELEMENTWISE, MOVES, PARTS, REDUCTIONS, WRITES
from ir_passes.jaxpr.rewriting import bytes_of, emit, is_view, renamed
from ir_passes.rewrites.batching import schedule
from ir_passes.rewrites.carried_layers import with_carried_layers
from ir_passes.rewrites.graph import Graph, Say, quiet

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
        self._read(jaxpr, pools)
        copied = self._with_copies()
        if copied is not None:
            self._read(copied, pools)

    def _read(self, jaxpr: ir.Jaxpr, pools: Sequence[tuple[int, int]]) -> None:
        self.jaxpr, self._inner = jaxpr, dict[int, _WriteOrder]()
        self._users = defaultdict[ir.Var, list[int]](list)
        self._version = {jaxpr.invars[start]: k for k, (start, _) in enumerate(pools)}  # variable -> version
        self._links: list[tuple[int, ir.Var, ir.Var]] = []  # equation, version before it, version after it
        for index, eqn in enumerate(jaxpr.eqns):
            for var in dict.fromkeys(ir.variables(eqn.invars)):
                self._users[var].append(index)
            for version, successor in self._successors(index, eqn):
                self._links.append((index, version, successor))
                new = len(self._links) + len(jaxpr.invars)
                self._version[successor] = self._version[version] if is_view(eqn) else new
        path = {id(jaxpr.outvars[end]) for _, end in pools}  # versions that become a result
        for _, version, successor in reversed(self._links):
            path |= {id(version)} if id(successor) in path else set()
        self._writes: dict[int, list[int]] = {}  # version -> equations that write it
        for index, version, successor in self._links:
            if id(successor) in path and self._version[version] != self._version[successor]:
                self._writes.setdefault(self._version[version], []).append(index)

    def _successors(self, index: int, eqn: ir.JaxprEqn) -> list[tuple[Any, ir.Var]]:
        """Return versions of pools before and after an equation, perhaps as views."""
        name, versions = eqn.primitive.name, [var for var in ir.variables(eqn.invars) if var in self._version]
        if versions and is_view(eqn):
            return [(versions[0], eqn.outvars[0])]
        if versions and name in WRITES:
            return [(eqn.invars[0], eqn.outvars[0])] if versions[0] is eqn.invars[0] else []
        if versions and name in _LOOPS:
            return self._loop(index, eqn)
        outvars = eqn.outvars if name in ELEMENTWISE or name == "cond" else []
        return [(var, out) for var in versions for out in outvars if ir.types([var]) == ir.types([out])][:1]

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
        eqns, copies = list(self.jaxpr.eqns), dict[int, ir.JaxprEqn]()
        results = set(ir.variables(self.jaxpr.outvars))
        on_path = {index for writes in self._writes.values() for index in writes}
        for index, _, successor in self._links:
            readers = set(self._users[successor]) - on_path
            is_fused = {eqns[user].primitive.name for user in readers} <= _FUSED | REDUCTIONS
            is_write = index in on_path and eqns[index].primitive.name in ELEMENTWISE and successor in results
            if is_write and readers and is_fused:
                (copy,) = ir.of_types([successor.aval])
                copies[index] = eqns[index].replace(outvars=[copy])
                for user in readers:
                    eqns[user] = renamed(eqns[user], {successor: copy})
        pairs = ((eqn, copies.get(index)) for index, eqn in enumerate(eqns))
        ordered = [new for pair in pairs for new in pair if new is not None]
        return self.jaxpr.replace(eqns=ordered) if copies else None

    def _has_version(self, atom: ir.Atom) -> bool:
        return not isinstance(atom, ir.Literal) and atom in self._version

    def eqns(self) -> list[ir.JaxprEqn]:
        """Return the equations with ordered writes."""
        eqns: list[ir.JaxprEqn] = []
        written = {writes[0]: version for version, writes in self._writes.items() if len(set(writes)) == 1}
        for index, eqn in enumerate(self.jaxpr.eqns):
            if index in self._inner:
                eqn = self._with_body(eqn, self._inner[index])
            results = self._last_reads(written[index], index) if index in written else []
            operand = self._operand(eqn) if results else None
            if operand is not None:
                new_eqns, (flagged,), consts = emit(_ordered, [eqn.invars[operand], *results], eqn)
                self.consts |= consts
                eqns += new_eqns
                eqn = eqn.replace(invars=[*eqn.invars[:operand], flagged, *eqn.invars[operand + 1 :]])
                self.count += 1
            eqns.append(eqn)
        ordered = schedule(eqns, set())
        assert ordered is not None
        return ordered

    def _with_body(self, eqn: ir.JaxprEqn, inner: "_WriteOrder") -> ir.JaxprEqn:
        key = "jaxpr" if eqn.primitive.name == "scan" else "body_jaxpr"
        body, eqns = eqn.params[key], inner.eqns()
        if not inner.count or inner.consts:
            return eqn
        self.count += inner.count
        return eqn.replace(params={**eqn.params, key: rewriting.with_eqns(body, eqns, body.jaxpr.outvars, {})})

    def _last_reads(self, version: int, write: int) -> list[ir.Var]:
        """Return results of earlier reads of a version that the write must wait for."""
        eqns, outputs = self.jaxpr.eqns, set(ir.variables(self.jaxpr.outvars))
        views = {var for var, number in self._version.items() if number == version}
        late, written = {write}, set(eqns[write].outvars)  # equations that need the write, and their results
        for index, eqn in enumerate(eqns):
            if index > write and not written.isdisjoint(ir.variables(eqn.invars)):
                late.add(index)
                written.update(eqn.outvars)
        needed = set(ir.variables(eqns[write].invars))
        for eqn in reversed(eqns[:write]):
            if not needed.isdisjoint(eqn.outvars):
                needed.update(ir.variables(eqn.invars))
        read, results = set(views), list[ir.Var]()
        for index, eqn in enumerate(eqns):
            is_read = index not in late and not read.isdisjoint(ir.variables(eqn.invars))
            if not is_read or not views.isdisjoint(eqn.outvars):
                continue
            is_fused = eqn.primitive.name in _FUSED
            for var in eqn.outvars:
                users = self._users[var]
                is_end = not is_fused or var in outputs or not users or not late.isdisjoint(users)
                if is_end and var not in needed and not isinstance(var, ir.DropVar):
                    results.append(var)
            read.update(eqn.outvars if is_fused else ())
        return [var for var in results if _is_array(var) and bytes_of(var.aval)]

    def _operand(self, eqn: ir.JaxprEqn) -> int | None:
        """Return the operand of a write that waits: an index, or the smallest array."""
        name = eqn.primitive.name
        if name in WRITES:
            return 2 if name == "dynamic_update_slice" else 1
        sizes = {
            k: bytes_of(atom.aval)
            for k, atom in enumerate(eqn.invars)
            if _is_array(atom) and (name in ELEMENTWISE or not self._has_version(atom))
        }
        return min(sizes, key=lambda k: sizes[k]) if sizes else None


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
