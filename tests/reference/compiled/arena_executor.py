"""Run a jaxpr by equations with scratch in one byte arena at planned offsets.

Liveness and the verifier of plans share one model of value locations: which are views, where the carry of a loop is,
when a body has separate bytes. Here the model is carried out, and its errors become visible: bytes are
poison before a value is written and after the plan frees it, and the results of an equation are poisoned before its
operands are read (a kernel may write before it has read). With a correct plan the results are bit for bit those of a
plan without shared bytes.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from ir_passes.jaxpr import ir, rewriting
from ir_passes.jaxpr.dtypes import is_key, key_implementation
from ir_passes.scratch.liveness import Scratch
from ir_passes.scratch.planner import Plan

# The package exports a function with the name of the module.
liveness = sys.modules[Scratch.__module__]
POISON = 0xFF  # NaN in every floating point format, -1 in every signed integer

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True)
class _Place:
    """A value's bytes: in the arena, or in memory of the caller's."""

    memory: Bytes
    offset: int
    aval: Any

    @property
    def bytes(self) -> int:
        return int(np.prod(self.aval.shape, dtype=np.int64)) * self.aval.dtype.itemsize

    def read(self) -> Any:
        data = self.memory[self.offset : self.offset + self.bytes].tobytes()
        dtype = self.aval.dtype
        if is_key(dtype):
            words = np.frombuffer(data, np.uint32).reshape((*self.aval.shape, -1))
            return jax.random.wrap_key_data(jnp.asarray(words), impl=key_implementation(dtype))
        return np.frombuffer(data, dtype).reshape(self.aval.shape)

    def write(self, value: Any) -> None:
        if is_key(self.aval.dtype):
            value = jax.random.key_data(value)
        data = np.frombuffer(np.ascontiguousarray(np.asarray(value)).tobytes(), np.uint8)
        self.memory[self.offset : self.offset + len(data)] = data

    def entry(self, index: int, aval: Any) -> "_Place":
        """The part of a stacked value that one iteration of a scan sees."""
        return _Place(self.memory, self.offset + index * _Place(self.memory, 0, aval).bytes, aval)


def execute(plan: Plan, args: tuple[Any, ...]) -> list[np.ndarray[Any, Any]]:
    """The results of the planned jaxpr, flattened, computed in an arena of `plan.size` bytes.

    Args:
        plan: of the function to run; not verified here.
        args: its arguments.
    """
    memory = np.full(plan.size, POISON, np.uint8)
    closed = plan.jaxpr
    inputs = [_held(var.aval, value) for var, value in zip(closed.jaxpr.invars, jax.tree.leaves(args), strict=True)]
    return [np.asarray(place.read()) for place in _Frame(closed, plan, memory, 0).run(inputs)]


class _Frame:
    """One run of a jaxpr with scratch at `base`."""

    def __init__(self, closed: ir.ClosedJaxpr, plan: Plan, memory: Bytes, base: int) -> None:
        self.jaxpr, self.plan, self.memory, self.base = closed.jaxpr, plan, memory, base
        self.places: dict[Any, _Place] = {
            var: _held(var.aval, const) for var, const in zip(closed.jaxpr.constvars, closed.consts, strict=True)
        }
        self.placements = {(p.equation, p.result): p for p in plan.placements}
        self.live: list[Scratch] = []

    def run(self, inputs: Sequence[_Place]) -> list[_Place]:
        """Run all equations; return the places of the results."""
        self.places.update(zip(self.jaxpr.invars, inputs, strict=True))
        for i, eqn in enumerate(self.jaxpr.eqns):
            if liveness.is_view(eqn):
                self.places[eqn.outvars[0]] = self._view(eqn)
            else:
                results = [self._allocate(i, j, var.aval) for j, var in enumerate(eqn.outvars)]
                self.places.update(zip(eqn.outvars, results, strict=True))
                self._run_equation(i, eqn, results)
            self._free(i)
        return [self._place(atom) for atom in self.jaxpr.outvars]

    def _run_equation(self, i: int, eqn: ir.JaxprEqn, results: list[_Place]) -> None:
        operands = [self._place(atom) for atom in eqn.invars]
        match eqn.primitive.name:
            case "scan":
                self._scan(i, eqn, operands, results)
            case "while":
                self._while(i, eqn, operands, results)
            case "cond":
                branch = int(np.clip(operands[0].read(), 0, len(eqn.params["branches"]) - 1))
                _store(self._body(i, branch, eqn.params["branches"][branch]).run(operands[1:]), results)
            case _ if ir.body_of(eqn) is not None:
                _store(self._body(i, 0, cast(ir.ClosedJaxpr, ir.body_of(eqn))).run(operands), results)
            case _:
                values = rewriting.eval_eqn(eqn, *(place.read() for place in operands))
                for value, target in zip(values, results, strict=True):
                    target.write(value)

    def _scan(self, i: int, eqn: ir.JaxprEqn, operands: list[_Place], results: list[_Place]) -> None:
        """Run a scan: carries in the results, `xs` and `ys` in place."""
        body, length = eqn.params["jaxpr"], eqn.params["length"]
        consts, carry = ir.scan_counts(eqn)
        _store(operands[consts : consts + carry], results[:carry])
        for step in reversed(range(length)) if eqn.params["reverse"] else range(length):
            xs = [
                place.entry(step, var.aval)
                for place, var in zip(operands[consts + carry :], body.jaxpr.invars[consts + carry :], strict=True)
            ]
            ys = [
                place.entry(step, atom.aval)
                for place, atom in zip(results[carry:], body.jaxpr.outvars[carry:], strict=True)
            ]
            _store(self._body(i, 0, body).run(operands[:consts] + results[:carry] + xs), results[:carry] + ys)

    def _while(self, i: int, eqn: ir.JaxprEqn, operands: list[_Place], results: list[_Place]) -> None:
        condition, body = eqn.params["cond_jaxpr"], eqn.params["body_jaxpr"]
        first, second = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
        _store(operands[first + second :], results)
        while bool(self._body(i, 0, condition).run(operands[:first] + results)[0].read()):
            _store(self._body(i, 1, body).run(operands[first : first + second] + results), results)

    def _body(self, i: int, place: int, closed: ir.ClosedJaxpr) -> "_Frame":
        block = self.plan.blocks[i]
        offset, plan = block.bodies[place]
        base = self.base + block.offset + offset
        self.memory[base : base + plan.size] = POISON
        return _Frame(closed, plan, self.memory, base)

    def _place(self, atom: Any) -> _Place:
        return _held(atom.aval, atom.val) if isinstance(atom, ir.Literal) else self.places[atom]

    def _view(self, eqn: ir.JaxprEqn) -> _Place:
        operand = self.places[eqn.invars[0]]
        return _Place(operand.memory, operand.offset, eqn.outvars[0].aval)

    def _allocate(self, i: int, j: int, aval: Any) -> _Place:
        placement = self.placements.get((i, j))
        if placement is None:
            return _held(aval, None)
        low = self.base + placement.offset
        self.memory[low : low + placement.bytes] = POISON
        self.live.append(placement)
        return _Place(self.memory, low, aval)

    def _free(self, i: int) -> None:
        for p in self.live:
            if p.end <= i:
                low = self.base + p.offset
                self.memory[low : low + p.bytes] = POISON
        self.live = [p for p in self.live if p.end > i]


def _held(aval: Any, value: Any) -> _Place:
    """Return the caller's memory with this value; poison for None."""
    place = _Place(np.empty(0, np.uint8), 0, aval)
    place = _Place(np.full(place.bytes, POISON, np.uint8), 0, aval)
    if value is not None:
        as_given = is_key(aval.dtype)
        place.write(value if as_given else np.asarray(value, aval.dtype))
    return place


def _store(sources: Sequence[_Place], targets: Sequence[_Place]) -> None:
    """Copy values after reading all: a carry may swap two."""
    values = [source.read() for source in sources]
    for value, target in zip(values, targets, strict=True):
        target.write(value)
