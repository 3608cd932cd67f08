"""Violations of a proof, and their explanation by the surrounding equations."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ir_passes.contract.statements import Statement, StatementId
from ir_passes.jaxpr import ir


class ViolationKind(StatementId):
    """Kinds of faults: id and `sentence`."""

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
    """The place of a violation in a program.

    Attributes:
        index: of the equation; their number for an output.
    """

    jaxpr: Any
    index: int
    values: Mapping[Any, Any]


@dataclass(frozen=True)
class Violation:
    """One fault.

    Attributes:
        primitive: the operation at fault; "" for an output.
        source: "file:line" of the user's code, the innermost outside JAX, flax and this package; or "unknown".
        message, remedy: the fault in this step and the advice, in one sentence each.
        concerned: lanes, as "lanes 0 to 3", and paths of pools.
        place: for `IsolationError.explain`.
        callers: lines of the surrounding calls, the innermost first.
        fault: key shared by violations with one cause, if any.
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


def violation_at(
    place: Place, message: str, remedy: str, kind: ViolationKind, concerned: tuple[str, ...], around: Sequence[Any] = ()
) -> Violation:
    """Return the violation at a place; `around`: calls, innermost first."""
    if place.index == len(place.jaxpr.eqns):
        return Violation(kind, "", "unknown", message, remedy, concerned, place)
    eqn = place.jaxpr.eqns[place.index]
    source, *callers = dict.fromkeys(line for call in (eqn, *around) for line in ir.frames_of(call)) or ("unknown",)
    return Violation(kind, eqn.primitive.name, source, message, remedy, concerned, place, tuple(callers))


def once(violations: Iterable[Violation]) -> tuple[Violation, ...]:
    """Merge violations of one fault; the first has the lanes and pools of all.

    They share `fault`, or kind, primitive, source line and call stack, as in layers.
    """
    merged: dict[Hashable, Violation] = {}
    first_of: dict[Hashable, Hashable] = {}
    for number, violation in enumerate(violations):
        place = (violation.kind, violation.primitive, violation.source, violation.callers, violation.remedy)
        keys: list[Hashable] = [place if violation.source != "unknown" else (violation, number)]
        if violation.fault is not None:
            keys.append(("fault", violation.kind, violation.fault))
        first = next((first_of[key] for key in keys if key in first_of), number)
        first_of.update({key: first for key in keys if key not in first_of})
        if first in merged:
            concerned = tuple(dict.fromkeys((*merged[first].concerned, *violation.concerned)))
            violation = replace(merged[first], concerned=concerned)
        merged[first] = violation
    return tuple(merged.values())


class IsolationError(ValueError):
    """No proof that a step keeps its lanes apart."""

    def __init__(self, violations: tuple[Violation, ...]):
        self.violations = violations
        faults = "\n".join(map(str, violations))
        count = f"{len(violations)} violation{'s' * (len(violations) != 1)}"
        super().__init__(f"no proof that the step keeps its lanes apart, {count}:\n{faults}")

    def __reduce__(self) -> tuple[Any, ...]:
        # Equations stay in their process.
        return type(self), (tuple(replace(violation, place=None, fault=None) for violation in self.violations),)

    def explain(self, around: int = 10) -> str:
        """Return every violation, each with `around` equations on either side."""
        return "\n\n".join(explain(violation, around) for violation in self.violations)


def explain(violation: Violation, around: int) -> str:
    """Explain a violation in context."""
    place = violation.place
    if place is None:
        return str(violation)
    names, described = dict[Any, str](), set[Any]()
    lines = [str(violation), ""]

    def describe_all(atoms: Iterable[Any]) -> None:
        for var in ir.variables(list(atoms)):
            if var not in described and var in place.values:
                described.add(var)
                lines.append(f"                 {_name(var, names)}: {place.values[var]}")

    eqns = place.jaxpr.eqns
    first, last = max(0, place.index - around), min(len(eqns), place.index + around + 1)
    for index in range(first, last):
        eqn, mark = eqns[index], ">" if index == place.index else " "
        lines.append(f"{mark} {index:5d}  {_equation(eqn, names)}")
        describe_all([*eqn.invars, *eqn.outvars])
    if place.index == len(eqns):
        lines.append("> returned " + " ".join(_name(atom, names) for atom in place.jaxpr.outvars))
        describe_all(place.jaxpr.outvars)
    return "\n".join(lines)


def _name(atom: Any, names: dict[Any, str]) -> str:
    """Return a literal, or a variable's short name in order of appearance."""
    if isinstance(atom, ir.Literal):
        return str(atom.val)
    return "_" if isinstance(atom, ir.DropVar) else names.setdefault(atom, f"v{len(names)}")


def _equation(eqn: Any, names: dict[Any, str]) -> str:
    results = " ".join(f"{_name(var, names)}:{var.aval.str_short(short_dtypes=True)}" for var in eqn.outvars)
    operands = " ".join(_name(atom, names) for atom in eqn.invars)
    return f"{results} = {eqn.primitive.name} {operands}  # {ir.source_of(eqn)}"
