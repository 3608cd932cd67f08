"""Write docs/tables/kernel-tables.md: bytes over the floor of steps with and without kernels, on absent GPUs.

    python scripts/write_kernel_tables.py [--models 131M kda] [--out FILE]

Needs the extra target-cuda, and half an hour on two cores. The exit status is 1 if a step has a finding.
"""

import argparse
import json
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from table_pages import ROOT, import_references

if TYPE_CHECKING:
    from hybridlm.compiler.targets import ScheduledKernel

LANES, CONTEXT, CHUNK = 64, 4096, 256
LARGE_MODEL = "Qwen3.5-35B-A3B"
MODELS = {
    "131M": "nvidia-h100",
    "752M": "nvidia-h100",
    "mamba2": "nvidia-h100",
    "kda": "nvidia-h100",
    LARGE_MODEL: "nvidia-h200",
}
"""Models of scripts/benchmarks/bench_models.py, and a published one -> the target of their steps."""
PROMPTS = """
## Prompts

The recurrence compared with the projections, in all layers. Products inside of kernels are not counted.

| model | step | kernels | recurrence | products | projections | products |
|---|---|---|---|---|---|---|"""
REGISTERS = """
## Registers

Registers of each thread of each kernel, compiled alone, as ptxas prints them, and the bytes that it spills, if any. A
kernel with more shared memory than the card does not compile.
"""
HEAD = """# Kernels

Steps compiled for an absent GPU, without and with kernels, 64 lanes, a context of 4096, bfloat16, by
`scripts/write_kernel_tables.py`. "x floor" is all bytes moved, over the floor in [accelerators](../accelerators.md).
The next columns are parts of this ratio: operations on states and caches, sampling with filters (the branch with the
most bytes counts), and the recurrence, its convolution included. Products inside of kernels are not counted, and bytes
that a kernel reads twice count once. Seconds are of a busy machine. Steps are of
2026-11-26, when row i was lane i; registers of 2026-11-30. Nothing here has run.

| model | GPU | step | kernels | moved | x floor | states and caches | sampling | recurrence | products | compiled in |
|---|---|---|---|---|---|---|---|---|---|---|
"""


@dataclass(frozen=True)
class Row:
    """A step with or without kernels; shares are of the bytes of the floor."""

    model: str
    target: str
    step: str
    kernels: str
    moved: int
    over_floor: float
    pools: float
    sampling: float
    recurrence: float
    flops: int
    seconds: float
    faults: tuple[str, ...]

    def __str__(self) -> str:
        cells = (
            self.model, self.target, self.step, self.kernels, f"{self.moved / 1e9:.2f} GB", f"{self.over_floor:.2f}",
            f"{self.pools:.2f}", f"{self.sampling:.2f}", f"{self.recurrence:.2f}", f"{self.flops / 1e9:,.0f} Gflop",
            f"{self.seconds:.0f} s",
        )  # fmt: skip
        return f"| {' | '.join(cells)} |"


def rows_of(model: str, target: str, config: Path) -> Iterator[Row | str]:
    """Compile decoding with and without kernels, and prompts of the first model.

    Prompts yield an additional line for their table.
    """
    from hybridlm.compiler.targets import read_target
    from hybridlm.engine.config import EngineConfig
    from hybridlm.target_report.step_report import step_report
    from hybridlm.target_report.target_report import target_engine

    machine = read_target(target)
    for kernels in ("off", "auto"):
        engine = target_engine(
            machine, EngineConfig(lanes=LANES, context=CONTEXT, chunk=CHUNK, kernels=kernels), config=config
        )
        shapes = [engine.shape("generate", LANES, 1)]
        if model == next(iter(MODELS)):
            shapes.append(engine.shape("generate", engine.prefill_lanes, CHUNK))
        for shape in shapes:
            step = engine.program(shape)
            report = step_report(engine, shape, step, CONTEXT)
            floor_bytes = report.floor_moved
            assert floor_bytes is not None and report.certificate is not None
            moved = [
                (kernel, kernel.moved * (report.turns if kernel.by_data else 1))
                for kernel in step.kernels.kernels
                if kernel.loop is None or "further_passes" not in kernel.loop
            ]

            def share(
                chosen: "Callable[[ScheduledKernel], bool]", moved: Any = moved, floor_bytes: int = floor_bytes
            ) -> float:
                return sum(count for kernel, count in moved if chosen(kernel)) / floor_bytes

            if shape.tokens > 1:
                cells = (
                    _table_cells(moved, step.kernels.kernels, report.turns, _recurrent),
                    _table_cells(
                        moved, step.kernels.kernels, report.turns, lambda kernel: "/projection/" in kernel.op_name
                    ),
                )
                yield f"| {model} | {shape} | {kernels} | {' | '.join(cells)} |"
            yield Row(
                model, target, str(shape), kernels, report.moved, report.moved / floor_bytes,
                share(lambda kernel: bool(kernel.pools)), share(lambda kernel: "/sample/" in kernel.op_name),
                share(_recurrent),
                report.flops, report.certificate.seconds.compile, report.faults,
            )  # fmt: skip


