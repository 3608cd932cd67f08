"""The text of docs/engine-mutants.md."""

from collections import Counter

from engine_mutants.catalogue import MUTANTS
from engine_mutants.mutant import Finder
from engine_mutants.reports import REPORTS


def table() -> str:
    """Every mutant with who finds it, and every report with what stands against it."""
    finders = Counter(mutant.finder for mutant in MUTANTS.values())
    counts = ", ".join(f"{finders[finder]} by the {finder}" for finder in Finder)
    text = f"""# Mutants of the engine

{len(MUTANTS)} faults put into the scheduler, the rows, the session or the operands of steps, one at a time, after bugs
of other engines: {counts}.
Eleven requests of all kinds run through the engine with each fault. A test fails unless the finder that is named finds
something wrong, and no other before it, or if anything is found in the engine as it is. What compiled steps and their
row numbers can have wrong is in [mutants.md](mutants.md). Written by scripts/write_mutants.py from
tests/reference/engine_mutants.

| mutant | after | what is wrong | found by the |
|---|---|---|---|
"""
    for mutant in MUTANTS.values():
        text += _row(mutant.id, mutant.source, mutant.description, mutant.finder)
    text += """
## Forty reports

Reports whose mechanisms cover the others that are known. The last column names the part of the library, to come,
that will have more of the report's mechanism than the engine has.

| report | fault | engine mutants | mutants of steps and hosts | tests | part |
|---|---|---|---|---|---|
"""
    for report in REPORTS:
        tests = ", ".join(f"`{name.rpartition('/')[2]}`" for name in report.tests)
        text += _row(
            report.id, report.fault, ", ".join(report.engine), ", ".join(report.compiler), tests, report.part or ""
        )
    return text


def _row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |\n"
