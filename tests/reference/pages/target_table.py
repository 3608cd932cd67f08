"""The tables of docs/tables/target-tables.md: steps of families and published models on absent GPUs and TPUs.

A page is read back: rows are added one by one, and an interrupted run continues.
"""

import json
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from certificate_table import GOLDEN, NAMES
from paged_shapes import paged
from published import PUBLISHED

from hybridlm import EngineConfig
from hybridlm.engine.engine import Engine
from hybridlm.programs.shapes import Shape
from hybridlm.target_report import Fit, StepReport, TargetReport, report_on, shapes_of, target_engine
from ir_passes.targets import read_target

LANES, CONTEXT, CHUNK = 4, 64, 8
TARGETS = (
    "nvidia-h100", "tpu-v5e", "nvidia-h100:4 data=2,model=2", "tpu-v5e:4 data=2,model=2",
    "nvidia-h100:4 model=2,expert=2", "tpu-v5e:4 model=2,expert=2",
)  # fmt: skip
"""Names of targets, with the mesh for several devices."""
MODELS = ("Qwen3.5-35B-A3B", "Nemotron-3-Nano", "Kimi-Linear-48B", "Granite-4.0-H-Small")
MODEL_TARGETS = ("nvidia-h100", "nvidia-h200", "tpu-v5e:8 model=8")
MODEL_LANES, MODEL_CONTEXT = 64, 4096
DECODING, PROMPTS = Shape("generate", MODEL_LANES, 1, MODEL_LANES), Shape("generate", 8, 256, MODEL_LANES)
MODEL_STEPS = {
    str(DECODING): (DECODING, MODEL_TARGETS),
    str(PROMPTS): (PROMPTS, ("nvidia-h200",)),
}
"""Name -> a step of published models, and the targets that it is compiled for."""
ON_A_MESH = {"vocab_size": 96}
"""Sizes of tiny checkpoints on a mesh: 97 rows of a vocabulary cannot be split."""
GROUPS_ON_A_MESH = {"nemotron_latent": {"n_groups": 2}}
"""Sizes of one checkpoint there: three groups of a Mamba2 cannot be split over two devices."""
GOOD = "audited"
"""The verdict on a step that is proved, audited without a finding, and copies no pool, not even one that it may."""
HEAD = f"""# Steps on GPUs and TPUs without one

Every step of a tiny checkpoint of each family ({LANES} lanes, a context of {CONTEXT}, chunks of {CHUNK}, float32), and
steps of published models, compiled for machines that were not there, by `python scripts/write_target_tables.py`, or
`python scripts/write_accelerator_tables.py` with the other tables of such steps.
Each cell of a tiny checkpoint has scratch in kB, bytes over the floor ([accelerators](../accelerators.md)) and seconds
of XLA on a busy machine; a step with a finding has its verdict in front. Tiny checkpoints show that steps are audited,
not the cost of a large model: activations are most of their bytes. On meshes the vocabulary has 96 tokens and the
Mamba2 of `nemotron_latent` two groups; meshes that split experts have only the families with experts. Published models
have rows by slot (2026-11-30); the tiny checkpoints' figures are of steps where row i was lane i (2026-11-28).
"""
PUBLISHED_HEAD = f"""## Published models

One token of {MODEL_LANES} lanes at a context of {MODEL_CONTEXT}, and prompts ({PROMPTS}), in bfloat16: whether
weights, the rows of these lanes and the scratch of the step fit each device, and the most lanes at this context and the
longest context with these lanes that fit. Scratch is assumed to grow with lanes, also for prompts, where it does not.
"""
MODEL_COLUMNS = (
    "| model | target | step | verdict | fit | lanes | context | scratch, GB | kernels | x floor | compiled in, s |"
)
FIRST_COLUMN = "| checkpoint | "


@dataclass(frozen=True)
class Row:
    """One step of one checkpoint.

    Attributes:
        target, checkpoint, step: names.
        verdict: `GOOD`, or the fault.
        scratch: kB besides weights and rows.
        over_floor: moved bytes over the floor, empty for moves of rows.
        seconds: time of XLA's compilation.
    """

    target: str
    checkpoint: str
    step: str
    verdict: str
    scratch: str
    over_floor: str
    seconds: str

    @property
    def good(self) -> bool:
        """Whether nothing is wrong."""
        return self.verdict == GOOD


