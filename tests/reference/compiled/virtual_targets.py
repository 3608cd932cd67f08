"""Engines for targets, of golden checkpoints, and targets whose devices are virtual CPUs."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import jax
import pytest
from jax.experimental import topologies
from jax_settings import jax_settings
from patched_functions import record_calls
from text_checkpoint import GOLDEN

from hybridlm import EngineConfig
from hybridlm.engine.engine import Engine
from hybridlm.target_report import Recipe, TargetReport, target_engine
from ir_passes.contract.contract import BoundContract
from ir_passes.files.record import from_json
from ir_passes.targets import read_target
from ir_passes.targets.target import NO_TPU
from ir_passes.xla_audit.hlo import read
from ir_passes.xla_audit.program import Executable

SIZES: dict[str, Any] = {"lanes": 4, "context": 256, "chunk": 8, "dtype": "float32"}


@contextmanager
def virtual_targets(cache: Path) -> Iterator[None]:
    """Let the devices of every target be virtual CPUs, and keep XLA's programs in a folder."""

    def topology(topology: str = "1", **_: Any) -> Any:
        return SimpleNamespace(devices=jax.devices()[1 : 1 + int(topology.split("x")[-1])])

    with pytest.MonkeyPatch.context() as patch, jax_settings(jax_compilation_cache_dir=str(cache)):
        for name in ("jax_plugins.xla_cuda13", "jax_cuda13_plugin", "libtpu"):
            module = ModuleType(name)
            module.__spec__ = ModuleSpec(name, None)
            patch.setitem(sys.modules, name, module)
        for name in NO_TPU:  # an engine for a TPU sets them
            patch.setenv(name, "")
            patch.delenv(name)
        patch.setattr(topologies, "get_topology_desc", topology)
        yield


def golden_engine(
    name: str = "sparse_base",
    target: str = "nvidia-h100",
    recipe: Recipe | None = None,
    mesh: dict[str, int] | None = None,
    **options: Any,
) -> Engine:
    """Return the engine of a golden checkpoint for a target."""
    config = GOLDEN.parent / name / "config.json"
    return target_engine(read_target(target), EngineConfig(**SIZES | options), config=config, mesh=mesh, recipe=recipe)


def decode_and_keep(engine: Engine, lanes: int = 4) -> tuple[Any, Any]:
    """Return the shapes of a decode step, and of the copy of a state."""
    return engine.shape("generate", lanes, 1), engine.moves.shapes(lanes, engine.pages(lanes))[0]


def read_report(text: str) -> TargetReport:
    """Read a report that `TargetReport.to_json` has written."""
    return from_json(TargetReport, text)


def decode_executable(target: str) -> tuple[Executable, BoundContract]:
    """Compile a decode step for a target, and return its program as the audit reads it."""
    with pytest.MonkeyPatch.context() as patch:
        calls = record_calls(patch, "ir_passes.compile.stages.compile_with_assignment")
        engine = golden_engine("dense_interval", target, context=64)
        step = engine.program(engine.shape("generate", 4, 1))
    program = calls[0].result
    return read(program.compiled, program.dump), step.calling.compiled_bound(step.bound)
