"""Programs of the zoo: a correct step, its contract, and a draw of arguments."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ir_passes import LaneContract
from ir_passes.contract.contract import BoundContract

# No two of them agree, where a program does not need it, so that a swapped dimension shows as an error of shapes.
LANES, SLOTS, HIDDEN, HEADS, KEY, VALUE, TAPS, TOKENS, CONTEXT = 4, 9, 7, 2, 3, 6, 3, 5, 8

Draw = Callable[[np.random.Generator], tuple[Any, ...]]


@dataclass(frozen=True)
class Program:
    """A step.

    Attributes:
        name: unique in the zoo.
        step: the function.
        contract: its contract.
        draw: random numbers -> arguments: other weights, another slot map, other lengths each time.
        opaque: a primitive that cannot run here, so that the step can only be traced.
    """

    name: str
    step: Callable[..., Any]
    contract: LaneContract
    draw: Draw
    opaque: bool = False

    def args(self, seed: int = 0) -> tuple[Any, ...]:
        """The arguments of one draw."""
        return self.draw(np.random.default_rng(seed))

    def bound(self) -> BoundContract:
        return self.contract.bind(self.step, self.args())

    def but(self, **changes: Any) -> "Program":
        """The same program with some of its parts replaced."""
        return replace(self, **changes)


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Random numbers about as large as activations."""
    return rng.normal(size=shape).astype(np.float32)


def weight(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Draw weights that keep the size of products along the last dimension."""
    return normal(rng, *shape) / np.float32(np.sqrt(shape[-1]))


def slot_map(rng: np.random.Generator, padding: bool = True, lanes: int = LANES, slots: int = SLOTS) -> np.ndarray:
    """Draw distinct rows, often with the last one; with `padding` some lanes are null."""
    rows = 1 + rng.permutation(slots - 1)[:lanes]
    if rng.random() < 0.5 and slots - 1 not in rows:
        rows[rng.integers(lanes)] = slots - 1
    if padding:
        rows[rng.permutation(lanes)[: rng.integers(lanes - 1)]] = 0
    return rows.astype(np.int32)


def ragged(rng: np.random.Generator, tokens: int = TOKENS, lanes: int = LANES) -> np.ndarray:
    """Lengths from idle to full, different ones."""
    return rng.permutation(np.resize(rng.permutation(tokens + 1), lanes)).astype(np.int32)
