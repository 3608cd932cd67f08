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
from ir_passes.rewrites.batching import split_at
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
    if not layers and not order.count:
        return graph
    say(f"carried {layers} stacked pools through scans, ordered {order.count} writes after earlier reads")
    program = rewriting.with_eqns(carried.program, order.eqns, jaxpr.outvars, order.consts)
    return carried.with_program(program)


class _WriteOrder:
    """Equations of one program, with writes of pools ordered after the reads.

    Attributes:
        count: number of ordered writes, also inside loops.
        consts: constants of the new equations.
    """

    def __init__(self, jaxpr: ir.Jaxpr, pools: Sequence[tuple[int, int]]) -> None:
        self.eqns, self.count, self.consts = list(jaxpr.eqns), 0, dict[ir.Var, Any]()
        self._jaxpr, self._pools = jaxpr, pools
        self._results = set(ir.variables(jaxpr.outvars))
        self._read()
        if self._copy_writes():
            self._read()
        self._used = {var for eqn in self.eqns for var in ir.variables(eqn.invars)}
        written = defaultdict[int, set[ir.Var]](set)  # id of an equation -> versions that it alone writes
        for version, writes in self._writes.items():
            if len(writes) == 1:
                written[id(writes[0])].add(version)
        for write in [eqn for eqn in self.eqns if id(eqn) in written]:
            self._order(write, {var for var, version in self._version.items() if version in written[id(write)]})

    def _read(self) -> None:
        """Find versions of pools and their writes; order the bodies of loops."""
        starts = (self._jaxpr.invars[start] for start, _ in self._pools)
        # variable -> version of the pool, named by its first variable
        self._version = {var: var for var in starts}
        self._links: list[tuple[ir.JaxprEqn, Any, ir.Var]] = []  # equation, version before it, version after it
        for index, eqn in enumerate(self.eqns):
            pairs = self._successors(eqn)
            if pairs and eqn.primitive.name in _LOOPS:
                eqn = self.eqns[index] = self._with_ordered_body(eqn)
            for version, successor in pairs:
                self._links.append((eqn, version, successor))
                self._version[successor] = self._version[version] if is_view(eqn) else successor
        path = {id(self._jaxpr.outvars[end]) for _, end in self._pools}  # versions that become a result
        for _, version, successor in reversed(self._links):
            path |= {id(version)} if id(successor) in path else set()
        self._writes: dict[ir.Var, list[ir.JaxprEqn]] = {}  # version -> equations that write it
        for eqn, version, successor in self._links:
            writes = self._writes.setdefault(self._version[version], [])
            is_write = id(successor) in path and self._version[version] != self._version[successor]
            if is_write and not (writes and writes[-1] is eqn):
                writes.append(eqn)

    def _successors(self, eqn: ir.JaxprEqn) -> list[tuple[Any, ir.Var]]:
        """Return versions of pools before and after an equation, perhaps as views."""
        name, versions = eqn.primitive.name, [var for var in ir.variables(eqn.invars) if var in self._version]
        if not versions:
            return []
        if is_view(eqn):
            return [(versions[0], eqn.outvars[0])]
        if name in WRITES:
            return [(eqn.invars[0], eqn.outvars[0])] if versions[0] is eqn.invars[0] else []
        if name in _LOOPS:
            _, _, first = _loop(eqn)
            carries = zip(eqn.invars[first:], eqn.outvars, strict=False)
            return [(atom, out) for atom, out in carries if self._has_version(atom)]
        outvars = eqn.outvars if name in ELEMENTWISE or name == "cond" else []
        return [(var, out) for var in versions for out in outvars if ir.types([var]) == ir.types([out])][:1]

    def _with_ordered_body(self, eqn: ir.JaxprEqn) -> ir.JaxprEqn:
        key, constants, first = _loop(eqn)
        body, carried = eqn.params[key], range(len(eqn.invars) - first)
        pools = [(constants + k, k) for k in carried if self._has_version(eqn.invars[first + k])]
        inner = _WriteOrder(body.jaxpr, pools)
        if not inner.count or inner.consts:
            return eqn
        self.count += inner.count
        new = rewriting.with_eqns(body, inner.eqns, body.jaxpr.outvars, {})
        return eqn.replace(params={**eqn.params, key: new})

    def _copy_writes(self) -> bool:
        """Copy each elementwise write for its readers; return False without such a write.

        XLA recomputes an elementwise write in the fusion of its readers, from the old pool. So they get a copy of the
        write, and the write waits for them.
        """
        on_path = {id(eqn) for writes in self._writes.values() for eqn in writes}
        names: dict[ir.Var, ir.Atom] = {}
        for eqn, _, successor in self._links:
            if id(eqn) not in on_path or eqn.primitive.name not in ELEMENTWISE or successor not in self._results:
                continue
            readers = [user for user in self.eqns if successor in user.invars and id(user) not in on_path]
            if readers and {user.primitive.name for user in readers} <= _FUSED | REDUCTIONS:
                (names[successor],) = ir.of_types([successor.aval])
        eqns: list[ir.JaxprEqn] = []
        for eqn in self.eqns:
            copies = [eqn.replace(outvars=[names[var]]) for var in eqn.outvars if var in names]
            eqns += [eqn if id(eqn) in on_path else renamed(eqn, names), *copies]
        self.eqns = eqns
        return bool(names)

    def _has_version(self, atom: ir.Atom) -> bool:
        return not isinstance(atom, ir.Literal) and atom in self._version

    def _order(self, write: ir.JaxprEqn, views: set[ir.Var]) -> None:
        """Let a write wait for the last reads of these variables."""
        earlier_eqns, later_eqns, late = split_at(self.eqns, {id(write)})
        results, operand = self._last_reads(views, write, earlier_eqns, late | self._results), self._operand(write)
        if results and operand is not None:
            new_eqns, (flagged,), consts = emit(_ordered, [write.invars[operand], *results], write)
            self.consts |= consts
            self.count += 1
            write = write.replace(invars=[*write.invars[:operand], flagged, *write.invars[operand + 1 :]])
            self.eqns = [*earlier_eqns, *new_eqns, write, *later_eqns]

    def _last_reads(
        self, views: set[ir.Var], write: ir.JaxprEqn, earlier_eqns: Sequence[ir.JaxprEqn], late: set[ir.Var]
    ) -> list[ir.Var]:
        """Return results of earlier reads that a write must wait for.

        Args:
            late: variables that the write and later equations read, and results of the program.
        """
        needed = set(ir.variables(write.invars))
        for eqn in reversed(earlier_eqns):
            if not needed.isdisjoint(eqn.outvars):
                needed.update(ir.variables(eqn.invars))
        read, results = set(views), list[ir.Var]()
        for eqn in earlier_eqns:
            if read.isdisjoint(ir.variables(eqn.invars)) or not views.isdisjoint(eqn.outvars):
                continue
            is_fused = eqn.primitive.name in _FUSED
            ends = (var for var in eqn.outvars if not is_fused or var in late or var not in self._used)
            results += (var for var in ends if var not in needed and not isinstance(var, ir.DropVar))
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


def _loop(eqn: ir.JaxprEqn) -> tuple[str, int, int]:
    """Return the name of a loop's body, its number of constants, and the first carry."""
    if eqn.primitive.name == "scan":
        constants, _ = ir.scan_counts(eqn)
        return "jaxpr", constants, constants
    constants = eqn.params["body_nconsts"]
    return "body_jaxpr", constants, eqn.params["cond_nconsts"] + constants


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
