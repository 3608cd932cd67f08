"""One step on a target: certificate, bytes, arithmetic, and floor.

Floor: a step reads each weight and its tokens' embedding rows once, reads and writes the fixed-size states, reads
earlier keys and values, and writes new ones. The number of experts is the expectation for uniform routing; only matrix
products with weights count as arithmetic.
"""

import math
from dataclasses import dataclass
from typing import Any

import jax
from flax import nnx

from hybridlm.devices.placement import bytes_on_a_device, numbers_on_a_device
from hybridlm.engine.engine import Engine
from hybridlm.programs.shapes import AnyShape, Shape
from hybridlm.target_report.kernel_reads import cache_heads, known_inputs, with_reads
from ir_passes import Certificate, CompiledStep
from ir_passes.kernels.reads import kernel_reads
from ir_passes.targets import Target
from ir_passes.targets.kernel_limits import KernelResources
from ir_passes.xla_audit.kernels import Kernels, ScheduledKernel
from models import KV_BLOCK, kv_blocks
from models.layers.moe import Moe
from models.ops.expert_dot import FURTHER_PASSES
from models.ops.quantised_weight import QuantisedWeight
from models.state.pages import context_pages
from models.state.state import turn_blocks


@dataclass(frozen=True)
class Floor:
    """Least traffic and arithmetic of a step on each device.

    Attributes:
        flops: of products with weights.
    """

    moved: int
    flops: int

    def seconds(self, peak: float, bandwidth: float) -> float:
        """Return the least time; `peak` in operations, `bandwidth` in bytes per second."""
        return max(self.moved / bandwidth, self.flops / peak)


