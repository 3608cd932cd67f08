"""The abstract interpreter, and one equation under it: what a transfer function sees, and how it reports."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ir_passes.contract.declared import declaration_of
from ir_passes.jaxpr import ir, primitives
from ir_passes.jaxpr.bodies import params_key
from ir_passes.jaxpr.conversions import holds
from ir_passes.jaxpr.fingerprint import PLACES
from ir_passes.proof.concerned import concerned
from ir_passes.proof.intervals import fits
from ir_passes.proof.numbering import Number
from ir_passes.proof.owners import COMMON, Common, LaneRows, Mixed, Owner, PoolRows, describe
from ir_passes.proof.prover import Env, Prover
from ir_passes.proof.registry import rule_of
from ir_passes.proof.uniformity import REMEDY, reveals_order, uniform_axes
from ir_passes.proof.values import Constant, Iota, Tiles, Value
from ir_passes.proof.violations import IsolationError, Place, Violation, ViolationKind


@dataclass(slots=True)
class Site:
    """One equation under analysis: everything that a transfer function (a rule) sees besides its operands.

    Attributes:
        prover: the state of the interpretation.
        eqn: the equation.
        jaxpr, index, env: the program it stands in, its place there, and the values before it.
        shapes: of the operands.
    """

    prover: Prover
    eqn: Any
    jaxpr: Any
    index: int
    env: dict[Any, Value] = field(repr=False)
    shapes: list[tuple[int, ...]]

    @property
    def params(self) -> dict[str, Any]:
        """The equation's parameters."""
        return self.eqn.params

    @property
    def name(self) -> str:
        """Name of the primitive."""
        return self.eqn.primitive.name

    @property
    def source(self) -> str:
        """The user's "file:line": of the equation, or of the nearest call around it where JAX made it."""
        return next(iter(self._frames()), "unknown")

    def _frames(self) -> tuple[str, ...]:
        around = (self.eqn, *reversed(self.prover.callers))
        return tuple(dict.fromkeys(place for eqn in around for place in ir.frames_of(eqn)))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the first result."""
        return ir.shape_of(self.eqn.outvars[0])

    def apply(self, operands: list[Value]) -> list[Value]:
        """Apply the operation's transfer function; return the results."""
        for value in operands:
            if value.version is not None and self.prover.versions.stale(value.version):
                self.report(
                    ViolationKind.STALE,
                    f"{self.path(value)} is read after a later version of it was made",
                    "use the version that the write returned, or read before the write",
                )
        try:
            results = self._before_sum(operands) or self._transferred(operands)
            results = [self._completed(value, operands, k) for k, value in enumerate(results)]
            return results if self.prover.refine is None else self.prover.refine(self, operands, results)
        except IsolationError:
            raise
        except Exception as error:
            message = f"the rule of {self.name!r} failed on this form: {type(error).__name__}: {error}"
            remedy = "report the error; write the operation in another form, or declare its function by rowwise"
            raise IsolationError((self.violation(ViolationKind.UNKNOWN, message, remedy),)) from error

    def _transferred(self, operands: list[Value]) -> list[Value]:
        if self.name not in primitives.WITH_BODIES:
            return rule_of(self.eqn)(self, *operands)
        with self.prover.called_at(self.eqn):
            return rule_of(self.eqn)(self, *operands)

    def _before_sum(self, operands: list[Value]) -> list[Value]:
        """Refuse a row that only one device has and that is used before it is summed over the devices."""
        if not self.prover.devices:
            return []
        held = {axis for value in operands for axis in getattr(value.owner, "unreduced", ())}
        looked_into = self.name in primitives.CALLS and declaration_of(self.eqn) is None
        moves = self.name in primitives.MOVES and all(holds(ir.dtype_of(var), 0) for var in self.eqn.outvars)
        if not held or looked_into or self.name in primitives.DEVICE_SUMS or moves:
            return []
        along = ", ".join(sorted(held))
        message = f"a row that one device along {along} has, and all others have as zeros, is used as it is"
        mixed = self.mixed(message, f"sum what was read over {along} first, by lax.psum", ViolationKind.COLLECTIVE)
        return [Value(mixed) for _ in self.eqn.outvars]

    def _completed(self, value: Value, operands: list[Value], which: int) -> Value:
        """Complete a result with what all rules share: its value number, and the limits of its facts."""
        owner, bounds, uniform = value.owner, value.range, value.uniform
        if isinstance(owner, Common):
            if self.prover.reorders:
                uniform = uniform or uniform_axes(self, operands)
        elif isinstance(owner, PoolRows):
            owner = self._framed(owner, operands)
        elif reveals_order(self, owner, operands):
            owner = self.mixed("a shared array reveals where rows lie in an order that depends on all lanes", REMEDY)
        if isinstance(owner, Mixed) and self.prover.idle:
            bounds = None  # it may be another lane's value, which is not idle
        fact = value.fact or self._constant(operands) or self._tiled(owner, operands)
        if bounds is not None and not fits(self.eqn.outvars[which].aval, *bounds):
            bounds = None  # the numbers wrap, or are rounded
            fact = None if isinstance(fact, Iota) else fact
        number = value.number or self._number(operands, which)
        return Value(owner, number, bounds, fact, value.intact, value.version, uniform)

    def _tiled(self, owner: Owner, operands: list[Value]) -> Tiles | None:
        """Return the tiles of an elementwise result of equal tiles and shared arrays; None for other results."""
        if self.name not in primitives.ELEMENTWISE or not isinstance(owner, Mixed):
            return None
        tiles = [value.fact for value in operands if not isinstance(value.owner, Common)]
        fact = tiles[0]
        if not isinstance(fact, Tiles) or any(other != fact for other in tiles):
            return None
        places = slice(fact.tiles, fact.tiles + 2)
        whole = all(
            isinstance(value.owner, Common) or (len(shape) == len(self.shape) and shape[places] == self.shape[places])
            for value, shape in zip(operands, self.shapes, strict=True)
        )
        return fact if whole else None

    def _constant(self, operands: list[Value]) -> Constant | None:
        """Return the constant that an elementwise operation makes of constants; None where there is none."""
        if self.name not in primitives.ELEMENTWISE:
            return None
        facts = [value.fact for value in operands if isinstance(value.fact, Constant)]
        return Constant(any(fact.captured for fact in facts)) if len(facts) == len(operands) else None

    def _number(self, operands: list[Value], which: int) -> Number:
        params = self.eqn.params
        if self.name in primitives.COMBINING:
            params = {name: value for name, value in params.items() if name != "update_jaxpr"}
        if not PLACES.isdisjoint(params):
            params = {name: value for name, value in params.items() if name not in PLACES}
        params = params_key(params) if self.name in primitives.WITH_BODIES else _frozen(params)
        if params is None or self.eqn.effects:
            return self.prover.fresh()
        # equal integers of two dtypes have one number, and what is computed of them may differ
        avals = (*self.shapes, *map(ir.dtype_of, self.eqn.invars))
        return self.prover.number((self.name, params, avals, which), *[value.number for value in operands])

    def _framed(self, owner: PoolRows, operands: list[Value]) -> PoolRows:
        """Return a pool after an operation: unless that only moves elements, no row is unchanged."""
        indexed = self.name in primitives.INDEXED
        if self.name in primitives.KEEPS_ROWS and (not indexed or isinstance(operands[0].owner, PoolRows)):
            return owner
        return self.unframed(owner)

    def unframed(self, owner: PoolRows) -> PoolRows:
        """Return a pool of which no row is unchanged."""
        violation = self.violation(
            ViolationKind.FRAME,
            f"{self.name!r} computes every row of pool {owner.group!r}, those that no lane owns too",
            "gather the lanes' rows by the slot map, compute, and scatter them back",
        )
        return replace(owner, view=(), unframed=owner.unframed or violation)

    def path(self, value: Value) -> str:
        """The pool that a value is a version of, as the contract names it."""
        leaf = self.prover.versions.leaf_of.get(value.version) if value.version is not None else None
        return "a pool" if leaf is None else self.prover.bound.inputs[leaf].path

    def violation(self, kind: ViolationKind, message: str, remedy: str) -> Violation:
        """Make a violation at this equation, of its operands' lanes and pools, or of every lane if they are shared."""
        place = Place(self.jaxpr, self.index, self.env)
        parts = [(self.prover.read(self.env, atom).owner, getattr(atom.aval, "shape", ())) for atom in self.eqn.invars]
        bound = self.prover.bound
        about = concerned(bound, parts) or concerned(bound, [(LaneRows(0), (bound.lanes,))])
        source, *callers = self._frames() or ("unknown",)
        return Violation(kind, self.name, source, message, remedy, about, place, tuple(callers))

    def report(self, kind: ViolationKind, message: str, remedy: str) -> None:
        """Record a fault that is one wherever its result goes."""
        self.prover.violations.append(self.violation(kind, message, remedy))

    def mixed(self, message: str, remedy: str, kind: ViolationKind = ViolationKind.CROSS_LANE) -> Mixed:
        """The owner of a result that several lanes reach; a fault if it reaches an output."""
        return Mixed(self.violation(kind, message, remedy))

    def join(self, *owners: Owner) -> Owner:
        """Return the join in the lattice of owners: of an element that depends on the same place of several arrays."""
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
                return self.mixed(
                    f"it combines {describe(joined)} with {describe(owner)}",
                    "combine only elements of the same lane; keep lanes on one axis, in one order",
                )
        return joined

    def _join_pools(self, one: PoolRows, other: PoolRows) -> Owner:
        rows = [(pool.group, pool.axis, pool.split, pool.inner) for pool in (one, other)]
        if rows[0] != rows[1]:
            return self.mixed(
                f"it combines {describe(one)} with {describe(other)}", "combine rows after gathering them by slot"
            )
        unframed = one.unframed or other.unframed
        if unframed is None and (one.leaf, one.view) != (other.leaf, other.view):
            message = f"rows of one pool of group {one.group!r} may be replaced by another's, those no lane owns too"
            unframed = self.violation(ViolationKind.FRAME, message, "keep the pools of a group apart")
        return replace(one, unframed=unframed, writers=one.writers | other.writers)


def interpret(prover: Prover, jaxpr: Any, consts: Sequence[Value], args: Sequence[Value]) -> list[Value]:
    """Return the abstract results of a program without free variables, by the transfer function of each equation."""
    env: Env = dict(zip(jaxpr.constvars, consts, strict=True))
    env.update(zip(jaxpr.invars, args, strict=True))
    prover.values[jaxpr] = env
    for index, eqn in enumerate(jaxpr.eqns):
        operands = [prover.read(env, atom) for atom in eqn.invars]
        results = Site(prover, eqn, jaxpr, index, env, ir.shapes(eqn.invars)).apply(operands)
        if prover.observe is not None:
            prover.observe(eqn, operands, results)
        env.update(zip(eqn.outvars, results, strict=True))
    return [prover.read(env, atom) for atom in jaxpr.outvars]


def _frozen(params: dict[str, Any]) -> Hashable:
    if not params:
        return ()
    key = tuple(params.items())
    try:
        hash(key)
    except TypeError:
        return None
    return key
