"""Part 4: four full-width Qwen3.5-35B-A3B layers: step times, floors, and totals.

Weights are random and made on the device. Steps are neither proved nor audited here: part 6 does that. The floor of all
layers is four layers' floor plus, for each further four, the difference between eight and four.
"""

import json
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from device_programs import keep_step
from device_records import NotRun, Records
from device_timing import ROUNDS, keep_profile, profiled
from published import PUBLISHED
from tiny_variants import variant

from hybridlm import EngineConfig
from hybridlm.devices.machine import cores
from hybridlm.engine.abstract import abstract_engine
from hybridlm.engine.engine import Engine
from hybridlm.programs.jax_settings import JaxSettings
from hybridlm.programs.shapes import Shape
from hybridlm.requests.sequence import sampling_arrays
from hybridlm.steps.operands import Batch, StepInputs
from hybridlm.target_report.step_report import floor_of
from ir_passes import CompiledStep
from ir_passes.targets import Target, local_target
from models import kv_blocks
from models.state.pages import own_pages

MODEL, LAYERS = "Qwen3.5-35B-A3B", 4
STEPS = (
    # lanes, tokens, context, positions of each lane
    (8, 1, 131072, 131072), (64, 1, 4096, 4096), (1, 1, 4096, 4096), (8, 256, 4096, 256), (8, 1, 131072, 4096),
    (1, 1, 131072, 131072), (64, 1, 131072, 131072), (8, 1, 4096, 4096),
)  # fmt: skip
FEW_STEPS = STEPS[:3]
"""Those that are timed without command buffers, too."""
TINY_STEPS = ((2, 1, 256, 256),)
TIMES = 20
"""Steps that follow each other without a pause."""
PROFILED_STEPS = 3
COMPILE_SHARE = 0.6
"""Part of the time after which steps that are compiled are timed."""


@dataclass
class LayerStep:
    """A step of the four layers."""

    engine: Engine
    shape: Shape
    visible: int
    program: "Future[CompiledStep]"


def check_layers(records: Records, rehearse: bool, short: bool = False) -> None:
    """Run part 4.

    Args:
        records: of the part.
        rehearse: tiny layers, interpreted kernels.
        few: fewer steps, without profiles.
    """
    sizes = TINY_STEPS if rehearse else FEW_STEPS if short else STEPS
    modes = ("interpret", "off") if rehearse else ("auto", "off")
    steps = [(f"{step_name(*size)}, {mode}", size, mode) for size in sizes for mode in modes]
    records.plan([name for name, _, _ in steps])
    target, params = local_target(), None
    threads = ThreadPoolExecutor(cores())
    compiled: dict[str, LayerStep | Exception] = {}
    for name, (lanes, tokens, context, visible), mode in steps:
        try:
            engine = layer_engine(LAYERS, lanes, context, mode, rehearse)
            params = random_parameters(engine) if params is None else params
            engine.params = params
            shape = engine.shape("generate", lanes, tokens)
            compiled[name] = LayerStep(engine, shape, visible, threads.submit(engine.program, shape))
        except Exception as error:
            compiled[name] = error
    ready = [step.program for step in compiled.values() if isinstance(step, LayerStep)]
    wait(ready, timeout=max(0.0, COMPILE_SHARE * records.seconds_left))
    failed = list[str]()
    for name, step in compiled.items():
        keep = not short and name in [steps[number][0] for number in range(min(4, len(steps)))]
        work = partial(_timed, name, step, target, records, keep, rehearse)
        records.check(name, work, partial(failed.append, name))
    threads.shutdown(wait=False, cancel_futures=True)
    keep_failed(records, {name: compiled[name] for name in failed})


def keep_failed(records: Records, failed: Mapping[str, "LayerStep | Exception"]) -> None:
    """Write the programs of failed steps, after all checks, until the part's time is over."""
    for name, step in failed.items():
        if isinstance(step, LayerStep) and records.seconds_left > 0:
            keep_step(records, name, step.engine, step.shape)


def step_name(lanes: int, tokens: int, context: int, visible: int) -> str:
    """Return the name of a step."""
    return f"{lanes} x {tokens}, {visible:,} of {context:,}"