@dataclass(frozen=True)
class ModelRow:
    """A step of one published model on one target: the cells of `MODEL_COLUMNS`."""

    model: str
    target: str
    step: str
    verdict: str
    fit: str
    lanes: str
    context: str
    scratch: str
    kernels: str
    over_floor: str
    seconds: str

    @property
    def good(self) -> bool:
        """Return True without a fault; a model that does not fit is no fault."""
        return self.verdict == GOOD or self.fit.startswith("no")


def rows_of(checkpoint: str, target: str) -> list[Row]:
    """Compile every step of a checkpoint for a target, or take the stored reports.

    Models without experts have no rows on a mesh that splits experts.

    Raises:
        ShardingError: its sizes do not divide the mesh; `ON_A_MESH` is to name others.
    """
    name, _, mesh = target.partition(" ")
    if not is_split(checkpoint, mesh):
        return []
    fields = json.loads((GOLDEN / checkpoint / "config.json").read_text())
    if mesh:
        fields |= ON_A_MESH | GROUPS_ON_A_MESH.get(checkpoint, {})
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.json"
        config.write_text(json.dumps(fields))
        engine = target_engine(
            read_target(name),
            EngineConfig(lanes=LANES, context=CONTEXT, chunk=CHUNK, dtype="float32"),
            config=config,
            mesh=_sizes(mesh),
        )
    steps = report_on(engine, shapes_of(engine)).steps
    for step in steps:
        copies = () if step.certificate is None else map(str, step.certificate.copies)
        for fault in (*step.faults, *copies):
            print(f"{checkpoint} on {target}, {step.name}: {fault}", file=sys.stderr)
    return [row_of(checkpoint, target, step) for step in steps]


def row_of(checkpoint: str, target: str, step: StepReport) -> Row:
    """Return the row of a step's report."""
    return Row(target, checkpoint, step.name, _verdict(step), f"{step.scratch / 1e3:,.1f}", _over(step), _seconds(step))


def model_jobs() -> list[tuple[str, str]]:
    """Return the steps of published models, each with a target that it is compiled for."""
    return [(step, target) for step, (_, targets) in MODEL_STEPS.items() for target in targets]


def model_row(model: str, target: str, step: str) -> ModelRow:
    """Compile a step of a published model, and the steps that fix its row layout."""
    name, _, mesh = target.partition(" ")
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.json"
        config.write_text(json.dumps(PUBLISHED[model]))
        engine = target_engine(
            read_target(name),
            EngineConfig(lanes=MODEL_LANES, context=MODEL_CONTEXT, dtype="bfloat16"),
            config=config,
            mesh=_sizes(mesh),
        )
    return row_of_model(model, target, report_on(engine, model_shapes(engine, step)))


def model_shapes(engine: Engine, step: str) -> list[Shape]:
    scoring = engine.prefill_lanes
    steps = MODEL_STEPS[step][0], DECODING, Shape("score", scoring, engine.chunk, scoring, 0)
    return list(dict.fromkeys(paged(engine, shape) for shape in steps))


def row_of_model(model: str, target: str, report: TargetReport) -> ModelRow:
    """Return the row of a model's report, of its first step."""
    step, fit = report.steps[0], report.fit
    assert fit is not None
    compiled = step.certificate is not None
    kinds = sorted({fault.split()[0].rstrip(":") for fault in step.faults}) if compiled else []
    verdict = f"{_verdict(step)}: {', '.join(kinds)}" if kinds else _verdict(step)
    figures = (f"{step.scratch / 1e9:.2f}", f"{step.kernels:,}") if compiled else ("", "")
    return ModelRow(
        model, target, step.name, verdict, _fit(fit, step), str(fit.most_lanes), f"{fit.longest_context:,}", *figures,
        _over(step), _seconds(step),
    )  # fmt: skip


