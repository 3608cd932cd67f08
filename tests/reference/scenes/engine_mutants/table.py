"""The page of the engine's mutants."""

from collections import Counter
from collections.abc import Iterable

from engine_mutants.catalogue import COMMITTED, HOSTS, KEPT, LAYERS, MUTANTS, PAGED, STEPS
from engine_mutants.mutant import EngineMutant, Finder
from engine_mutants.replay import StepMutant
from engine_mutants.reports import MECHANISMS, MIXED_BATCHES, PREFIXES, REPORTS, ROLLBACK, Report


def table() -> str:
    """Return every mutant with its finder, and every report with its counterpart."""
    return f"""# Mutants of the engine

{len(MUTANTS)} faults put into the scheduler, the rows, the session or the operands of steps, one at a time, after bugs
of other engines: {_counts(MUTANTS.values())}.
Eleven requests of all kinds run through the engine with each fault. A test fails unless the finder that is named finds
something wrong, and no other before it, or if anything is found in the engine as it is. What compiled steps and their
row numbers can have wrong is in [mutants.md](mutants.md). Made by scripts/write_mutants.py from
tests/reference/engine_mutants when this site was built.

{_mutants(MUTANTS.values())}
## Forty reports

Reports whose mechanisms cover the others that are known.

{_reports(REPORTS)}
## Speculation

{len(STEPS)} faults of the step that verifies drafts: {_counts(STEPS.values())}. Two scenes, with all kinds of lanes
beside each other, are compared with steps that consume the accepted tokens one at a time; the proof is of the step of
the same model.

{_mutants(STEPS.values())}
{len(HOSTS)} faults of the host: {_counts(HOSTS.values())}. The same traffic as above, with drafts of which some are
right.

{_mutants(HOSTS.values())}
{len(COMMITTED)} faults of layers: {_counts(COMMITTED.values())}, which runs the layers with other rejected drafts.

{_mutants(COMMITTED.values())}
### Reports of steps that mix lanes of several kinds

{_reports(MIXED_BATCHES)}
### Reports of drafts that are taken back

{_reports(ROLLBACK)}
## Pages of the KV cache

{len(PAGED)} faults of pages and of sequences that are preempted: {_counts(PAGED.values())}.
Seven requests share five pages.

{_mutants(PAGED.values())}
## Prefix cache

{len(KEPT)} faults of the states that are kept of prompts: {_counts(KEPT.values())}.
Fifteen requests that begin alike run through an engine whose cache moves states to the host: conversations that go on,
prompts that come again, prompts that part after some tokens.

{_mutants(KEPT.values())}
### Reports of states that are kept

{_reports(PREFIXES)}
## Layers

{len(LAYERS)} fault inside a lane, which no other lane sees and no proof of isolation speaks of:
{_counts(LAYERS.values())}.

{_mutants(LAYERS.values())}
## Sixty mechanisms

Of 94 public reports of corrupted state these have a mechanism of their own; a test fails if one is missing here, or if
a mutant that is named does not exist.

{_mechanisms()}"""


def _counts(mutants: Iterable[EngineMutant | StepMutant]) -> str:
    finders = Counter(mutant.finder for mutant in mutants)
    return ", ".join(f"{finders[finder]} by the {finder}" for finder in Finder if finders[finder])


def _mutants(mutants: Iterable[EngineMutant | StepMutant]) -> str:
    text = "| mutant | after | what is wrong | found by the |\n|---|---|---|---|\n"
    return text + "".join(_row(mutant.id, mutant.source, mutant.description, mutant.finder) for mutant in mutants)


def _mechanisms() -> str:
    first, line, *rows = _reports(MECHANISMS.values()).splitlines(keepends=True)
    numbered = (f"| {number} {row}" for number, row in zip(MECHANISMS, rows, strict=True))
    return f"| number {first}|---{line}{''.join(numbered)}"


def _reports(reports: Iterable[Report]) -> str:
    text = "| report | fault | engine mutants | mutants of steps and hosts | tests |\n|---|---|---|---|---|\n"
    for report in reports:
        tests = ", ".join(f"`{name.rpartition('/')[2]}`" for name in report.tests)
        engine = f"cannot exist; {report.cannot}" if report.cannot else ", ".join(report.engine)
        text += _row(report.id, report.fault, engine, ", ".join(report.compiler), tests)
    return text


def _row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |\n"
