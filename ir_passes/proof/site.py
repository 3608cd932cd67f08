"""The abstract interpreter; `Site` is one equation as a rule sees it."""

from collections.abc import Container, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ir_passes.contract.declared import declaration_of
from ir_passes.jaxpr import ir, primitives
from ir_passes.jaxpr.bodies import params_key
from ir_passes.jaxpr.conversions import holds
from ir_passes.jaxpr.fingerprint import PLACES
from ir_passes.proof import refusals
from ir_passes.proof.concerned import describe, operands_in_words, pool_path
from ir_passes.proof.intervals import fits
from ir_passes.proof.numbering import Number
from ir_passes.proof.owners import COMMON, Common, Mixed, Owner, PoolRows, axis_of
from ir_passes.proof.prover import Env, Prover
from ir_passes.proof.registry import PARAMETERS, RULES
from ir_passes.proof.uniformity import reveals_order, uniform_axes
from ir_passes.proof.values import Constant, IndexSum, Iota, OffsetEntry, Tiles, Value
from ir_passes.proof.violations import IsolationError, Place, Violation, ViolationKind, violation_at


@dataclass(slots=True)
class Site:
    """One equation under analysis; a rule receives it with the operands' values.

    Attributes:
        jaxpr, index: its program and index.
        shapes: of operands.
    """

    prover: Prover
    eqn: Any
    jaxpr: Any
    index: int
    env: dict[Any, Value] = field(repr=False)
    shapes: list[tuple[int, ...]]

    @property
    def params(self) -> dict[str, Any]:
        return self.eqn.params

    @property
    def name(self) -> str:
        return self.eqn.primitive.name

    @property
    def shape(self) -> tuple[int, ...]:
        return ir.shape_of(self.eqn.outvars[0])

    def maker(self, atom: Any) -> Any:
        return None if isinstance(atom, ir.Literal) else self.prover.makers(self.jaxpr).get(atom)

    def apply(self, operands: list[Value]) -> list[Value]:
        """Return the results' values by the primitive's rule."""
        for value in operands:
            if value.version is not None and self.prover.versions.stale(value.version):
                self.report(*refusals.STALE_READ(path=pool_path(self.prover, value)))
        try:
            results = self._before_sum(operands) or self.by_rule(operands)
            results = [self._completed(value, operands, k) for k, value in enumerate(results)]
            return results if self.prover.refine is None else self.prover.refine(self, operands, results)
        except IsolationError:
            raise
        except Exception as error:
            text = refusals.RULE_FAILED(name=self.name, error=type(error).__name__, reason=error)
            raise IsolationError((self.violation(*text),)) from error

    def by_rule(self, operands: list[Value]) -> list[Value]:
        rule = RULES.get(self.name)
        unknown = None if rule is None else PARAMETERS[self.name].unknown(self.params)
        if rule is None or unknown is not None:
            text = refusals.no_rule(self.name, unknown, self.eqn.effects)
            if self.eqn.effects:
                self.report(*text)
            owner = self.mixed(*text)
            return [Value(owner) for _ in self.eqn.outvars]
        if self.name not in primitives.WITH_BODIES:
            return rule(self, *operands)
        with self.prover.given(callers=[*self.prover.callers, self.eqn]):
            return rule(self, *operands)

    def _before_sum(self, operands: list[Value]) -> list[Value]:
        """Refuse a row not yet summed over devices, else return []."""
        axes = {axis for value in operands for axis in getattr(value.owner, "unreduced", ())}
        has_rule = self.name in primitives.CALLS and declaration_of(self.eqn) is None
        moves = self.name in primitives.MOVES and all(holds(ir.dtype_of(var), 0) for var in self.eqn.outvars)
        if not axes or has_rule or self.name in primitives.DEVICE_SUMS or moves:
            return []
        mixed = self.mixed(*refusals.BEFORE_SUM(along=", ".join(sorted(axes))))
        return [Value(mixed) for _ in self.eqn.outvars]

    def _completed(self, value: Value, operands: list[Value], result: int) -> Value:
        """Add a result's value number; drop doubtful bounds and facts."""
        owner, bounds, uniform = value.owner, value.range, value.uniform
        if isinstance(owner, Common):
            if self.prover.reorders:
                uniform = uniform or uniform_axes(self.eqn, operands, self.shapes)
        elif isinstance(owner, PoolRows):
            owner = self._framed(owner, operands)
        elif reveals_order(self.eqn, owner, operands, self.shapes):
            owner = self.mixed(*refusals.ARRAY_REVEALS_ORDER)
        if isinstance(owner, Mixed) and (self.prover.idle or self.prover.stopped):
            bounds = None  # the element may come from another lane, and that lane is not idle
        fact = value.fact or self._constant(operands) or self._tiled(owner, operands)
        if bounds is not None and not fits(self.eqn.outvars[result].aval, *bounds):
            bounds = None  # integers wrap, or are rounded
            fact = None if isinstance(fact, Iota) else fact
        number = value.number or self._number(operands, result)
        if self.prover.stopped is not None and not isinstance(owner, Mixed):
            bounds = self.prover.stopped(self, number) or bounds
        return Value(owner, number, bounds, fact, value.intact, value.version, uniform)

    def _tiled(self, owner: Owner, operands: list[Value]) -> Tiles | None:
        """Return the tiles of results of equal tiles and shared arrays."""
        if self.name not in primitives.ELEMENTWISE or not isinstance(owner, Mixed):
            return None
        tiles = [value.fact for value in operands if not isinstance(value.owner, Common)]
        fact = tiles[0]
        if not isinstance(fact, Tiles) or any(other != fact for other in tiles):
            return None
        axes = slice(fact.tiles, fact.tiles + 2)
        aligned = all(
            isinstance(value.owner, Common) or (len(shape) == len(self.shape) and shape[axes] == self.shape[axes])
            for value, shape in zip(operands, self.shapes, strict=True)
        )
        return fact if aligned else None

    def _constant(self, operands: list[Value]) -> Constant | None:
        if self.name not in primitives.ELEMENTWISE:
            return None
        facts = [value.fact for value in operands if isinstance(value.fact, Constant)]
        return Constant(any(fact.captured for fact in facts)) if len(facts) == len(operands) else None

    def _number(self, operands: list[Value], result: int) -> Number:
        params = self.eqn.params
        if self.name in primitives.COMBINING:
            params = {name: value for name, value in params.items() if name != "update_jaxpr"}
        if not PLACES.isdisjoint(params):
            params = {name: value for name, value in params.items() if name not in PLACES}
        params = params_key(params)
        if params is None or self.eqn.effects:
            return self.prover.fresh()
        # equal integers of two dtypes share a number, but results computed from them may differ
        avals = (*self.shapes, *map(ir.dtype_of, self.eqn.invars))
        return self.prover.number((self.name, params, avals, result), *[value.number for value in operands])

    def _framed(self, owner: PoolRows, operands: list[Value]) -> PoolRows:
        """Return the pool; only moves leave rows unchanged."""
        indexed = self.name in primitives.INDEXED
        if self.name in primitives.KEEPS_ROWS and (not indexed or isinstance(operands[0].owner, PoolRows)):
            return owner
        return self.unframed(owner)

    def unframed(self, owner: PoolRows) -> PoolRows:
        """Return the pool with all its rows changed."""
        violation = self.violation(*refusals.EVERY_ROW_COMPUTED(name=self.name, group=owner.group))
        return replace(owner, view=(), unframed=owner.unframed or violation)

    def layout_of(self, value: Value, shape: tuple[int, ...]) -> str | None:
        """Return the layout with an operand as cu_seqlens, if any."""
        layouts = self.prover.bound.layouts if shape == (self.prover.bound.lanes + 1,) else ()
        offsets = {layout: IndexSum(frozenset({(OffsetEntry(layout, 0, 0), 1)})) for layout in layouts}
        return next((layout for layout, fact in offsets.items() if value.fact == fact), None)

    def violation(self, message: str, remedy: str, kind: ViolationKind = ViolationKind.CROSS_LANE) -> Violation:
        owners = [self.prover.read(self.env, atom).owner for atom in self.eqn.invars]
        about = operands_in_words(self.prover.bound, owners, self.shapes)
        place = Place(self.jaxpr, self.index, self.env)
        return violation_at(place, message, remedy, kind, about, self.prover.callers[::-1])

    def report(self, message: str, remedy: str, kind: ViolationKind = ViolationKind.CROSS_LANE) -> None:
        """Record a violation, even if no output depends on the result."""
        self.prover.violations.append(self.violation(message, remedy, kind))

    def mixed(self, message: str, remedy: str, kind: ViolationKind = ViolationKind.CROSS_LANE) -> Mixed:
        """Return `Mixed`: a violation if an output depends on the result."""
        return Mixed(self.violation(message, remedy, kind))

    def apart(self, owner: Owner, axes: Container[int], text: refusals.RefusalText) -> Owner:
        """Return an owner without lanes along these axes, else `Mixed`."""
        axis = axis_of(owner)
        return owner if axis is None or axis not in axes else self.mixed(*text)

    def join(self, *owners: Owner) -> Owner:
        """Return the least owner above all these owners."""
        joined: Owner = COMMON
        for owner in owners:
            if isinstance(owner, Common) or owner == joined:
                continue
            if isinstance(owner, Mixed):
                return owner
            if isinstance(joined, Common):
                joined = owner
            elif isinstance(joined, PoolRows) and isinstance(owner, PoolRows):
                joined = self._join_pools(joined, owner)
                if isinstance(joined, Mixed):
                    return joined
            else:
                return self.mixed(*refusals.TWO_OWNERS(first=describe(joined), second=describe(owner)))
        return joined

    def _join_pools(self, first: PoolRows, second: PoolRows) -> Owner:
        forms = [(pool.group, pool.axis, pool.split, pool.inner) for pool in (first, second)]
        if forms[0] != forms[1]:
            return self.mixed(*refusals.TWO_POOLS(first=describe(first), second=describe(second)))
        unframed = first.unframed or second.unframed
        if unframed is None and (first.leaf, first.view) != (second.leaf, second.view):
            unframed = self.violation(*refusals.REPLACED_POOL(group=first.group))
        return replace(first, unframed=unframed, writers=first.writers | second.writers)


def interpret(prover: Prover, program: ir.ClosedJaxpr, args: Sequence[Value]) -> list[Value]:
    """Return the values of a program's results."""
    jaxpr: Any = program.jaxpr
    env: Env = dict(zip(jaxpr.constvars, map(prover.constant, program.consts), strict=True))
    env.update(zip(jaxpr.invars, args, strict=True))
    prover.values[jaxpr] = env
    for index, eqn in enumerate(jaxpr.eqns):
        operands = [prover.read(env, atom) for atom in eqn.invars]
        results = Site(prover, eqn, jaxpr, index, env, ir.shapes(eqn.invars)).apply(operands)
        if prover.observe is not None:
            prover.observe(eqn, operands, results)
        env.update(zip(eqn.outvars, results, strict=True))
    return [prover.read(env, atom) for atom in jaxpr.outvars]
