"""Write docs/tables/kernel-tables.md: bytes over the floor of steps with and without kernels, on absent GPUs.

    python scripts/write_kernel_tables.py [--models 131M kda] [--out FILE]

Takes the extra target-cuda, and half an hour on two cores. The exit status is 1 if a step has a finding.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hybridlm.compiler.targets import ScheduledKernel

ROOT = Path(__file__).resolve().parents[1]
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
ARCHITECTURES = {"nvidia-h100": "sm_90a", "nvidia-a100": "sm_80"}
PROMPTS = """
## Prompts

The recurrence beside the projections, in all layers. Products inside of kernels are not counted.

| model | step | kernels | recurrence | products | projections | products |
|---|---|---|---|---|---|---|"""
REGISTERS = """
## Registers

For each thread, of each kernel compiled alone, as ptxas prints them. A kernel whose shared memory is more than the
card's does not compile.

| operation, tokens | kernel | GPU | registers | bytes spilled |
|---|---|---|---|---|"""
HEAD = """# Kernels

Steps compiled for a GPU that is not there, without and with kernels, 64 lanes, a context of 4096, bfloat16, by
`scripts/write_kernel_tables.py`. Bytes are those of the floor in [accelerators](../accelerators.md): "moved" over it in
all, and of that the operations on states and caches, of sampling with filters (the branch that moves most counts), and
of the recurrence, its convolution included. Products inside of kernels are not counted, and what a kernel reads twice
counts once. Seconds are of a busy machine. Nothing here has run.

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
    """Compile decoding, and of the first model prompts too, both ways; of prompts yield a line of its own, too."""
    from hybridlm.compiler.targets import read_target
    from hybridlm.engine.config import EngineConfig
    from hybridlm.programs.shapes import Shape
    from hybridlm.target_report.floor import floor_of
    from hybridlm.target_report.step_report import step_report
    from hybridlm.target_report.target_report import target_engine

    machine = read_target(target)
    for kernels in ("off", "auto"):
        engine = target_engine(
            machine, EngineConfig(lanes=LANES, context=CONTEXT, chunk=CHUNK, kernels=kernels), config=config
        )
        shapes = [Shape("generate", LANES, 1)]
        if model == next(iter(MODELS)):
            shapes.append(Shape("generate", engine.prefill_rows, CHUNK))
        for shape in shapes:
            floor = floor_of(engine.row_arrays.model, shape, engine.placement, engine.row_arrays.dtype, CONTEXT)
            step = engine.program(shape)
            report = step_report(shape, step, floor, machine, CONTEXT)
            assert floor is not None and report.certificate is not None
            moved = [
                (one, one.moved * (report.turns if one.by_data else 1))
                for one in step.kernels.kernels
                if one.loop is None or "further_passes" not in one.loop
            ]

            def share(
                chosen: "Callable[[ScheduledKernel], bool]", moved: Any = moved, least: int = floor.moved
            ) -> float:
                return sum(count for one, count in moved if chosen(one)) / least

            if shape.tokens > 1:
                beside = (
                    _beside(moved, step.kernels.kernels, report.turns, _recurrent),
                    _beside(moved, step.kernels.kernels, report.turns, lambda one: "/projection/" in one.op_name),
                )
                yield f"| {model} | {shape} | {kernels} | {' | '.join(beside)} |"
            yield Row(
                model, target, str(shape), kernels, report.moved, report.moved / floor.moved,
                share(lambda one: bool(one.pools)), share(lambda one: "/sample/" in one.op_name), share(_recurrent),
                report.flops, report.certificate.seconds.compile, report.faults,
            )  # fmt: skip


def _beside(
    moved: "list[tuple[ScheduledKernel, int]]",
    every: "Iterable[ScheduledKernel]",
    turns: int,
    chosen: "Callable[[ScheduledKernel], bool]",
) -> str:
    """Return two cells: bytes, and operations of XLA's products."""
    flops = sum(one.flops * one.times * (turns if one.by_data else 1) for one in every if chosen(one))
    return f"{sum(count for one, count in moved if chosen(one)) / 1e9:.2f} GB | {flops / 1e9:,.0f} Gflop"


def _recurrent(one: "ScheduledKernel") -> bool:
    layer = any(f"/{name}/" in one.op_name for name in ("GatedDeltaNet", "Mamba2", "KimiDeltaAttention"))
    return layer and "projection" not in one.op_name


def registers(target: str, folder: Path) -> Iterator[str]:
    """Compile each kernel alone, and let ptxas say what it takes; a kernel with too much shared memory is an error."""
    import jax
    from device_kernels import SMALL, operations

    from hybridlm.compiler.targets import read_target

    place = jax.sharding.SingleDeviceSharding(read_target(target).devices[0])
    (ptxas,) = Path(next(iter(find_spec("nvidia").submodule_search_locations))).glob("*/bin/ptxas")  # type: ignore  # is installed
    for number, (name, operation, arrays) in enumerate(operations("gpu", SMALL)):
        types = [jax.ShapeDtypeStruct(one.shape, one.dtype, sharding=place) for one in arrays]
        dump = folder / f"{target}-{number}"
        run = jax.jit(partial(operation, kernels="auto"))
        run.lower(*types).compile(compiler_options={"xla_dump_to": str(dump)})
        # XLA splits a program, and some of the parts are no programs by themselves
        with_kernel = [one for one in dump.glob("*.ptx") if re.search(r"\.entry \w+_kernel\b", one.read_text())]
        for file in sorted(with_kernel):
            command = [ptxas, "-v", f"-arch={ARCHITECTURES[target]}", file, "-o", os.devnull]
            said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
            for entry in said.split("Compiling entry function")[1:]:
                if (kernel := re.match(r" '(\w+_kernel)'", entry)) is None:
                    continue
                used, spilled = re.search(r"Used (\d+) registers", entry), re.search(r"(\d+) bytes spill stores", entry)
                assert used is not None and spilled is not None, entry
                yield f"| {name} | `{kernel[1]}` | {target} | {used[1]} | {spilled[1]} |"


def main() -> int:
    """Write the table; return 1 if a step has a finding."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    sys.path[:0] = [str(ROOT), *map(str, (ROOT / "tests/reference").glob("*/")), str(ROOT / "scripts/benchmarks")]
    from bench_models import BENCH_MODELS
    from published import PUBLISHED

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "tables" / "kernel-tables.md")
    options = parser.parse_args()
    rows: list[Row] = []
    beside: list[str] = []
    taken: list[str] = []
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        for model in options.models:
            fields: Any = PUBLISHED[model] if model == LARGE_MODEL else BENCH_MODELS[model]
            file = Path(folder) / "config.json"
            file.write_text(json.dumps(fields), encoding="utf-8")
            for row in rows_of(model, MODELS[model], file):
                if isinstance(row, str):
                    beside.append(row)
                else:
                    rows.append(row)
                print(row, flush=True)
        for target in ARCHITECTURES:
            for line in registers(target, Path(folder)):
                print(line, flush=True)
                taken.append(line)
    lines = [*map(str, rows), *PROMPTS.splitlines(), *beside, *REGISTERS.splitlines(), *taken]
    options.out.write_text(HEAD + "".join(f"{line}\n" for line in lines), encoding="utf-8")
    return 1 if any(row.faults for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