def layer_engine(layers: int, lanes: int, context: int, kernels: str, tiny: bool) -> Engine:
    """Return an engine of the first layers without weights or proofs."""
    if tiny:
        config: dict[str, Any] = variant("sparse_base").config
    else:
        text = PUBLISHED[MODEL]["text_config"]
        text = text | {"num_hidden_layers": layers, "layer_types": text["layer_types"][:layers]}
        config = PUBLISHED[MODEL] | {"text_config": text}
    with tempfile.TemporaryDirectory(prefix="hybridlm-layers-") as folder:
        file = Path(folder) / "config.json"
        file.write_text(json.dumps(config))
        options = {"lanes": lanes, "context": context, "dtype": "bfloat16", "chunk": min(256, context)}
        engine = abstract_engine(file, EngineConfig(**options, kernels=kernels))
    engine.programs.certify, engine.programs.settings = "off", JaxSettings(donates=False)
    return engine


def random_parameters(engine: Engine) -> tuple[jax.Array, ...]:
    """Return random parameters on the device, of the types that an engine has."""

    @partial(jax.jit, static_argnums=(1, 2))
    def make(number: Any, shape: tuple[int, ...], dtype: str) -> Any:
        numbers = jax.random.normal(jax.random.fold_in(jax.random.key(3), number), shape, jnp.bfloat16)
        return (numbers * jnp.bfloat16(shape[-1] ** -0.5 if len(shape) > 1 else 0.1)).astype(dtype)

    leaves, tree = jax.tree.flatten(engine.params)
    return jax.tree.unflatten(tree, [make(n, array.shape, str(array.dtype)) for n, array in enumerate(leaves)])


def step_inputs(engine: Engine, shape: Shape, visible: int) -> StepInputs:
    """Return a step's inputs on the device, with `visible` free positions per lane."""
    rng, lanes = np.random.default_rng(5), shape.lanes
    batch = Batch(
        rng.integers(1, engine.vocab_size, (lanes, shape.tokens)).astype(np.int32),
        np.full(lanes, shape.tokens, np.int32),
        np.full(lanes, visible - shape.tokens, np.int32),
        np.arange(lanes, dtype=np.int32),
        np.array(kv_blocks(visible), np.int32),
        np.asarray(own_pages(lanes, shape.pages)),
    )
    return jax.device_put(StepInputs(batch, None, *sampling_arrays([None] * lanes)))


def floor_seconds(layers: int, step: LayerStep, target: Target, tiny: bool) -> tuple[float, float] | None:
    """Return minimum seconds of these and all layers; None without a data sheet."""
    if not target.bandwidth or not target.flops:
        return None
    floors = []
    for count in (layers, 2 * layers):
        engine = layer_engine(count, step.shape.lanes, step.engine.context, "off", tiny)
        floor = floor_of(engine, step.shape, step.visible)
        assert floor is not None
        floors.append(max(floor.moved / target.bandwidth, floor.flops / target.flops["bfloat16"]))
    every = PUBLISHED[MODEL]["text_config"]["num_hidden_layers"] // layers
    return floors[0], floors[0] + (every - 1) * (floors[1] - floors[0])


def _timed(
    name: str, step: LayerStep | Exception, target: Target, records: Records, keep: bool, tiny: bool
) -> dict[str, Any]:
    if isinstance(step, Exception):
        raise step
    if not step.program.done():
        raise NotRun("not compiled in time")
    engine, program = step.engine, step.program.result()
    inputs = step_inputs(engine, step.shape, step.visible)
    rows, best = engine.new_rows(step.shape.lanes), float("inf")
    for number in range(ROUNDS + 1):
        start, out = time.perf_counter(), None
        for _ in range(TIMES if number else 1):
            out, rows = program(engine.params, rows, inputs)
        jax.block_until_ready((out, rows))
        if number:  # the first call warms up
            best = min(best, (time.perf_counter() - start) / TIMES)
    contents = [rows]

    def run() -> None:
        for _ in range(PROFILED_STEPS):
            out, contents[0] = program(engine.params, contents[0], inputs)
            jax.block_until_ready(out)

    profile = profiled(run)
    if keep:
        keep_profile(records, name, profile)
    figures: dict[str, Any] = {
        "ms": 1e3 * best, "kernels, ms": 1e3 * profile.seconds / PROFILED_STEPS,
        "launches": profile.launches // PROFILED_STEPS,
    }  # fmt: skip
    if floors := floor_seconds(LAYERS, step, target, tiny):
        smallest, every = floors
        figures |= {
            "floor, ms": 1e3 * smallest,
            "x floor": best / smallest,
            "40 layers, ms": 1e3 * best * every / smallest,
        }
    largest = [(kernel[:40], 1e3 * seconds / PROFILED_STEPS) for kernel, seconds in profile.largest.items()]
    return figures | {"largest, ms": ", ".join(f"{kernel} {seconds:.3f}" for kernel, seconds in largest[:3])}