def _table_cells(
    moved: "list[tuple[ScheduledKernel, int]]",
    kernels: "Iterable[ScheduledKernel]",
    turns: int,
    chosen: "Callable[[ScheduledKernel], bool]",
) -> str:
    """Return two cells: bytes, and operations of XLA's products."""
    flops = sum(kernel.flops * kernel.times * (turns if kernel.by_data else 1) for kernel in kernels if chosen(kernel))
    return f"{sum(count for kernel, count in moved if chosen(kernel)) / 1e9:.2f} GB | {flops / 1e9:,.0f} Gflop"


def _recurrent(kernel: "ScheduledKernel") -> bool:
    layer = any(f"/{name}/" in kernel.op_name for name in ("GatedDeltaNet", "Mamba2", "KimiDeltaAttention"))
    return layer and "projection" not in kernel.op_name


def registers(target: str) -> Iterator[tuple[tuple[str, str, str], str]]:
    """Compile each kernel alone; yield operation, kernel and threads, and its registers.

    A kernel with too much shared memory is an error.
    """
    from card_kernels import kernels_on
    from device_kernels import SMALL, operations

    for name, operation, arrays in operations("gpu", SMALL):
        for kernel in kernels_on(target, partial(operation, kernels="auto"), *arrays):
            spilled = f", {kernel.spilled} spilled" if kernel.spilled else ""
            yield (name, f"`{kernel.name}`", str(kernel.threads)), f"{kernel.registers}{spilled}"


def registers_table(usage: Mapping[str, Mapping[tuple[str, str, str], str]]) -> list[str]:
    """Return the lines of a table with a column for each card."""
    keys = dict.fromkeys(key for column in usage.values() for key in column)
    heads = "operation, tokens", "kernel", "threads", *usage
    rows = [
        heads,
        ("---",) * len(heads),
        *((*key, *(column.get(key, "") for column in usage.values())) for key in keys),
    ]
    return [f"| {' | '.join(row)} |" for row in rows]


def main() -> int:
    import_references()
    from bench_models import BENCH_MODELS
    from card_kernels import CARDS
    from published import PUBLISHED

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "tables" / "kernel-tables.md")
    options = parser.parse_args()
    rows: list[Row] = []
    prompts: list[str] = []
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        for model in options.models:
            fields: Any = PUBLISHED[model] if model == LARGE_MODEL else BENCH_MODELS[model]
            file = Path(folder) / "config.json"
            file.write_text(json.dumps(fields), encoding="utf-8")
            for row in rows_of(model, MODELS[model], file):
                if isinstance(row, str):
                    prompts.append(row)
                else:
                    rows.append(row)
                print(row, flush=True)
    usage = {target: dict(registers(target)) for target in CARDS}
    lines = [*map(str, rows), *PROMPTS.splitlines(), *prompts, *REGISTERS.splitlines(), "", *registers_table(usage)]
    options.out.write_text(HEAD + "".join(f"{line}\n" for line in lines), encoding="utf-8")
    return 1 if any(row.faults for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
