"""Seconds of a model's steps on this device, beside the least that its bandwidth and arithmetic allow."""

import time
from dataclasses import asdict, dataclass, replace
from typing import Any

import jax
import numpy as np

import hybridlm
from hybridlm.bench.limits import measure_limits
from hybridlm.engine.engine import Engine
from hybridlm.programs.shapes import Shape
from hybridlm.requests.sampling_operands import sampling_inputs
from hybridlm.steps.operands import Batch
from hybridlm.target_report.floor import floor_of
from hybridlm.target_report.step_report import step_report
from ir_passes.targets import Target, local_target
from models import kv_blocks

ROUNDS = 3
MIN_OVER_FLOOR = 0.9
"""Least multiple of the floor that a step may take: data sheets round."""


@dataclass(frozen=True)
class Speed:
    """One step. Seconds are the best of several rounds, in each of which steps follow each other without a pause.

    Attributes:
        step: its shape.
        tokens: of all lanes.
        seconds: of one step.
        floor_seconds: that no program of it can avoid at the device's bandwidth and peak.
        moved_seconds: for what its program moves, at the device's bandwidth.
        tokens_per_second: in so many seconds.
        over_floor: seconds over the floor's.
    """

    step: str
    tokens: int
    seconds: float
    floor_seconds: float
    moved_seconds: float
    tokens_per_second: float
    over_floor: float


def speed(lm: hybridlm.LM, case: Any, expected: Any) -> dict[str, Any]:
    """Time decoding of all lanes, prefill and `generate`; no step is faster than its floor."""
    target, source = _device()
    on_cpu = target.platform == "cpu"
    found = speeds(lm, target, 3 if on_cpu else 50)
    # A small program's numbers lie in a CPU's caches.
    faster = [one for one in found if one.over_floor < MIN_OVER_FLOOR and not on_cpu]
    assert not faster, f"faster than what {target.device_kind} can do, from {source}: {faster}"
    prompt = min(128, lm.context // 4)
    return {
        "bandwidth": target.bandwidth,
        "figures from": source,
        "generate, tokens/s": generated_per_second(lm, prompt, prompt),
        **{one.step: asdict(one) for one in found},
    }


def _device() -> tuple[Target, str]:
    """This device with its bandwidth and peaks, and where they come from."""
    target = local_target()
    if target.bandwidth is not None:
        return target, "its data sheet"
    limits = measure_limits(1 << 26, 512) if target.platform == "cpu" else measure_limits()
    peaks = {"bfloat16": limits.bfloat16_flops, "float32": limits.float32_flops}
    return replace(target, bandwidth=int(limits.read_bytes), flops=peaks), "measurements"


def speeds(lm: hybridlm.LM, target: Target, times: int) -> list[Speed]:
    """Time the decode step of all lanes and the prefill step.

    Args:
        lm: the model.
        target: the device, with bandwidth and peaks.
        times: steps of a round.
    """
    engine, found = lm.engine, []
    for shape, context in (
        (Shape("generate", engine.lanes, 1), engine.context),
        (Shape("generate", engine.prefill_rows, engine.chunk), engine.chunk),
    ):
        floor = floor_of(engine.row_arrays.model, shape, engine.placement, engine.row_arrays.dtype, context)
        report = step_report(shape, engine.program(shape), floor, target, context)
        assert report.floor_seconds is not None and report.moved_seconds is not None
        seconds, tokens = _seconds(engine, shape, context - shape.tokens, times), shape.lanes * shape.tokens
        least, moved = report.floor_seconds, report.moved_seconds
        found.append(Speed(str(shape), tokens, seconds, least, moved, tokens / seconds, seconds / least))
    return found


def generated_per_second(lm: hybridlm.LM, prompt: int, tokens: int) -> float:
    """Tokens per second of `generate` as a whole, prompts included, with as many requests as lanes."""
    rng = np.random.default_rng(3)
    prompts = rng.integers(1, lm.config.vocab_size, (lm.engine.lanes, prompt)).tolist()
    settings: dict[str, Any] = {"ignore_eos": True, "progress": False}
    lm.generate(prompts, max_tokens=2, **settings)
    start = time.perf_counter()
    lm.generate(prompts, max_tokens=tokens, **settings)
    return len(prompts) * tokens / (time.perf_counter() - start)


def _seconds(engine: Engine, shape: Shape, position: int, times: int) -> float:
    program, rows = engine.program(shape), engine.new_rows(shape.lanes)
    rng = np.random.default_rng(5)
    batch = Batch(
        rng.integers(1, engine.vocab_size, (shape.lanes, shape.tokens)).astype(np.int32),
        np.full(shape.lanes, shape.tokens, np.int32),
        np.full(shape.lanes, position, np.int32),
        np.int32(kv_blocks(position + shape.tokens)),
    )
    inputs = jax.device_put(sampling_inputs(batch, [None] * shape.lanes, engine.vocab_size))
    best = float("inf")
    for round in range(ROUNDS + 1):
        start, out = time.perf_counter(), None
        for _ in range(times if round else 1):
            out, rows = program(engine.params, rows, inputs)
        jax.block_until_ready((out, rows))
        if round:  # the first one warms up
            best = min(best, (time.perf_counter() - start) / times)
    return best
