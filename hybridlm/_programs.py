"""The compiled programs of a model: one for each step and shape, compiled on first use and kept."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import jax

from hybridlm._sampling import LogitsProcessor
from hybridlm._steps import GENERATE_CONTRACT, SCORE_CONTRACT, Step, Structure, generate_step, score_step
from ir_passes import LaneContract

POOLS = 1
"""The argument of every step that is donated: its successor is written in place."""


@dataclass(frozen=True)
class Shape:
    """What a program is compiled for.

    Attributes:
        step: "generate" or "score".
        lanes, tokens: N and T.
        top: log-probabilities reported (None: none at all).
        processor: the logits processor, None for none.
    """

    step: Literal["generate", "score"]
    lanes: int
    tokens: int
    top: int | None = None
    processor: LogitsProcessor | None = None


def lane_rung(count: int, lanes: int) -> int:
    """The compiled number of lanes for `count` sequences: the next power of two, at most `lanes`."""
    return min(1 << max(count - 1, 0).bit_length(), lanes)


class Programs:
    """Compiled steps by shape. Thread-safe; a program is compiled once.

    Args:
        structure: of the model.
    """

    def __init__(self, structure: Structure):
        self._structure = structure
        self._compiled: dict[Shape, jax.stages.Compiled] = {}
        self._lock = threading.Lock()

    @property
    def shapes(self) -> list[Shape]:
        """What has been compiled so far."""
        return list(self._compiled)

    def step(self, shape: Shape) -> tuple[Step, LaneContract]:
        """The step of a shape, not compiled, and its contract."""
        if shape.step == "generate":
            return generate_step(self._structure, shape.top, shape.processor), GENERATE_CONTRACT
        return score_step(self._structure, shape.top or 0), SCORE_CONTRACT

    def run(self, shape: Shape, *args: Any) -> tuple[Any, tuple]:
        """Run a step; its pools are consumed.

        Args:
            shape: which program.
            args: as the step takes them, host arrays included, which must not be written to afterwards.
        """
        with self._lock:
            program = self._compiled.get(shape)
            if program is None:
                program = self._compiled[shape] = self._compile(shape, args)
        return program(*args)

    def _compile(self, shape: Shape, args: tuple[Any, ...]) -> jax.stages.Compiled:
        step, contract = self.step(shape)
        contract.bind(step, args)
        return jit(step).lower(*args).compile()


def jit(step: Step) -> Callable[..., Any]:
    """The step as one program that writes the successors of its pools in place."""
    return jax.jit(step, donate_argnums=POOLS)
