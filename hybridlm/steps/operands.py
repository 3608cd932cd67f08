"""Operands of one step. Host arrays are new for every step, and are not written to afterwards."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from models import kv_blocks


class Feed(NamedTuple):
    """Input of one lane in a step: tokens, and the position of the first."""

    tokens: tuple[int, ...]
    position: int


class Batch(NamedTuple):
    """Operands that describe the input of each lane, in the order of the step.

    Attributes:
        tokens: int32 [N, T].
        lengths, positions: int32 [N].
        kv_blocks: int32, number of KV cache blocks that hold every position of the step.
    """

    tokens: np.ndarray | jax.Array
    lengths: np.ndarray | jax.Array
    positions: np.ndarray | jax.Array
    kv_blocks: np.ndarray | jax.Array

    @staticmethod
    def of(feeds: Sequence[Feed | None], tokens: int) -> "Batch":
        """Build the batch of these lanes; a lane without a feed is idle."""
        end = max((feed.position + len(feed.tokens) for feed in feeds if feed is not None), default=0)
        batch = Batch(
            np.zeros((len(feeds), tokens), np.int32),
            np.zeros(len(feeds), np.int32),
            np.zeros(len(feeds), np.int32),
            blocks_for(end),
        )
        for lane, feed in enumerate(feeds):
            if feed is not None:
                batch.tokens[lane, : len(feed.tokens)] = feed.tokens
                batch.lengths[lane] = len(feed.tokens)
                batch.positions[lane] = feed.position
        return batch


def blocks_for(positions: int) -> np.ndarray:
    """Return `kv_blocks` of a step whose lanes end at this position."""
    return np.array(max(kv_blocks(positions), 1), np.int32)
