"""Violations that the lane proof finds in a step, and their explanation by the equations around each fault."""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ir_passes.contract.statements import Statement, StatementId
from ir_passes.jaxpr import ir


class ViolationKind(StatementId):
    """The fault of a step: the value is its id, `sentence` says it in words. The list is closed."""

    CROSS_LANE = "cross-lane", "What belongs to one lane may depend on another lane."
    WRONG_ROW = "wrong-row", "A lane may reach a pool row that is not its own."
    FRAME = "frame", "Pool rows that the slot map does not name may change."
    STALE = "stale-pool", "A version of a pool is used after its successor was made."
    DIMENSIONS = "dimensions", "A dimension of a pool is written with the values of another dimension."
    COUPLING = "coupling", "Pools of one group are written at different rows."
    IDLE = "idle", "The rows of an idle lane may change."
    AGREEMENT = "agreement", "Rows may change although devices were given different operands."
    ACCEPTED = "accepted", "A number of accepted tokens may be negative, or not 0 for an idle lane."
    BOUNDS = "bounds", "A row index may be out of bounds."
    CONSTANT = "constants", "A row index, a position or a pool is a constant of the program."
    CONTROL = "control-flow", "Control flow that all lanes share depends on one lane."
    COLLECTIVE = "collective", "A collective may mix lanes."
    UNKNOWN = "no-rule", "The proof has no rule for an operation."
    UNINITIALIZED = "uninitialized", "Memory of a kernel is read, or handed out, before it is written."
    OPAQUE = "opaque", "A custom call, kernel or callback fits no declaration of the contract."
    AMBIGUOUS = "ambiguous-name", "One declared name stands for several operations."


@dataclass(frozen=True)
class Place:
    """The place of a violation in a program, for explaining it.

    Attributes:
        jaxpr: the (nested) program.
        index: of the equation in it; the number of equations where an output is concerned.
        values: variable -> what the proof knew of it.
    """

    jaxpr: Any
    index: int
    values: Mapping[Any, Any]


@dataclass(frozen=True)
class Violation:
    """One fault.

    Attributes:
        primitive: the operation that makes it; "" for an output.
        source: "file:line" of the user's code, the innermost line that is neither JAX's, flax's nor of this package;
            "unknown" where there is none.
        message: the fault in this step, in one sentence.
        remedy: the advice, in one sentence.
        concerned: the lanes that meet in it, as "lanes 0 to 3", and the pools, as the contract names them.
        place: for `IsolationError.explain`.
        callers: the lines from which the source was called, the nearest first.
        fault: equal for violations that are one fault met several times; None for one that stands by itself.
    """

    kind: ViolationKind
    primitive: str
    source: str
    message: str
    remedy: str
    concerned: tuple[str, ...] = field(default=(), compare=False)
    place: Place | None = field(default=None, compare=False, repr=False)
    callers: tuple[str, ...] = ()
    fault: Hashable = field(default=None, compare=False, repr=False)

    @property
    def statement(self) -> Statement:
        """The violation as a fault of a certificate."""
        operation = f"{self.primitive} at " if self.primitive else ""
        about = f"\n  concerns {', '.join(self.concerned)}" if self.concerned else ""
        calls = "".join(f"\n  called at {line}" for line in self.callers)
        text = f"{self.kind.sentence}\n  {self.message}{about}\n  {operation}{self.source}{calls}\n  {self.remedy}"
        return Statement(self.kind.value, ", ".join(self.concerned), text)

    def __str__(self) -> str:
        return f"{self.kind}: {self.statement.sentence}"


def once(violations: Iterable[Violation]) -> tuple[Violation, ...]:
    """Return every fault once: with all lanes and pools that it was met with, in the order of the first meetings.

    Violations are one fault if they say so by `fault`, or are of one kind, by one operation at one line that was called
    from the same lines, as those of the layers of a loop are.
    """
    found: dict[Hashable, Violation] = {}
    names: dict[Hashable, Hashable] = {}
    for number, one in enumerate(violations):
        place = (one.kind, one.primitive, one.source, one.callers, one.remedy)
        by_place: Hashable = place if one.source != "unknown" else (one, number)
        keys = [by_place] if one.fault is None else [by_place, ("fault", one.kind, one.fault)]
        first = next((names[key] for key in keys if key in names), number)
        names.update({key: first for key in keys if key not in names})
        if first in found:
            about = tuple(dict.fromkeys((*found[first].concerned, *one.concerned)))
            found[first] = replace(found[first], concerned=about)
        else:
            found[first] = one
    return tuple(found.values())


class IsolationError(ValueError):
    """A step could not be proved to keep its lanes apart; carries every violation found.

    Attributes:
        violations: all of them, in program order.
    """

    def __init__(self, violations: tuple[Violation, ...]):
        self.violations = violations
        faults = "\n".join(map(str, violations))
        super().__init__(f"the step was not proved to keep its lanes apart, {len(violations)} violation(s):\n{faults}")

    def explain(self, around: int = 10) -> str:
        """Return every violation with the equations around it and what the proof knew of each variable.

        Args:
            around: equations to show on either side of the fault.
        """
        return "\n\n".join(explain(violation, around) for violation in self.violations)


def explain(violation: Violation, around: int) -> str:
    """Explain a violation in context."""
    place = violation.place
    if place is None:
        return str(violation)
    names, described = _Names(), set[Any]()
    lines = [str(violation), ""]

    def describe_all(atoms: Iterable[Any]) -> None:
        for var in ir.variables(list(atoms)):
            if var not in described and var in place.values:
                described.add(var)
                lines.append(f"                 {names.of(var)}: {place.values[var]}")

    eqns = place.jaxpr.eqns
    first, last = max(0, place.index - around), min(len(eqns), place.index + around + 1)
    for index in range(first, last):
        eqn, mark = eqns[index], ">" if index == place.index else " "
        lines.append(f"{mark} {index:5d}  {_equation(eqn, names)}")
        describe_all([*eqn.invars, *eqn.outvars])
    if place.index == len(eqns):
        lines.append("> returned " + " ".join(names.of(atom) for atom in place.jaxpr.outvars))
        describe_all(place.jaxpr.outvars)
    return "\n".join(lines)


class _Names:
    """Short names of variables, in order of appearance."""

    def __init__(self) -> None:
        self._names: dict[Any, str] = {}

    def of(self, atom: Any) -> str:
        if isinstance(atom, ir.Literal):
            return str(atom.val)
        if isinstance(atom, ir.DropVar):
            return "_"
        return self._names.setdefault(atom, f"v{len(self._names)}")


def _equation(eqn: Any, names: _Names) -> str:
    results = " ".join(f"{names.of(var)}:{var.aval.str_short(short_dtypes=True)}" for var in eqn.outvars)
    operands = " ".join(names.of(atom) for atom in eqn.invars)
    return f"{results} = {eqn.primitive.name} {operands}  # {ir.source_of(eqn)}"
