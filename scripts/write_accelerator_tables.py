"""Write the tables of steps on absent GPUs and TPUs: docs/tables/{accelerator,kernel,target}-tables.md.

    python scripts/write_accelerator_tables.py [--new]
    python scripts/write_accelerator_tables.py --tables decode tpu [--rows "8 131,072 off"] [--new] [--few]

Needs the extras target-cuda and target-tpu, and hours of a core. A page is written after every step; rows that it has
already are kept, unless --new. With --tables, only these of accelerator-tables.md are written (Qwen3.5-35B-A3B, bytes
and kernels by part). With --few, 4 and 8 of the 40 layers are compiled; figures marked by "~" add nine times the
difference to 4 layers. The exit status is 1 if a step has a finding.
"""

import argparse
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import write_kernel_tables
import write_target_tables
from table_pages import ROOT, fields_of, import_references, rows_in, step_on, with_rows

if TYPE_CHECKING:
    from hybridlm.compiler.targets import ScheduledKernel

LARGE_MODEL, ONE_GPU = "Qwen3.5-35B-A3B", "nvidia-h200"
CHUNK, PROMPTS = 256, 8
MODES = ("off", "auto")
FITTING = [(1, 4096), (8, 4096), (64, 4096), (1, 131072), (8, 131072), (1, 262144), (8, 262144)]
"""Lanes and positions that fit one H200."""
PARTS = {
    "attention": "/Attention/", "recurrent states": "recurrent_step|delta_rule|/ssd", "convolutions": "conv",
    "sampling with filters": "/sample/", "products": "/projection/", "experts": "expert_dot",
}  # fmt: skip
"""Part of a step -> pattern in JAX's name or the source of its operations; the first that fits counts."""
KINDS = {
    "layers of experts": "/Moe/", "Gated DeltaNets": "/GatedDeltaNet/", "attentions": "/Attention/",
    "sampling with filters": "/sample/",
}  # fmt: skip
LAYERS = {"layers of experts": 40, "Gated DeltaNets": 30, "attentions": 10}
FEW_LAYERS = 4
"""Layers of the smaller step: three Gated DeltaNets and an attention."""
STEP_COLUMNS = "operations | in loops | host waits | scratch, GB | moved, GB | floor, GB | x floor"
COLUMNS = {
    "decode": f"lanes | positions | kernels | {STEP_COLUMNS}",
    "kinds": "kernels | operations of | count | each layer",
    "prompts": f"rows | positions | kernels | {STEP_COLUMNS}",
    "tpu": "target | lanes | positions | operations | in loops | scratch, GB | moved, GB | floor, GB | x floor",
    "parts": "model | kernels | part | GB | of the floor",
}
"""Table -> its columns; `kinds` comes from the step of 64 lanes in `decode`."""


@dataclass(frozen=True)
class Job:
    """A step to compile; its rows of `table` begin with `key`."""

    table: str
    key: tuple[str, ...]
    model: str
    target: str
    lanes: int
    context: int
    kernels: str
    tokens: int = 1
    mesh: dict[str, int] | None = None


def jobs() -> Iterator[Job]:
    """Yield all steps."""
    for lanes, context in FITTING:
        for kernels in MODES:
            key = str(lanes), f"{context:,}", kernels
            yield Job("decode", key, LARGE_MODEL, ONE_GPU, lanes, context, kernels)
    for kernels in MODES:
        yield Job("prompts", (f"{PROMPTS} x {CHUNK}", "4,096", kernels), LARGE_MODEL, ONE_GPU, 64, 4096, kernels, CHUNK)
    for lanes, context in [(64, 4096), (1, 131072), (1, 262144)]:
        key, mesh = ("tpu-v5e:8 model=8", str(lanes), f"{context:,}"), {"model": 8}
        yield Job("tpu", key, LARGE_MODEL, "tpu-v5e:8", lanes, context, "off", mesh=mesh)
    for model in ("131M", "752M"):
        yield Job("parts", (model, "off"), model, "nvidia-h100", 64, 4096, "off")


class Figures(NamedTuple):
    """Figures of a step: operations, bytes, and host waits, None on a TPU."""

    operations: float
    in_loops: float
    waits: float | None
    scratch: float
    moved: float
    floor: float

    def and_further(self, other: "Figures", times: int) -> "Figures":
        """Add `times` the difference to a step with more layers."""
        pairs = zip(self._fields, self, other, strict=True)
        return self._replace(**{name: a + times * (b - a) for name, a, b in pairs if a is not None and b is not None})

    def cells(self, mark: str) -> list[str]:
        waits = [] if self.waits is None else [f"{self.waits:.0f}"]
        counts = [f"{mark}{self.operations:,.0f}", f"{mark}{self.in_loops:,.0f}", *waits]
        sizes = [f"{mark}{size / 1e9:.2f}" for size in (self.scratch, self.moved)]
        return [*counts, *sizes, f"{self.floor / 1e9:.2f}", f"{mark}{self.moved / self.floor:.2f}"]


def few_rows_of(job: Job, fields: dict[str, Any]) -> tuple[dict[str, list[list[str]]], tuple[str, ...]]:
    """Compile a step with few layers twice; return all layers' marked row, and faults."""
    text, steps = fields["text_config"], []
    for layers in (FEW_LAYERS, 2 * FEW_LAYERS):
        part = text | {"num_hidden_layers": layers, "layer_types": text["layer_types"][:layers]}
        steps.append(figures_of(job, fields | {"text_config": part})[::2])
    (first, faults), (second, more_faults) = steps
    times = text["num_hidden_layers"] // FEW_LAYERS - 1
    return {job.table: [[*job.key, *first.and_further(second, times).cells("~")]]}, (*faults, *more_faults)


