"""Write docs/tables/target-tables.md: verdict, scratch, bytes over the floor, compile time of steps on targets.

    python scripts/write_target_tables.py [--targets nvidia-h100 ...] [--checkpoints ...] [--models ...] [--out FILE]

Needs the extras target-cuda and target-tpu, and hours of a core. Rows of other checkpoints stay, and steps that
the same sources have compiled without a fault are skipped. The exit status is 1 if a step of this run has a finding.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from table_pages import ROOT, import_references


def main(arguments: Sequence[str] | None = None) -> int:
    import_references()
    from certificate_table import NAMES
    from rich.progress import track
    from target_table import (
        MODEL_STEPS,
        MODEL_TARGETS,
        MODELS,
        TARGETS,
        ModelRow,
        Row,
        model_jobs,
        model_row,
        page,
        read,
        rows_of,
    )

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", nargs="*", default=list(TARGETS), help='as "nvidia-h100:4 data=2,model=2"')
    parser.add_argument("--checkpoints", nargs="*", default=list(NAMES))
    parser.add_argument("--models", nargs="*", default=list(MODELS), help="published models")
    parser.add_argument("--model-steps", nargs="*", default=list(MODEL_STEPS), help='as "generate 64x1"')
    parser.add_argument("--model-targets", nargs="*", default=list(MODEL_TARGETS))
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "tables" / "target-tables.md")
    options = parser.parse_args(arguments)
    text = options.out.read_text(encoding="utf-8") if options.out.exists() else ""
    rows, models = read(text)
    good = True
    chosen = [(step, target) for step, target in model_jobs() if step in options.model_steps]
    jobs = [
        (name, target, step) for name in options.models for step, target in chosen if target in options.model_targets
    ]
    jobs += [(name, target, "") for target in options.targets for name in options.checkpoints]
    for name, target, step in track(jobs, "compiling"):
        additions: list[Row] | list[ModelRow]
        if step:
            additions = [model_row(name, target, step)]
            models = [*(row for row in models if (row.model, row.target, row.step) != (name, target, step)), *additions]
        else:
            additions = rows_of(name, target)
            rows = [*(row for row in rows if (row.checkpoint, row.target) != (name, target)), *additions]
        good &= all(row.good for row in additions)
        options.out.write_text(page(rows, models), encoding="utf-8")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
