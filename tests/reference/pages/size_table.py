"""A table of docs/tables/packed-weights.md: weight memory, and lanes that GPUs can hold."""

import json
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

from published import PUBLISHED

from hybridlm import EngineConfig
from hybridlm.checkpoint.quantise import Recipe
from hybridlm.engine.abstract import abstract_engine
from hybridlm.engine.engine import Engine
from hybridlm.target_report.fit import Fit, fit_of
from ir_passes.targets import read_target

TARGETS = {"nvidia-h100": "H100", "nvidia-h200": "H200"}
SCHEMES = {None: "bfloat16", "fp8-block": "`fp8-block`", "int8": "`int8`", "int4": "`int4`", "nvfp4": "`nvfp4`"}
LANES, CONTEXT = 8, 4096
LARGE = [
    "Qwen3.5-27B", "Qwen3.5-35B-A3B", "Qwen3.5-122B-A10B", "Qwen3-Next-80B", "Kimi-Linear-48B", "Nemotron-3-Nano",
    "Nemotron-3-Super", "Granite-4.0-H-Small", "Falcon-H1-34B",
]  # fmt: skip
"""Models that do not fit every GPU."""


@lru_cache(maxsize=1)
def _engine(name: str, scheme: str | None, **options: Any) -> Engine:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(PUBLISHED[name]))
        # GPUs differ in their memory alone.
        target = read_target(next(iter(TARGETS)))
        recipe = None if scheme is None else Recipe.of(scheme)
        sizes: dict[str, Any] = {"lanes": LANES, "context": CONTEXT, "dtype": "bfloat16"} | options
        return abstract_engine(path, EngineConfig(**sizes), target=target, recipe=recipe)


def fit(name: str, scheme: str | None, target: str, scratch: int | None = None, **options: Any) -> Fit:
    """Return `hybridlm verify --abstract --target`'s weights and rows of a published model.

    Args:
        scratch: bytes of the largest step.
        options: as for `load`, in place of those of the table.
    """
    machine = read_target(target)
    assert machine.memory is not None
    return fit_of(_engine(name, scheme, **options), machine.memory, machine.platform, scratch, None)


def row(name: str, scheme: str | None) -> str:
    """Return the line of a model by a scheme."""
    fits = [fit(name, scheme, target) for target in TARGETS]
    places = [f"{fit.most_lanes:,}" if fit.most_lanes else "no" for fit in fits]
    return f"| {name} | {SCHEMES[scheme]} | {fits[0].weights / 1e9:.1f} | {' | '.join(places)} |\n"


def table() -> str:
    """Return the whole table, a line for each model and scheme."""
    head = f"| model | weights | GB | {' | '.join(TARGETS.values())} |\n|---|---|---:|{'---:|' * len(TARGETS)}\n"
    return head + "".join(row(name, scheme) for name in LARGE for scheme in SCHEMES)