def rows_of(job: Job, fields: dict[str, Any]) -> tuple[dict[str, list[list[str]]], tuple[str, ...]]:
    """Compile a step; return the rows of its tables, and its faults."""
    figures, (kernels, turns), faults = figures_of(job, fields)
    if job.table == "parts":
        sizes = _summed(kernels, PARTS, lambda kernel: kernel.moved * (turns if kernel.by_data else 1))
        parts = [[part, f"{size / 1e9:.2f}", f"{size / figures.floor:.2f}"] for part, size in sizes.items() if size]
        return {"parts": [[*job.key, *part] for part in parts]}, faults
    tables = {job.table: [[*job.key, *figures.cells("")]]}
    if job.table == "decode" and (job.lanes, job.context) == FITTING[2]:
        sums = _summed(kernels, KINDS, lambda kernel: 0 if kernel.by_data else kernel.times)
        tables["kinds"] = [
            [job.kernels, kind, f"{count:,}", f"{count / LAYERS[kind]:.1f}" if kind in LAYERS else ""]
            for kind, count in sums.items()
        ]
    return tables, faults


def figures_of(
    job: Job, fields: dict[str, Any]
) -> "tuple[Figures, tuple[tuple[ScheduledKernel, ...], int], tuple[str, ...]]":
    """Compile a step; return figures, operations with loop iterations, and faults."""
    from graph_thunks import ASKING_THE_HOST, thunks_outside_graphs

    from hybridlm.engine.config import EngineConfig
    from hybridlm.programs import programs

    options = EngineConfig(lanes=job.lanes, context=job.context, chunk=CHUNK, kernels=job.kernels, dtype="bfloat16")
    waits, gpu = None, job.target.startswith("nvidia")
    with tempfile.TemporaryDirectory() as folder:
        if gpu:
            programs.OPTIONS["gpu"]["xla_dump_to"] = folder
        step, report = step_on(job.target, fields, options, job.tokens, mesh=job.mesh)
        if gpu:
            waits = sum(kind in ASKING_THE_HOST for kind in thunks_outside_graphs(Path(folder)))
            del programs.OPTIONS["gpu"]["xla_dump_to"]
    assert report.floor_moved is not None
    figures = Figures(report.kernels, report.repeated, waits, report.scratch, report.moved, report.floor_moved)
    return figures, (step.kernels.kernels, report.turns), report.faults


def _summed(
    kernels: "Iterable[ScheduledKernel]", patterns: dict[str, str], size: "Callable[[ScheduledKernel], int]"
) -> dict[str, int]:
    """Sum a figure of the operations by the first matching pattern."""
    sums = dict.fromkeys((*patterns, "all else"), 0)
    for kernel in kernels:
        text = f"{kernel.op_name} {kernel.source}"
        sums[next((name for name, pattern in patterns.items() if re.search(pattern, text)), "all else")] += size(kernel)
    return sums


def ordered(table: str, rows: Iterable[list[str]]) -> list[list[str]]:
    """Return the rows of a table in the order of `jobs`."""
    order: list[tuple[str, ...]] = (
        [(mode,) for mode in MODES] if table == "kinds" else [job.key for job in jobs() if job.table == table]
    )
    return sorted(rows, key=lambda row: order.index(tuple(row[: len(order[0])])))


def main() -> int:
    import_references()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", nargs="*", choices=[*COLUMNS], help="of accelerator-tables.md; default: all pages")
    parser.add_argument("--rows", nargs="*", help="first cells of rows, joined by a blank: 8 131,072 off")
    parser.add_argument("--new", action="store_true", help="compile the steps of rows that the page has")
    parser.add_argument("--few", action="store_true", help="compile 4 and 8 layers instead of all")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "tables" / "accelerator-tables.md")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    good = True
    for job in jobs():
        page = options.out.read_text(encoding="utf-8")
        rows, size = rows_in(page, job.table), len(job.key)
        present = any(tuple(row[:size]) == job.key for row in rows)
        wanted = options.rows is None or " ".join(job.key) in options.rows
        if job.table not in (options.tables or COLUMNS) or not wanted or (present and not options.new):
            continue
        try:
            rows_by_table = few_rows_of if options.few and job.table != "parts" else rows_of
            tables, faults = rows_by_table(job, fields_of(job.model))
        except RuntimeError as error:  # of XLA, if the step does not fit
            tables, faults = {}, (str(error).splitlines()[0],)
        for fault in faults:
            print(f"{job.key}: {fault}", file=sys.stderr)
        good &= not faults
        page = options.out.read_text(encoding="utf-8")
        for table, new in tables.items():
            print(table, *new, flush=True)
            replaced = job.key if table == job.table else (job.kernels,)
            old_rows = [row for row in rows_in(page, table) if tuple(row[: len(replaced)]) != replaced]
            page = with_rows(page, table, COLUMNS[table], ordered(table, [*old_rows, *new]))
        options.out.write_text(page, encoding="utf-8")
    if options.tables is None and options.rows is None:
        arguments = ["--new"] if options.new else []
        good &= not any((write_kernel_tables.main(arguments), write_target_tables.main([])))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
