"""A mutant: a right step with one fault, and its finder's tier."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any

from zoo.catalogue import PROGRAMS
from zoo.program import Program

from ir_passes import FindingKind
from ir_passes import ViolationKind as Kind


class Tier(StrEnum):
    """The check that must kill a mutant."""

    PROOF = "proof"
    AUDIT = "audit"
    HOST = "host"
    SANITIZER = "sanitizer"


class Evidence(StrEnum):
    """The reason why a mutant of the proof tier is wrong."""

    LEAK = "leaks when run"
    FAULT = "keeps lanes apart when run, but breaks another promise of the contract"
    TRACED = "cannot be run here"


@dataclass(frozen=True)
class Mutant:
    """A step with a fault.

    Attributes:
        id: unique.
        source: where the fault is from, as "tpu-inference#2752", "tpu-inference#2752", "JAX".
        description: the fault, in one line.
        base: name of the correct program.
        tier: who must kill it.
        program: the wrong step with its contract; None where the fault is not in a step.
        kinds: expected violations, or findings of the audit.
        evidence: for the proof tier.
        attempt: for the other tiers: runs the fault, and raises at the detection.
        error: what `attempt` has to raise.
    """

    id: str
    source: str
    description: str
    base: str
    tier: Tier
    program: Program | None = None
    kinds: frozenset[Kind | FindingKind] = frozenset()
    evidence: Evidence = Evidence.LEAK
    attempt: Callable[[], Any] | None = None
    error: type[Exception] | tuple[type[Exception], ...] = ()


def wrong(
    base: str,
    id: str,
    source: str,
    description: str,
    step: Callable[..., Any],
    *kinds: Kind,
    evidence: Evidence = Evidence.LEAK,
    **changes: Any,
) -> Mutant:
    """A proof-tier mutant: the base program with another step and `changes`."""
    program = PROGRAMS[base].but(name=id, step=step, **changes)
    return Mutant(id, source, description, base, Tier.PROOF, program, frozenset(kinds), evidence)


def mutants_of(base: str, *always: Kind, prefix: str = "", source: str = "JAX") -> Callable[..., Mutant]:
    """Return `wrong` for one base program and source; ids begin with `prefix`, kinds with `always`."""

    def mutant(id: str, description: str, step: Callable[..., Any], *kinds: Kind, **changes: Any) -> Mutant:
        return wrong(base, f"{prefix}{id}", source, description, step, *always, *kinds, **changes)

    return mutant


kernels_of = partial(mutants_of, prefix="kernel-")
