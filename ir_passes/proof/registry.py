"""The table of rules (transfer functions), one for each primitive."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ir_passes.proof.values import Value

Rule = Callable[..., list[Value]]
"""(site, *values of the operands) -> values of the results."""
Choices = Mapping[str, tuple[Any, ...]]


@dataclass(frozen=True)
class Parameters:
    """Parameters that a rule covers; an equation with another parameter is refused.

    Attributes:
        reads: used, also through shapes and dtypes of operands and results.
        ignores: without effect on owners and facts.
        accepts: parameter -> the covered values.
        everything: covers all, as the declaration of an opaque operation is trusted.
    """

    reads: frozenset[str] = frozenset()
    ignores: frozenset[str] = frozenset()
    accepts: Choices | None = None
    everything: bool = False

    def unknown(self, params: Mapping[str, Any]) -> str | None:
        """Return the first uncovered parameter, as "name=value"."""
        for name, value in params.items() if not self.everything else ():
            if name in self.reads or name in self.ignores:
                continue
            if not any(value is choice or value == choice for choice in (self.accepts or {}).get(name, ())):
                return f"{name}={value!r}"
        return None


RULES: dict[str, Rule] = {}
PARAMETERS: dict[str, Parameters] = {}


def rule(
    *names: str, reads: str = "", ignores: str = "", accepts: Choices | None = None, everything: bool = False
) -> Callable[[Rule], Rule]:
    """Register a function as the rule of some primitives, with `Parameters`."""
    parameters = Parameters(frozenset(reads.split()), frozenset(ignores.split()), accepts, everything)

    def register(function: Rule) -> Rule:
        for name in names:
            if name in RULES:
                raise ValueError(f"primitive {name!r} has two rules: {RULES[name]} and {function}")
            RULES[name] = function
            PARAMETERS[name] = parameters
        return function

    return register