def floor_of(engine: Engine, shape: AnyShape, context: int) -> Floor | None:
    """Return a step's floor; None for moves of rows.

    Args:
        context: positions after a generating or verifying step; prompts and texts begin at 0.
    """
    if not isinstance(shape, Shape):
        return None
    model, lanes = engine.row_arrays.model, max(1, shape.lanes // engine.placement.data)
    rows = lanes * shape.tokens
    weights = {
        id(weight_array): weight_array
        for weight_array in (_array(node) for _, node in nnx.iter_graph(model) if isinstance(node, nnx.Param))
    }
    size, multiplied = 0.0, 0.0
    for _, node in nnx.iter_graph(model):
        if isinstance(node, Moe):
            part = node.config.router
            met = 1.0 - (1.0 - part.per_token / part.experts) ** rows  # fraction of experts of uniformly routed tokens
            for name in ("gate_up_proj", "up_proj", "down_proj"):
                if (weight := getattr(node, name, None)) is not None:
                    expert_weight = weights.pop(id(_array(weight)))
                    size += met * bytes_on_a_device(expert_weight)
                    multiplied += rows * part.per_token / part.experts * _numbers(expert_weight)
    table = _array(model.embed_tokens)
    if not model.config.tied:
        weights.pop(id(table))
        size += rows * sum(array.shape[-1] * array.dtype.itemsize for array in jax.tree.leaves(table))
    head = _array(model.head)
    sampled = lanes if shape.step == "generate" else rows
    for remaining_weight in weights.values():
        size += bytes_on_a_device(remaining_weight)
        if len(remaining_weight.shape) > 1:
            multiplied += (sampled if remaining_weight is head else rows) * _numbers(remaining_weight)
    state_size = model.state_size(engine.row_arrays.dtype)
    previous = 0 if shape.step == "score" or shape.tokens > 1 and shape.step == "generate" else context - shape.tokens
    cached = lanes * (state_size.token - state_size.unused) * (kv_blocks(max(previous, 0)) * KV_BLOCK + shape.tokens)
    return Floor(int(size) + 2 * lanes * state_size.fixed + cached, int(2 * multiplied))


def _array(param: Any) -> Any:
    return param.get_raw_value() if hasattr(param, "get_raw_value") else param[...]


def _numbers(weight: Any) -> int:
    stored = weight.codes if isinstance(weight, QuantisedWeight) else weight
    return numbers_on_a_device(stored) * weight.shape[-1] // stored.shape[-1]


MAX_LARGEST = 20
"""Kernels that a report lists."""
BYTES_OF = {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}
"""XLA's dtype names -> names in a target's peaks."""


@dataclass(frozen=True)
class StepReport:
    """One step on each device of a target.

    Times are lower bounds in seconds; unknown figures are None.

    Attributes:
        lanes, tokens: 0 for moves of states.
        failed: reason of XLA without a program.
        kernels: operations outside data-dependent loops.
        repeated: operations in these loops, in all iterations.
        turns: iterations of each such loop over KV cache blocks at the report's context; uniform routing needs no
            further passes over experts.
        moved, flops: bytes and operations of products, with these iterations.
        floor_moved, floor_flops: lower bounds for every program; None for moves of states.
        floor_seconds: at the device's bandwidth and peak.
        moved_seconds: at the device's bandwidth, without caches.
        uncounted: GPU kernels with declared reads, because lengths do not determine their loops.
        resources: of GPU kernels, by ptxas.
    """

    name: str
    lanes: int
    tokens: int
    failed: str | None
    certificate: Certificate | None
    kernels: int
    repeated: int
    turns: int
    moved: int
    flops: int
    floor_moved: int | None
    floor_flops: int | None
    floor_seconds: float | None
    moved_seconds: float | None
    tokens_per_second: float | None
    largest: tuple[ScheduledKernel, ...]
    uncounted: tuple[str, ...] = ()
    resources: tuple[KernelResources, ...] = ()
    reused: bool = False

    @property
    def scratch(self) -> int:
        """Bytes besides weights and rows."""
        if self.certificate is None:
            return 0
        memory = self.certificate.memory
        return memory.temp + max(0, memory.outputs - memory.aliased)

    @property
    def faults(self) -> tuple[str, ...]:
        if self.failed is not None or self.certificate is None:
            return (self.failed or "not compiled",)
        limits = (fault for kernel in self.resources for fault in kernel.faults())
        return (*map(str, self.certificate.faults), *limits)

    @property
    def spilling(self) -> tuple[KernelResources, ...]:
        """GPU kernels that store registers to memory."""
        return tuple(kernel for kernel in self.resources if kernel.spilled)


def failed_report(shape: AnyShape, why: str) -> StepReport:
    lanes, tokens = _sizes(shape)
    return StepReport(str(shape), lanes, tokens, why, None, 0, 0, 0, 0, 0, None, None, None, None, None, ())


def step_report(engine: Engine, shape: AnyShape, step: CompiledStep, context: int) -> StepReport:
    """Return the report of a step that is compiled for a target.

    Args:
        context: positions of each lane, for loops and kernel reads.
    """
    target, floor = engine.placement.target, floor_of(engine, shape, context)
    arguments = engine.example_arguments(shape)
    assert target is not None
    (kernels, uncounted), (lanes, tokens) = (step.kernels, ()), _sizes(shape)
    if isinstance(shape, Shape) and any(kernel.shapes for kernel in kernels.kernels):
        reads = kernel_reads(step.jaxpr, known_inputs(shape, arguments, context))
        kernels, uncounted = with_reads(kernels, reads, target.cache)
    blocks = context_pages(context)
    all_heads = cache_heads(arguments, lanes)
    visited = min((turn_blocks(blocks, target.platform, heads) for heads in all_heads), default=blocks)
    turns = -(-kv_blocks(context) // visited) if isinstance(shape, Shape) else 0
    repeated = [kernel for kernel in kernels.kernels if kernel.loop is not None and FURTHER_PASSES not in kernel.loop]
    runs = turns * sum(kernel.times for kernel in repeated)
    moved = kernels.moved + turns * sum(kernel.moved for kernel in repeated)
    flops = kernels.flops + turns * sum(kernel.times * kernel.flops for kernel in repeated)
    floor_seconds, peak = None, _peak(kernels, target)
    if floor is not None and peak is not None and target.bandwidth is not None:
        floor_seconds = floor.seconds(peak, target.bandwidth)
    data = lanes * (tokens if isinstance(shape, Shape) and shape.step != "verify" else 1)
    return StepReport(
        str(shape), lanes, tokens, None, step.certificate, kernels.count, runs, turns, moved, flops,
        None if floor is None else floor.moved, None if floor is None else floor.flops, floor_seconds,
        moved / target.bandwidth if target.bandwidth else None, data / floor_seconds if floor_seconds else None,
        kernels.largest(MAX_LARGEST), uncounted, step.kernel_resources,
    )  # fmt: skip


def _peak(kernels: Kernels, target: Target) -> float | None:
    dtypes = {BYTES_OF.get(kernel.dtype, "") for kernel in kernels.kernels if kernel.flops}
    peaks = [target.flops[name] for name in dtypes if name in target.flops]
    return max(peaks, default=max(target.flops.values(), default=math.nan)) if target.flops else None


def _sizes(shape: AnyShape) -> tuple[int, int]:
    return (shape.lanes, shape.tokens) if isinstance(shape, Shape) else (0, 0)
