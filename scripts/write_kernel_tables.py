"""Write docs/kernel-tables.md: bytes over the floor of steps with and without kernels, on GPUs that are not there.

    python scripts/write_kernel_tables.py [--models 131M kda] [--out FILE]

Takes the extra target-cuda, and half an hour on two cores. The exit status is 1 if a step has a finding.
"""

import argparse
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
"""Models of scripts/bench_models.py, and a published one -> the target of their steps."""
HEAD = """# Kernels

Steps compiled for a GPU that is not there, without and with kernels, 64 lanes, a context of 4096, bfloat16, by
`scripts/write_kernel_tables.py`. Bytes are those of the floor in [accelerators.md](accelerators.md): "moved" over it in
all, and of that the operations on states and caches, of sampling with filters (the branch that moves most counts), and
of the recurrence, its convolution included. Nothing here has run.

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


def rows_of(model: str, target: str, config: Path) -> Iterator[Row]:
    """Compile decoding, and of the first model prompts too, both ways."""
    from hybridlm.compiler.targets import read_target
    from hybridlm.programs.shapes import Shape
    from hybridlm.target_report.floor import floor_of
    from hybridlm.target_report.step_report import step_report
    from hybridlm.target_report.target_report import target_engine

    machine = read_target(target)
    for kernels in ("off", "auto"):
        engine = target_engine(machine, config=config, lanes=LANES, context=CONTEXT, chunk=CHUNK, kernels=kernels)
        shapes = [Shape("generate", LANES, 1)]
        if model == next(iter(MODELS)):
            shapes.append(Shape("generate", engine.prefill_rows, CHUNK))
        for shape in shapes:
            floor = floor_of(engine.row_arrays.model, shape, engine.placement, engine.row_arrays.dtype, CONTEXT)
            step = engine.program(shape)
            report = step_report(shape, step, floor, machine, CONTEXT)
            assert floor is not None and report.certificate is not None
            shares = dict.fromkeys(("pools", "sampling", "recurrence"), 0)
            for one in step.kernels.kernels:
                moved = one.moved * (report.turns if one.by_data else 1)
                if one.loop is not None and "further_passes" in one.loop:
                    continue
                shares["pools"] += moved if one.pools else 0
                shares["sampling"] += moved if "/sample/" in one.op_name else 0
                own = any(f"/{layer}/" in one.op_name for layer in ("GatedDeltaNet", "Mamba2", "KimiDeltaAttention"))
                shares["recurrence"] += moved if own and "projection" not in one.op_name else 0
            yield Row(
                model, target, str(shape), kernels, report.moved, report.moved / floor.moved,
                *(share / floor.moved for share in shares.values()), report.flops, report.certificate.seconds.compile,
                report.faults,
            )  # fmt: skip


def main() -> int:
    """Write the table; return 1 if a step has a finding."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "reference"), str(ROOT / "scripts")]
    from bench_models import BENCH_MODELS
    from published import PUBLISHED

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "kernel-tables.md")
    options = parser.parse_args()
    rows: list[Row] = []
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        for model in options.models:
            fields: Any = PUBLISHED[model] if model == LARGE_MODEL else BENCH_MODELS[model]
            file = Path(folder) / "config.json"
            file.write_text(json.dumps(fields), encoding="utf-8")
            for row in rows_of(model, MODELS[model], file):
                print(row, *row.faults, flush=True)
                rows.append(row)
    options.out.write_text(HEAD + "".join(f"{row}\n" for row in rows), encoding="utf-8")
    return 1 if any(row.faults for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
