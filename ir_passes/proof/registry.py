"""The table of transfer functions (rules), and the rule for operations that are not in it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ir_passes.proof.values import Value
from ir_passes.proof.violations import ViolationKind
from ir_passes.proof.walk import Equation

Rule = Callable[..., list[Value]]


@dataclass(frozen=True)
class Parameters:
    """The parameters of a primitive that its rule knows; an equation with any other is refused.

    Attributes:
        reads: those that the rule takes into account, itself or by the shapes and dtypes of operands and results.
        ignores: those that change neither which elements a result depends on nor a fact that is claimed of it.
        accepts: those that have a rule for some of their values only, with these values.
        everything: whether every parameter is covered: an opaque operation is believed as it is declared.
    """

    reads: frozenset[str] = frozenset()
    ignores: frozenset[str] = frozenset()
    accepts: Mapping[str, tuple[Any, ...]] | None = None
    everything: bool = False

    def unknown(self, params: Mapping[str, Any]) -> str | None:
        """The first parameter that has no rule, as "name=value"; None where there is none."""
        for name, value in params.items() if not self.everything else ():
            if name in self.reads or name in self.ignores:
                continue
            if self.accepts is None or not any(value is one or value == one for one in self.accepts.get(name, ())):
                return f"{name}={value!r}"
        return None


RULES: dict[str, Rule] = {}
PARAMETERS: dict[str, Parameters] = {}


def rule(
    *names: str,
    reads: str = "",
    ignores: str = "",
    accepts: Mapping[str, tuple[Any, ...]] | None = None,
    everything: bool = False,
) -> Callable[[Rule], Rule]:
    """Register the rule of the primitives with these names, and the parameters that it knows (`Parameters`).

    Args:
        names: of primitives.
        reads, ignores: names of parameters, with spaces between them.
        accepts, everything: as in `Parameters`.
    """
    known = Parameters(frozenset(reads.split()), frozenset(ignores.split()), accepts, everything)

    def register(function: Rule) -> Rule:
        for name in names:
            if name in RULES:
                raise ValueError(f"primitive {name!r} has two rules: {RULES[name]} and {function}")
            RULES[name] = function
            PARAMETERS[name] = known
        return function

    return register


def rule_of(eqn: Any) -> Rule:
    """Return the rule of an equation; for a primitive or a parameter that has none, the one that refuses it."""
    name = eqn.primitive.name
    found = RULES.get(name)
    if found is None or PARAMETERS[name].unknown(eqn.params) is not None:
        return _unknown
    return found


def _unknown(site: Equation, *operands: Value) -> list[Value]:
    """Refuse an unknown operation: every element of its results may depend on every lane."""
    message = f"nothing is known of {site.name!r}"
    remedy = "declare it with Opaque or rowwise, or use operations that have a rule"
    if site.name in RULES:
        message = f"{site.name!r} with {PARAMETERS[site.name].unknown(site.params)} has no rule"
        remedy = "leave this parameter at its default, or put the operation in a function declared by rowwise"
    if site.eqn.effects:
        site.report(ViolationKind.UNKNOWN, f"{message}, and it has effects {site.eqn.effects}", remedy)
    owner = site.mixed(message, remedy, ViolationKind.UNKNOWN)
    return [Value(owner) for _ in site.eqn.outvars]
