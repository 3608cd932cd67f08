"""Fit of a model into a device's memory; most lanes, longest context, largest KV cache."""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

from hybridlm.devices.placement import bytes_on_a_device
from hybridlm.engine.cache_size import pool_pages
from hybridlm.engine.engine import Engine
from hybridlm.engine.memory import format_bytes
from hybridlm.engine.reading import max_states
from models import KV_BLOCK

MAX_LANES = 1 << 16
GPU_SHARE = 0.75
"""Share of GPU memory that JAX takes without XLA_PYTHON_CLIENT_MEM_FRACTION."""


@dataclass(frozen=True)
class Fit:
    """Memory of a model on each device, in bytes.

    Attributes:
        rows: with KV cache, and states of common prefixes of scored texts.
        padding: added by device layouts.
        scratch: of the largest step, with results without pools; None without a compiled step.
        left: negative if the step does not fit.
        positions: of the KV cache, on all devices.
        most_lanes: at this context; scratch grows at most in proportion.
        longest_context: with these lanes.
        most_positions: largest KV cache with these lanes at this context.
        share: of memory that JAX takes by default.
    """

    memory: int
    weights: int
    rows: int
    padding: int
    scratch: int | None
    left: int
    lanes: int
    context: int
    positions: int
    most_lanes: int
    longest_context: int
    most_positions: int
    share: float

    @property
    def fits(self) -> bool:
        return self.left >= 0

    @property
    def lines(self) -> tuple[str, ...]:
        scratch = "unknown scratch" if self.scratch is None else f"scratch {format_bytes(self.scratch)}"
        padding = f" + padding {format_bytes(self.padding)}" if self.padding else ""
        need = f"weights {format_bytes(self.weights)} + rows {format_bytes(self.rows)}{padding} + {scratch}"
        over = format_bytes(abs(self.left))
        verdict = f"fits, {over} are left" if self.fits else f"DOES NOT FIT by {over}"
        lines = [f"{need} = {format_bytes(self.memory - self.left)} of {format_bytes(self.memory)}: {verdict}"]
        lanes = f"at most {self.most_lanes} lanes" if self.most_lanes else "not one lane"
        context = f"a context of {self.longest_context}" if self.longest_context else "no context"
        line = f"{lanes} at a context of {self.context}, or {context} with {self.lanes} lanes"
        if self.positions:
            line += (
                f"; KV cache of {self.positions:,} positions, at most {self.most_positions:,} with {self.lanes} lanes"
            )
        lines.append(line)
        if self.fits and self.memory - self.left > self.share * self.memory:
            lines.append(
                f"JAX takes {self.share:.0%} of the memory by default, which is less: set "
                "XLA_PYTHON_CLIENT_MEM_FRACTION"
            )
        return tuple(lines)


def fit_of(engine: Engine, memory: int, platform: str, scratch: int | None, resident: int | None) -> Fit:
    """Return the fit of a model.

    Args:
        scratch: of the largest step, besides weights and rows.
        resident: weights and pool in XLA's layout.
    """
    weights = engine.parameters_on_a_device[1]

    devices = engine.placement.data

    def rows(lanes: int, context: int, page_limit: int | None) -> int:
        blocks, total = engine.row_arrays.blocks(context), 0
        for count in (lanes // devices, max_states(engine.prefill_lanes)):
            pages = pool_pages(count, blocks, page_limit)
            total += bytes_on_a_device(engine.row_arrays.abstract(devices * count, devices * pages))
        return total

    row_bytes = rows(engine.lanes, engine.context, engine.page_limit)
    pool = bytes_on_a_device(engine.row_arrays.abstract(engine.rows, engine.pages(engine.rows)))
    padding = 0 if resident is None else max(0, resident - weights - pool)
    padded = 1 + padding / (weights + row_bytes)

    def free(lanes: int, context: int, page_limit: int | None) -> int:
        needed = (scratch or 0) * max(1.0, lanes / engine.lanes)
        return memory - int(padded * (weights + rows(lanes, context, page_limit)) + needed)

    lanes = devices * _most(
        MAX_LANES // devices, lambda count: free(count * devices, engine.context, engine.page_limit) >= 0
    )
    limit = engine.row_arrays.model.config.max_position_embeddings // KV_BLOCK
    blocks = _most(limit, lambda count: free(engine.lanes, count * KV_BLOCK, engine.page_limit) >= 0)
    pages = engine.lanes // devices * engine.blocks
    pages = _most(pages, lambda page_limit: free(engine.lanes, engine.context, page_limit) >= 0)
    share = GPU_SHARE if platform == "gpu" else 1.0
    return Fit(
        memory, weights, row_bytes, padding, scratch, memory - weights - row_bytes - padding - (scratch or 0),
        engine.lanes, engine.context, engine.cache_positions, lanes, blocks * KV_BLOCK, devices * pages * KV_BLOCK,
        share,
    )  # fmt: skip


def _most(limit: int, fits: Callable[[int], bool]) -> int:
    """Return the largest fitting number up to a limit, or 0; smaller ones fit, too."""
    return bisect_left(range(1, limit + 1), True, key=lambda count: not fits(count))
