"""Programs with one changed equation, judged by running: mutants for the proof.

The whole space of changes of a program can be listed; it has thousands. Whether a change leaks is found out by running
what depends on it for every change of every lane, several slot maps and weights (`isolation_oracle`).

More than 300 lines: one list of changes, and the subject that they are made to.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from isolation_oracle import Claims, Leaves, runs
from jax import lax
from jax.sharding import PartitionSpec as P
from numpy_indexing import gather_fill
from numpy_interpreter import Value, apply, literal
from zoo.program import Program

from ir_passes import Packed
from ir_passes.contract.guarded_writes import step_form
from ir_passes.jaxpr import ir, rewriting

MODES = (lax.GatherScatterMode.CLIP, lax.GatherScatterMode.FILL_OR_DROP, lax.GatherScatterMode.PROMISE_IN_BOUNDS)


@dataclass(frozen=True)
class Change:
    """One equation of a program in another form.

    Attributes:
        text: the change, unique in its program, as "scatter: operand 1 becomes variable 7".
        index: of the equation at the top level; the number of equations where a result is changed.
        eqn: the equation changed, with everything inside it; None where a result is changed.
        result: which result becomes which variable.
    """

    text: str
    index: int
    eqn: ir.JaxprEqn | None
    result: tuple[int, Any] | None = None

    @property
    def key(self) -> tuple[int, str]:
        """The same for the same change of the same program traced again."""
        return self.index, self.text

    def apply(self, program: ir.ClosedJaxpr) -> ir.ClosedJaxpr:
        """The program with this change."""
        jaxpr = program.jaxpr
        if self.result is not None:
            outvars = list(jaxpr.outvars)
            outvars[self.result[0]] = self.result[1]
            return ir.ClosedJaxpr(jaxpr.replace(outvars=outvars), program.consts)
        eqns = list(jaxpr.eqns)
        assert self.eqn is not None
        eqns[self.index] = self.eqn
        return ir.ClosedJaxpr(jaxpr.replace(eqns=eqns), program.consts)

    def check(self, program: ir.ClosedJaxpr) -> None:
        """Raise JAX's error for an equation with unsuitable operands or results."""
        if self.eqn is not None:
            # the other variables are unchanged; an aval of another result makes the program wrong as well
            operands = [*dict.fromkeys(atom for atom in self.eqn.invars if not isinstance(atom, ir.Literal))]
            results = [var for var in self.eqn.outvars if not isinstance(var, ir.DropVar)]
            single = program.jaxpr.replace(constvars=[], invars=operands, eqns=[self.eqn], outvars=results)
            ir.check(ir.ClosedJaxpr(single, []))


def _alike(a: Any, b: Any) -> bool:
    return (a.shape, a.dtype) == (b.shape, b.dtype)


def changes(jaxpr: ir.Jaxpr, on_mesh: bool = False) -> Iterator[Change]:
    """Every change of one equation in a program or its bodies, per result.

    Args:
        jaxpr: the program.
        on_mesh: whether it runs on each device of a mesh; no dimension of an operand is then dropped.
    """
    table: list[Any] = [*jaxpr.constvars, *jaxpr.invars]
    for index, eqn in enumerate(jaxpr.eqns):
        name = eqn.primitive.name
        for label, new in _equation_changes(eqn, table):
            yield Change(f"{name}: {label}", index, new)
        for label, new in () if on_mesh or name == "shard_map" else _dropped_dimensions(eqn):
            yield Change(f"{name}: {label}", index, new)
        for key, value in eqn.params.items():
            if key in ("jaxpr", "body_jaxpr", "call_jaxpr"):
                for inner in changes(ir.closed(value).jaxpr, on_mesh or name == "shard_map"):
                    body = inner.apply(ir.closed(value))
                    body = body if isinstance(value, ir.ClosedJaxpr) else body.jaxpr
                    yield Change(
                        f"{name} > {inner.index}, {inner.text}", index, eqn.replace(params=eqn.params | {key: body})
                    )
            elif key == "branches":
                for i, branch in enumerate(value):
                    for inner in changes(branch.jaxpr, on_mesh):
                        branches = (*value[:i], inner.apply(branch), *value[i + 1 :])
                        yield Change(
                            f"{name} > {inner.index}, {inner.text}",
                            index,
                            eqn.replace(params=eqn.params | {key: branches}),
                        )
        table += [var for var in eqn.outvars if not isinstance(var, ir.DropVar)]
    for i, out in enumerate(jaxpr.outvars):
        for k, other in enumerate(table):
            if other is not out and _alike(other.aval, out.aval):
                yield Change(f"result {i} becomes variable {k}", len(jaxpr.eqns), None, (i, other))


