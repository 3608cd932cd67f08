"""Report on a model on a target: proof, audit, costs of steps, and fit."""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import jax
from jax.sharding import Mesh

from hybridlm.checkpoint import resolve, stored_dtype
from hybridlm.checkpoint.model import open_model
from hybridlm.checkpoint.quantise import Recipe
from hybridlm.devices.mesh import mesh as make_mesh
from hybridlm.engine.abstract import SERVING, abstract_engine
from hybridlm.engine.config import EngineConfig
from hybridlm.engine.engine import Engine
from hybridlm.engine.warmup import all_shapes
from hybridlm.programs.compilation_cache import cache_of
from hybridlm.programs.shapes import AnyShape
from hybridlm.target_report.fit import Fit, fit_of
from hybridlm.target_report.step_report import StepReport, failed_report, step_report
from ir_passes import CertificationWarning
from ir_passes.files.record import from_json, to_json
from ir_passes.files.store import FileStore
from ir_passes.files.trust import UntrustedError
from ir_passes.files.user_warnings import warn_user
from ir_passes.targets import Target, TargetError

TARGETS = "targets"
"""Subfolder of the step cache for reports."""


@dataclass(frozen=True)
class TargetReport:
    """A model on a target.

    Attributes:
        target, device, devices: name, device kind and number of devices.
        mesh: axis sizes; empty on one device.
        fit: None if the memory is unknown.
    """

    target: str
    device: str
    devices: int
    mesh: tuple[str, ...]
    family: str
    dtype: str
    lanes: int
    context: int
    chunk: int
    fit: Fit | None
    steps: tuple[StepReport, ...]

    @property
    def good(self) -> bool:
        return (self.fit is None or self.fit.fits) and not any(step_report.faults for step_report in self.steps)

    def to_json(self) -> str:
        return to_json(self)


def target_engine(
    target: Target,
    options: EngineConfig = SERVING,
    *,
    model: str | None = None,
    config: Path | None = None,
    mesh: dict[str, int] | None = None,
    recipe: Recipe | None = None,
) -> Engine:
    """Return an engine that compiles steps for a target without reading weights.

    Args:
        options: without a mesh.
        model: checkpoint directory, GGUF file or Hub id, for configuration, dtype and packed forms.
        config: config.json, instead of a model.
        mesh: axis sizes; None splits lanes over all devices.
        recipe: of quantised weights; weights of a quantised model are packed.

    Raises:
        TargetError: no compiler for the target, or another number of devices than the mesh.
    """
    devices = target.devices
    sizes = {"data": target.count} if mesh is None else mesh
    if (needed := math.prod(sizes.values())) != target.count:
        raise TargetError(f"target {target.name}: expected a mesh of {target.count} devices, got one of {needed}")
    over: Mesh | None = None if target.count == 1 else make_mesh(**sizes, devices=devices)
    directory = None
    if config is None:
        assert model is not None
        directory, _, _ = open_model(resolve(model))
        if options.dtype is None:
            options = replace(options, dtype=stored_dtype(directory))
        config = directory.path
    return abstract_engine(config, replace(options, mesh=over), target, recipe, directory)


def shapes_of(engine: Engine) -> list[AnyShape]:
    return all_shapes(engine, only_full=True, drafts=True)


def report_on(
    engine: Engine, shapes: Sequence[AnyShape], step_done: Callable[[int, str], None] = lambda count, name: None
) -> TargetReport:
    """Report on steps, compiled for the target or loaded from storage.

    Args:
        step_done: called with finished steps and the next name.
    """
    target = engine.placement.target
    assert target is not None
    _, folder = cache_of(None)
    store = None if folder is None else FileStore(folder / TARGETS)
    steps: dict[AnyShape, StepReport] = {}
    for number, shape in enumerate(shapes):
        step_done(number, str(shape))
        steps[shape] = one_step(engine, target, shape, store)
    fit = None
    if target.memory is not None:
        compiled = [step for step in steps.values() if step.certificate is not None]
        scratch = max((step.scratch for step in compiled), default=None)
        fit = fit_of(engine, target.memory, target.platform, scratch, _resident(engine, steps))
    mesh = engine.placement.mesh
    sizes = () if mesh is None else tuple(f"{name}={size}" for name, size in mesh.shape.items())
    return TargetReport(
        target.name, target.device_kind, target.count, sizes, engine.row_arrays.model.config.family, engine.dtype,
        engine.lanes, engine.context, engine.chunk, fit, tuple(steps.values()),
    )  # fmt: skip


def one_step(engine: Engine, target: Target, shape: AnyShape, store: FileStore | None) -> StepReport:
    """Report on one step; a report without faults is stored for other processes."""
    name = None
    if store is not None and (key := engine.programs.key(shape, engine.example_arguments(shape))) is not None:
        name = f"{key}-{engine.context}.json"
        report = store.read_record(name, lambda content: from_json(StepReport, content, checksum=True))
        if report is not None:
            return replace(report, reused=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CertificationWarning)
            step = engine.program(shape)
    except jax.errors.JaxRuntimeError as error:
        return failed_report(shape, f"XLA does not compile it for {target.name}: {str(error).strip().splitlines()[0]}")
    report = step_report(engine, shape, step, engine.context)
    if name is not None and store is not None and not report.faults:
        try:
            store.write_file(name, to_json(report, checksum=True).encode())
        except UntrustedError as error:
            store.warn(error)
        except OSError as error:
            warn_user(f"the report on {shape} was not kept: {error}")
    return report


def _resident(engine: Engine, steps: dict[AnyShape, StepReport]) -> int | None:
    """Return bytes of weights and pool in XLA's layout of a decode step."""
    shape = engine.full_shape("decode")
    certificate = steps[shape].certificate if shape in steps else None
    return None if certificate is None else certificate.memory.arguments