def page(rows: Sequence[Row], models: Sequence[ModelRow] = ()) -> str:
    """Return the page in Markdown."""
    parts = [HEAD]
    if models:
        order = [(model, target, step) for model in MODELS for step, target in model_jobs()]
        listed = sorted(models, key=lambda row: order.index((row.model, row.target, row.step)))
        lines = [MODEL_COLUMNS, "|---" * 11 + "|", *(_line(*vars(row).values()) for row in listed)]
        measured = {(row.model, row.target, row.step) for row in models}
        absent = [
            f"{model} {step} for {target}" for model, target, step in order if (model, target, step) not in measured
        ]
        lines += ["", f"Not compiled: {', '.join(absent)}."] if absent else []
        parts.append(PUBLISHED_HEAD + "\n" + "\n".join(lines) + "\n")
    for target in sorted({row.target for row in rows}, key=lambda name: (name not in TARGETS, _place(TARGETS, name))):
        target_rows = sorted(
            (row for row in rows if row.target == target), key=lambda row: _place(NAMES, row.checkpoint)
        )
        good = sum(row.good for row in target_rows)
        lines = [f"## {target}: {good} of {len(target_rows)} steps without a finding", ""]
        lines += _table(target_rows)
        absent = [name for name in NAMES if name not in {row.checkpoint for row in target_rows}]
        unsplit = [name for name in absent if not is_split(name, target)]
        missing = [name for name in absent if name not in unsplit]
        lines += ["", f"Without experts: {', '.join(unsplit)}."] if unsplit else []
        lines += ["", f"Not compiled: {', '.join(missing)}."] if missing else []
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _table(rows: Sequence[Row]) -> list[str]:
    """Return the lines of a target's table: a row per checkpoint, a column per step."""
    steps = list(dict.fromkeys(row.step for row in rows))
    cells = {(row.checkpoint, row.step): _cell(row) for row in rows}
    checkpoints = dict.fromkeys(row.checkpoint for row in rows)
    lines = [_line(name, *(cells.get((name, step), "") for step in steps)) for name in checkpoints]
    return [FIRST_COLUMN + _line(*steps).removeprefix("| "), "|---" * (1 + len(steps)) + "|", *lines]


def _cell(row: Row) -> str:
    figures = "; ".join((row.scratch, row.over_floor or "-", row.seconds or "-"))
    return figures if row.good else f"{row.verdict}: {figures}"


def _row(target: str, checkpoint: str, step: str, cell: str) -> Row:
    verdict, _, figures = cell.rpartition(": ")
    scratch, over_floor, seconds = ("" if figure == "-" else figure for figure in figures.split("; "))
    return Row(target, checkpoint, step, verdict or GOOD, scratch, over_floor, seconds)


def read(text: str) -> tuple[list[Row], list[ModelRow]]:
    """Return the rows of a page."""
    rows, models, target, steps = list[Row](), list[ModelRow](), "", list[str]()
    for line in text.splitlines():
        if line.startswith("## "):
            target, steps = line.removeprefix("## ").rpartition(":")[0], []
        cells = [cell.strip() for cell in line.removeprefix("|").removesuffix("|").split("|")]
        if line.startswith(FIRST_COLUMN):
            steps = cells[1:]
        elif line.startswith("| ") and line != MODEL_COLUMNS:
            if steps:
                pairs = zip(steps, cells[1:], strict=True)
                rows += [_row(target, cells[0], step, cell) for step, cell in pairs if cell]
            else:
                models.append(ModelRow(*cells))
    return rows, models


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _place(names: Iterable[str], name: str) -> int:
    return next((i for i, candidate in enumerate(names) if candidate == name), -1)


def is_split(checkpoint: str, mesh: str) -> bool:
    """Whether a mesh splits the checkpoint: of one with experts, those that have some."""
    fields = json.loads((GOLDEN / checkpoint / "config.json").read_text())
    return "expert=" not in mesh or any(key.endswith("_experts") and value for key, value in fields.items())


def _sizes(mesh: str) -> dict[str, int] | None:
    """The sizes of a mesh, written as data=2,model=2; None of none."""
    return {name: int(size) for name, _, size in (axis.partition("=") for axis in mesh.split(","))} if mesh else None


def _verdict(step: StepReport) -> str:
    if step.certificate is None:
        return "NOT COMPILED"
    if step.faults:
        return "REFUSED"
    if step.certificate.not_audited is not None:
        return "NOT AUDITED"
    if step.certificate.copies:
        return "COPIES A POOL"
    return GOOD if step.floor_moved is None or step.moved >= step.floor_moved else "BELOW ITS FLOOR"


def _fit(fit: Fit, step: StepReport) -> str:
    need = f"{(fit.memory - fit.left) / 1e9:.1f} of {fit.memory / 1e9:.1f} GB"
    if step.failed is not None:
        return f"no, XLA: {step.failed[:100].replace('|', '/')}" if fit.fits else f"no, {need} without scratch"
    return f"yes, {need}" if fit.fits else f"no, {need}"


def _over(step: StepReport) -> str:
    return f"{step.moved / step.floor_moved:.2f}" if step.floor_moved else ""


def _seconds(step: StepReport) -> str:
    return "" if step.certificate is None else f"{step.certificate.seconds.compile:.1f}"