def _equation_changes(eqn: ir.JaxprEqn, table: Sequence[Any]) -> Iterator[tuple[str, ir.JaxprEqn]]:
    for i, atom in enumerate(eqn.invars):
        for k, other in enumerate(table):
            if other is not atom and _alike(other.aval, atom.aval):
                invars = [*eqn.invars[:i], other, *eqn.invars[i + 1 :]]
                yield f"operand {i} becomes variable {k}", eqn.replace(invars=invars)
        if isinstance(atom, ir.Literal) and np.issubdtype(np.asarray(atom.val).dtype, np.integer):
            for step in (-1, 1):
                # numbers of one sign only wrap
                value = np.asarray(int(atom.val) + step).astype(atom.aval.dtype)  # type: ignore[attr-defined]  # an array's
                invars = [*eqn.invars[:i], ir.Literal(value, atom.aval), *eqn.invars[i + 1 :]]
                yield f"operand {i} becomes the number {value}", eqn.replace(invars=invars)
    for label, params in _parameter_changes(eqn):
        yield label, eqn.replace(params=eqn.params | params)


def _dropped_dimensions(eqn: ir.JaxprEqn) -> Iterator[tuple[str, ir.JaxprEqn]]:
    """The equation with an operand that repeats index 0 along a dimension."""
    for i, atom in enumerate(eqn.invars):
        for dim, size in enumerate(getattr(atom.aval, "shape", ())):
            if size > 1:
                yield f"operand {i} is its first along {dim}", _with_first(eqn, i, dim)


def _with_first(eqn: ir.JaxprEqn, operand: int, dim: int) -> ir.JaxprEqn:
    """One equation, a call, that has the operands and results of another."""

    def changed(*values: Any) -> list[Any]:
        x = values[operand]
        first = jnp.broadcast_to(lax.slice_in_dim(x, 0, 1, axis=dim), x.shape)
        return rewriting.eval_eqn(eqn, *values[:operand], first, *values[operand + 1 :])

    (call,) = ir.trace(jax.jit(changed), *(atom.aval for atom in eqn.invars)).jaxpr.eqns
    return call.replace(invars=list(eqn.invars), outvars=list(eqn.outvars))


