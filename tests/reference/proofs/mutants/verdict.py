"""The tier that kills a mutant, found out by trying."""

from typing import Any

from mutants.mutant import Evidence, Mutant, Tier

from ir_passes import AuditError, FindingKind, IsolationError, ViolationKind, prove_isolation


class Survived(AssertionError):
    """A mutant that no check has killed."""


def kill(mutant: Mutant) -> str:
    """Return the violation, finding or error that killed the mutant.

    Raises:
        Survived: nothing, or something unrelated to this fault.
    """
    try:
        if mutant.tier is Tier.PROOF:
            assert mutant.program is not None
            prove_isolation(mutant.program.step, mutant.program.args(), mutant.program.contract)
        else:
            assert mutant.attempt is not None
            mutant.attempt()
    except IsolationError as error:
        nameless = [violation.message for violation in error.violations if not violation.concerned]
        if nameless:
            raise Survived(f"{mutant.id}: says of no lanes and no pools what it concerns: {nameless}") from error
        return _one_of(mutant, [violation.kind for violation in error.violations])
    except AuditError as error:
        return _one_of(mutant, [finding.kind for finding in error.findings])
    except mutant.error as error:
        return type(error).__name__
    raise Survived(f"{mutant.id} ({mutant.source}: {mutant.description}) was not found by the tier {mutant.tier}")


def _one_of(mutant: Mutant, result: list[Any]) -> str:
    wanted = [kind for kind in result if kind in mutant.kinds]
    if not wanted:
        kinds = sorted(map(str, mutant.kinds))
        raise Survived(f"{mutant.id}: expected one of {kinds}, found {sorted(set(map(str, result)))}")
    return str(wanted[0])


def table(mutants: list[Mutant], killers: list[str]) -> str:
    """Return the page of all mutants and who found them."""
    tiers = {tier: sum(mutant.tier is tier for mutant in mutants) for tier in Tier}
    counts = ", ".join(f"{count} by the {tier}" for tier, count in tiers.items())
    ran = sum(mutant.evidence is Evidence.LEAK for mutant in mutants if mutant.tier is Tier.PROOF)
    text = f"""# Mutants

{len(mutants)} correct steps or hosts with one fault each, after bugs of other engines: {counts}.
Each names the tier that has to find it; a test fails if another finds it or none. Of those of the proof, {ran} are
seen to leak when they are run with one lane changed at a time; the others break a promise that no single run shows.
The second column names the public report, as project#number, of a bug of the kind; JAX where the mutant follows from
what JAX's operations do with a bad index or an order of lanes, XLA where no report of what it does is known. Made by
scripts/write_mutants.py from a run of tests/reference/proofs/mutants when this site was built.

The last column is the id of a violation of the proof, of a finding of the audit, or the error that the host or the
sanitizer raises.

| found by | id | meaning |
|---|---|---|
"""
    for tier, ids in ((Tier.PROOF, ViolationKind), (Tier.AUDIT, FindingKind)):
        text += "".join(f"| {tier} | {kind} | {kind.sentence} |\n" for kind in ids)
    for tier in Tier:
        text += (
            f"\n## {tier}\n\n| mutant | after | what is wrong | correct program | found as |\n|---|---|---|---|---|\n"
        )
        for mutant, killer in zip(mutants, killers, strict=True):
            if mutant.tier is tier:
                cells = mutant.id, mutant.source, mutant.description, mutant.base, killer
                text += "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"
    return text
