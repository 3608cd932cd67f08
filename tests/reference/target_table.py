"""The tables of docs/target-tables.md: each step of each family on GPUs and TPUs that need not be there."""

from collections.abc import Sequence
from dataclasses import dataclass

from certificate_table import GOLDEN, NAMES

from hybridlm.target_report import StepReport, report_on, shapes_of, target_engine
from ir_passes.targets import read_target

LANES, CONTEXT, CHUNK = 4, 64, 8
TARGETS = ("nvidia-h100", "tpu-v5e")
HEAD = f"""# Steps on GPUs and TPUs without one

Every step of a tiny checkpoint of each family ({LANES} lanes, a context of {CONTEXT}, chunks of {CHUNK}, float32),
compiled for machines that were not there, by `python scripts/write_target_tables.py`.
[accelerators.md](accelerators.md) says what the columns mean. Sizes are so small that what a step moves beside its
floor is mostly what it computes with: the tables show that steps are audited and what changes, not what a large model
costs. Seconds are those of XLA, on a machine that was busy.
"""


@dataclass(frozen=True)
class Row:
    """One step of one checkpoint.

    Attributes:
        target, checkpoint, step: which.
        verdict: "audited", "proved" where the audit does not know the platform, or what is wrong.
        good: whether nothing is wrong.
        scratch: bytes that it needs beside weights and rows.
        over_floor: bytes that it moves over those that it has to; None for moves of rows.
        seconds: of XLA's compilation.
    """

    target: str
    checkpoint: str
    step: str
    verdict: str
    good: bool
    scratch: int
    over_floor: float | None
    seconds: float


def rows_of(checkpoint: str, target: str) -> list[Row]:
    """Compile every step of a checkpoint for a target, or take the reports that are kept."""
    engine = target_engine(
        read_target(target),
        config=GOLDEN / checkpoint / "config.json",
        lanes=LANES, context=CONTEXT, chunk=CHUNK, dtype="float32",
    )  # fmt: skip
    return [row_of(checkpoint, target, one) for one in report_on(engine, shapes_of(engine)).steps]


def row_of(checkpoint: str, target: str, one: StepReport) -> Row:
    """Return the row of a step's report."""
    certificate = one.certificate
    verdict = "NOT COMPILED" if certificate is None else "REFUSED" if one.faults else "audited"
    if certificate is not None and not one.faults and certificate.not_audited is not None:
        verdict = "proved"
    over = one.moved / one.floor_moved if one.floor_moved else None
    seconds = 0.0 if certificate is None else certificate.seconds.compile
    return Row(target, checkpoint, one.name, verdict, not one.faults, one.scratch, over, seconds)


def page(rows: Sequence[Row]) -> str:
    """Return the page in Markdown."""
    parts = [HEAD]
    for target in dict.fromkeys(one.target for one in rows):
        here = [one for one in rows if one.target == target]
        good = sum(one.good for one in here)
        lines = [f"## {target}: {good} of {len(here)} steps without a finding", ""]
        lines += [
            "| checkpoint | step | verdict | scratch, kB | x floor | compiled in, s |",
            "|---|---|---|---|---|---|",
        ]
        for one in here:
            over = "" if one.over_floor is None else f"{one.over_floor:.2f}"
            cells = (one.checkpoint, one.step, one.verdict, f"{one.scratch / 1e3:,.1f}", over, f"{one.seconds:.1f}")
            lines.append(f"| {' | '.join(cells)} |")
        absent = [name for name in NAMES if name not in {one.checkpoint for one in here}]
        lines += ["", f"Not compiled in this run: {', '.join(absent)}."] if absent else []
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)