def _parameter_changes(eqn: ir.JaxprEqn) -> Iterator[tuple[str, dict[str, Any]]]:
    p, name = eqn.params, eqn.primitive.name
    shapes = [getattr(atom.aval, "shape", ()) for atom in eqn.invars]
    out = getattr(eqn.outvars[0].aval, "shape", ())
    if name == "slice":
        for dim, (start, stop) in enumerate(zip(p["start_indices"], p["limit_indices"], strict=True)):
            for step in (-1, 1):
                if start + step >= 0 and stop + step <= shapes[0][dim]:
                    moved = {
                        key: (*p[key][:dim], p[key][dim] + step, *p[key][dim + 1 :])
                        for key in ("start_indices", "limit_indices")
                    }
                    yield f"begins at {start + step} of dimension {dim}", moved
    if name == "transpose":
        for other in permutations(range(len(out))):
            if other != tuple(p["permutation"]) and tuple(shapes[0][dim] for dim in other) == out:
                yield f"dimensions in the order {other}", {"permutation": other}
    if name == "reshape" and len(shapes[0]) > 1:
        for other in permutations(range(len(shapes[0]))):
            if other != tuple(range(len(other))):
                yield f"of the axes in the order {other}", {"dimensions": other}
    if name == "broadcast_in_dim":
        for other in permutations(range(len(out)), len(shapes[0])):
            fits = all(size in (1, out[dim]) for size, dim in zip(shapes[0], other, strict=True))
            if fits and tuple(sorted(other)) == other and other != tuple(p["broadcast_dimensions"]):
                yield f"spread along {other}", {"broadcast_dimensions": other}
    if "mode" in p and name.startswith(("gather", "scatter")):
        for mode in MODES:
            if mode != p["mode"]:
                # A gather that fills needs a value to fill with, or it cannot be lowered; `lax.gather` sets this one.
                fills = name == "gather" and mode == lax.GatherScatterMode.FILL_OR_DROP
                dtype = getattr(eqn.invars[0].aval, "dtype", None)
                fill = {"fill_value": gather_fill(np.dtype(dtype))} if fills else {}
                yield f"mode {mode.name}", {"mode": mode, **fill}
    if name == "iota":
        for dim, size in enumerate(out):
            if dim != p["dimension"] and size > 1:
                yield f"counts along {dim}", {"dimension": dim}
    if name.startswith("reduce_") and "axes" in p and len(p["axes"]) == 1:
        for dim in range(len(shapes[0])):
            if dim != p["axes"][0] and (*shapes[0][:dim], *shapes[0][dim + 1 :]) == out:
                yield f"over dimension {dim}", {"axes": (dim,)}
    if name.startswith("cum") or name in ("concatenate", "sort"):
        key = "axis" if name.startswith("cum") else "dimension"
        for dim in range(len(out)):
            if dim != p[key] and (name != "concatenate" or len({shape[dim] for shape in shapes}) == 1):
                total = sum(shape[dim] for shape in shapes) if name == "concatenate" else out[dim]
                if total == out[dim] and (name != "concatenate" or shapes[0][p[key]] == out[p[key]]):
                    yield f"along {dim}", {key: dim}
    if name == "dot_general":
        yield from _dot_changes(p["dimension_numbers"], shapes, out)
    if name == "scan":
        yield "backwards", {"reverse": not p["reverse"]}
    yield from _mesh_changes(name, p)


