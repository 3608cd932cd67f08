"""Reads and writes of GPU kernels at given lengths, in place of declared ones."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from hybridlm.programs.shapes import Shape
from hybridlm.steps.operands import StepInputs, blocks_for
from ir_passes.kernels.reads import KernelReads
from ir_passes.xla_audit.kernels import Kernels, ScheduledKernel

CALL = "/pallas_call"
"""End of JAX's name of a kernel."""


def known_inputs(shape: Shape, arguments: tuple[Any, ...], context: int) -> list[Any]:
    """Return lengths, positions and sampling settings among a step's inputs; None for others.

    Args:
        arguments: parameters, rows, `StepInputs`.
        context: positions after the step; prompts and texts begin at 0.
    """
    *leading, inputs = arguments
    assert isinstance(inputs, StepInputs)
    lanes, tokens = shape.lanes, shape.tokens
    begins = shape.step == "score" or (shape.tokens > 1 and shape.step == "generate")
    first = 0 if begins else context - tokens
    values = {
        "lengths": np.full(lanes, tokens, np.int32),
        "positions": np.full(lanes, first, np.int32),
        "kv_blocks": blocks_for(first + tokens),
        "top_k": np.full(lanes, 1, np.int32),
        "top_p": np.full(lanes, 0.5, np.float32),
    }
    leaves = jax.tree.leaves_with_path((leading, inputs))
    return [values.get(getattr(path[-1], "name", "")) if path[0].idx == 1 else None for path, _ in leaves]


def cache_heads(arguments: tuple[Any, ...], lanes: int) -> set[int]:
    """Return lanes times key/value heads on a device, for each KV cache size."""
    sizes = set[int]()
    for path, leaf in jax.tree.leaves_with_path(arguments):
        if getattr(path[-1], "name", "") == "key" and len(leaf.shape) == 4:
            sharding = getattr(leaf, "sharding", None)
            pages, heads, *_ = leaf.shape if sharding is None else sharding.shard_shape(leaf.shape)
            sizes.add(max(1, lanes * pages // leaf.shape[0]) * heads)
    return sizes


def with_reads(kernels: Kernels, reads: Iterable[KernelReads], cache: int) -> tuple[Kernels, tuple[str, ...]]:
    """Return operations with counted accesses of GPU kernels, and names of uncounted kernels.

    Kernels with equal names and operands have the mean of their counts; an uncounted kernel keeps its declared bytes.

    Args:
        reads: of kernels in the step's jaxpr.
        cache: bytes of the device's cache.
    """
    counted: dict[Any, list[tuple[int, int]]] = defaultdict(list)
    for kernel in reads:
        counted[kernel.name, kernel.shapes].append((kernel.read(cache), kernel.written))

    operations, uncounted = list[ScheduledKernel](), dict[str, None]()
    for kernel in kernels.kernels:
        name = kernel.op_name.removesuffix(CALL).rpartition("/")[2]
        counts = counted.get((name, kernel.shapes)) if kernel.shapes else None
        if kernel.shapes and counts is None:
            uncounted[name] = None
        if counts:
            read, written = (sum(sizes) // len(counts) for sizes in zip(*counts, strict=True))
            kernel = replace(kernel, read=read, written=written)
        operations.append(kernel)
    return Kernels(tuple(operations)), tuple(uncounted)
