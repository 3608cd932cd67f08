"""Write docs/tables/kernel-tables.md: bytes over the floor of steps with and without kernels, on absent GPUs.

    python scripts/write_kernel_tables.py [--models 131M kda] [--tables steps registers] [--new] [--out FILE]

Needs the extra target-cuda, and an hour of a core. The page is written after every model and card; rows that it has
already are kept, unless --new. The exit status is 1 if a step has a finding.
"""

import argparse
import itertools
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from table_pages import ROOT, fields_of, import_references, rows_in, step_on, with_rows

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
COLUMNS = {
    "steps": "model | GPU | step | kernels | moved | x floor | states and caches | sampling | recurrence | products | "
    "compiled in",
    "prompts": "model | step | kernels | recurrence | products | projections | products",
}
"""Table -> its columns; `registers` has a column for each card."""
REGISTERS = "registers"


def rows_of(model: str) -> Iterator[tuple[str, list[str], tuple[str, ...]]]:
    """Compile decoding with and without kernels, and prompts of the first model.

    Yield the table of each row, its cells, and findings; shares are of the bytes of the floor.
    """
    from hybridlm.engine.config import EngineConfig

    target, fields = MODELS[model], fields_of(model)
    for kernels in ("off", "auto"):
        options = EngineConfig(lanes=LANES, context=CONTEXT, chunk=CHUNK, kernels=kernels)
        for tokens in (1, CHUNK) if model == next(iter(MODELS)) else (1,):
            step, report = step_on(target, fields, options, tokens)
            floor_bytes, all_kernels = report.floor_moved, step.kernels.kernels
            assert floor_bytes is not None and report.certificate is not None
            moved = [
                (kernel, kernel.moved * (report.turns if kernel.by_data else 1))
                for kernel in all_kernels
                if kernel.loop is None or "further_passes" not in kernel.loop
            ]
            if tokens > 1:
                cells = (_table_cells(moved, all_kernels, report.turns, by) for by in (_recurrent, _projected))
                yield "prompts", [model, report.name, kernels, *itertools.chain.from_iterable(cells)], ()
            chosen = (lambda kernel: bool(kernel.pools), lambda kernel: "/sample/" in kernel.op_name, _recurrent)
            shares = (sum(count for kernel, count in moved if by(kernel)) / floor_bytes for by in chosen)
            yield "steps", [
                model, target, report.name, kernels, f"{report.moved / 1e9:.2f} GB",
                f"{report.moved / floor_bytes:.2f}", *(f"{share:.2f}" for share in shares),
                f"{report.flops / 1e9:,.0f} Gflop", f"{report.certificate.seconds.compile:.0f} s",
            ], report.faults  # fmt: skip


def _table_cells(
    moved: "list[tuple[ScheduledKernel, int]]",
    kernels: "Iterable[ScheduledKernel]",
    turns: int,
    chosen: "Callable[[ScheduledKernel], bool]",
) -> tuple[str, str]:
    """Return two cells: bytes, and operations of XLA's products."""
    flops = sum(kernel.flops * kernel.times * (turns if kernel.by_data else 1) for kernel in kernels if chosen(kernel))
    return f"{sum(count for kernel, count in moved if chosen(kernel)) / 1e9:.2f} GB", f"{flops / 1e9:,.0f} Gflop"


def _recurrent(kernel: "ScheduledKernel") -> bool:
    layer = any(f"/{name}/" in kernel.op_name for name in ("GatedDeltaNet", "Mamba2", "KimiDeltaAttention"))
    return layer and "projection" not in kernel.op_name


def _projected(kernel: "ScheduledKernel") -> bool:
    return "/projection/" in kernel.op_name


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


def with_registers(page: str, usage: Mapping[str, Mapping[tuple[str, str, str], str]]) -> str:
    """Return the page with a table that has a column for each card."""
    keys = dict.fromkeys(key for column in usage.values() for key in column)
    rows = [[*key, *(column.get(key, "") for column in usage.values())] for key in keys]
    return with_rows(page, REGISTERS, " | ".join(["operation, tokens", "kernel", "threads", *usage]), rows)


def write_steps(page: Path, models: Sequence[str], replaces: bool) -> bool:
    """Compile the steps of models; return True without a finding.

    Args:
        replaces: compile the steps of models with rows, too.
    """
    good = True
    for model in models:
        old = {table: rows_in(page.read_text(encoding="utf-8"), table) for table in COLUMNS}
        if not replaces and any(row[0] == model for row in old["steps"]):
            continue
        new: dict[str, list[list[str]]] = {table: [] for table in COLUMNS}
        for table, cells, faults in rows_of(model):
            print(table, *cells, *faults, flush=True)
            good &= not faults
            new[table].append(cells)
        for table, columns in COLUMNS.items():
            rows = [*(row for row in old[table] if row[0] != model), *new[table]]
            rows = sorted(rows, key=lambda row: list(MODELS).index(row[0]))
            page.write_text(with_rows(page.read_text(encoding="utf-8"), table, columns, rows), encoding="utf-8")
    return good


def main(arguments: Sequence[str] | None = None) -> int:
    import_references()
    from card_kernels import CARDS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--tables", nargs="*", default=["steps", REGISTERS], choices=["steps", REGISTERS])
    parser.add_argument("--new", action="store_true", help="compile the steps of models that the page has")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "tables" / "kernel-tables.md")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    good = write_steps(options.out, options.models, options.new) if "steps" in options.tables else True
    if REGISTERS in options.tables and (options.new or not rows_in(options.out.read_text(encoding="utf-8"), REGISTERS)):
        usage = {target: dict(registers(target)) for target in CARDS}
        page = options.out.read_text(encoding="utf-8")
        options.out.write_text(with_registers(page, usage), encoding="utf-8")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