def _mesh_changes(name: str, p: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Another axis of the mesh, another way round it, or arrays split otherwise over it."""
    other = {"data": "model", "model": "data"}
    for key in ("axes", "axis_name"):
        names = p.get(key, ())
        renamed = (
            tuple(other.get(axis, axis) for axis in names) if isinstance(names, tuple) else other.get(names, names)
        )
        if names and renamed != names:
            yield f"along {renamed}", {key: renamed}
    if name == "ppermute":
        yield "the other way", {"perm": tuple((target, source) for source, target in p["perm"])}
    if name == "shard_map":
        for key in ("in_specs", "out_specs"):
            for i, spec in enumerate(p[key]):
                swapped = P(*(other.get(axis, axis) if isinstance(axis, str) else axis for axis in spec))
                for new in (swapped, P()):
                    if new != spec:
                        yield f"{key} {i} become {new}", {key: (*p[key][:i], new, *p[key][i + 1 :])}


def _dot_changes(numbers: Any, shapes: list[Any], out: tuple[int, ...]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Another dimension contracted, or another one in the batch, on one side."""
    (ca, cb), (ba, bb) = numbers
    for side, dims, batch in ((0, ca, ba), (1, cb, bb)):
        for dim in dims:
            for other in range(len(shapes[side])):
                if other not in dims and shapes[side][other] == shapes[side][dim]:
                    swap = {dim: other, other: dim}
                    contract = tuple(swap.get(d, d) for d in dims)
                    batched = tuple(swap.get(d, d) for d in batch)
                    new = ((contract, cb), (batched, bb)) if side == 0 else ((ca, contract), (ba, batched))
                    yield f"operand {side} is contracted over {other}, not {dim}", {"dimension_numbers": new}


class Subject:
    """A program with changes that are judged by running them in numpy.

    Args:
        program: traced, and run once for all changes of its lanes, in numpy.
        seeds: draws.
        run: gives the results of one equation for many runs.

    Attributes:
        bound: its contract.
        program: its jaxpr, calls replaced by their bodies.
        claims: the contract's claims about the results of all runs.
        values: top-level variable -> its values in all runs.
        turns: variable inside a loop or branch -> its values, and the runs meant, in each turn.
    """

    def __init__(self, program: Program, seeds: Sequence[int] = (0, 1, 2), run: Any = apply):
        self.name = program.name
        self.bound = program.bound()
        self.program = step_form(ir.trace(program.step, *program.args()), self.bound)
        self.claims = Claims(self.bound, [runs(self.bound, program.draw, seed) for seed in seeds])
        self.values: dict[Any, Value] = {}
        self.turns: dict[Any, list[tuple[Value, Value]]] = {}
        self._run = run
        jaxpr = self.program.jaxpr
        self.values.update(zip(jaxpr.constvars, (np.asarray(c)[None] for c in self.program.consts), strict=True))
        self.values.update(zip(jaxpr.invars, self.claims.leaves, strict=True))
        with np.errstate(all="ignore"):
            for eqn in jaxpr.eqns:
                self.values.update(zip(eqn.outvars, run(eqn, self.read(eqn.invars), self._observe), strict=True))

    def _observe(self, eqn: ir.JaxprEqn, results: list[Value], runs: Value) -> None:
        for var, result in zip(eqn.outvars, results, strict=True):
            self.turns.setdefault(var, []).append((result, runs))

    def changes(self) -> list[Change]:
        """The whole space."""
        return list(changes(self.program.jaxpr))

    def of_layout(self) -> set[int]:
        """Equations that only compute token ownership from `cu_seqlens` or segment ids.

        Another layout is wrong for every lane, even if it keeps them apart by luck: no refusal of it is a false
        alarm. Equations that use it are judged like all others.
        """
        jaxpr = self.program.jaxpr
        reads = [{atom for atom in eqn.invars if not isinstance(atom, ir.Literal)} for eqn in jaxpr.eqns]
        entries = [(var, index.entry) for var, index in zip(jaxpr.invars, self.bound.inputs, strict=True)]
        layout = {var for var, entry in entries if isinstance(entry, Packed) and entry.role is not None}
        constant, result = {*jaxpr.constvars}, set[int]()
        for index, eqn in enumerate(jaxpr.eqns):
            if reads[index] <= layout | constant:
                (layout if reads[index] & layout else constant).update(eqn.outvars)
                result |= {index} if reads[index] & layout else set()
        results = {atom for atom in jaxpr.outvars if not isinstance(atom, ir.Literal)}
        for index in reversed(range(len(reads))):  # constants that nothing else is made of
            output = set(jaxpr.eqns[index].outvars)
            users = {k for k, read in enumerate(reads) if output & read}
            if users and users <= result and not output & results:
                result.add(index)
        return result

    def leaks(self, change: Change) -> bool:
        """Whether the changed program breaks its contract in any run."""
        return next(self.claims.broken(self._results(change)), None) is not None

    def leaking_runs(self, change: Change) -> list[tuple[Leaves, Leaves]]:
        """Arguments of contract-breaking runs, next to the unchanged ones."""
        result = sorted({leak.run for leak in self.claims.broken(self._results(change))})
        return [(self.claims.runs[run].leaves, self.claims.runs[self.claims.base[run]].leaves) for run in result]

    def _results(self, change: Change) -> list[Value]:
        jaxpr, new = change.apply(self.program).jaxpr, dict[Any, Value]()
        with np.errstate(all="ignore"):
            for index in range(change.index, len(jaxpr.eqns)):
                eqn = jaxpr.eqns[index]
                if index == change.index or any(atom in new for atom in eqn.invars if not isinstance(atom, ir.Literal)):
                    results = self._run(eqn, self.read(eqn.invars, new), None)
                    for var, result in zip(eqn.outvars, results, strict=True):
                        old = self.values[var]
                        if result.shape != old.shape or result.tobytes() != old.tobytes():
                            new[var] = result
        return self.read(jaxpr.outvars, new)

    def read(self, atoms: Sequence[Any], new: Mapping[Any, Value] = MappingProxyType({})) -> list[Value]:
        """Operands in all runs.

        Args:
            atoms: variables and literals.
            new: what stands for some variables.
        """
        return [
            literal(atom) if isinstance(atom, ir.Literal) else new[atom] if atom in new else self.values[atom]
            for atom in atoms
        ]
