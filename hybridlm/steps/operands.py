"""Inputs of one step; host arrays are new and never written again."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float32, Int32

from hybridlm.sampling.logit_changes import LogitChanges
from hybridlm.sampling.sampling import Sampling
from hybridlm.steps.hooks import ProbeInputs
from models import KV_BLOCK


class Feed(NamedTuple):
    tokens: tuple[int, ...]
    position: int


class Batch(NamedTuple):
    """Tokens of each lane.

    Attributes:
        lengths: real tokens; 0 for an idle lane.
        positions: of the first token.
        slots: distinct rows; the row of an idle lane, perhaps another sequence's, keeps its bits. On a mesh, row
            numbers of the lane's device.
        kv_blocks: KV cache blocks with every position of the step.
        pages: entry b is the lane's page of positions from b * `KV_BLOCK` on, after its last page the null page 0. On a
            mesh, page numbers of the lane's device. None without KV caches.
    """

    tokens: Int32[Any, "lane token"]
    lengths: Int32[Any, "lane"]
    positions: Int32[Any, "lane"]
    slots: Int32[Any, "lane"]
    kv_blocks: Int32[Any, ""]
    pages: Int32[Any, "lane block"] | None = None

    @staticmethod
    def of(
        feeds: Sequence[Feed | None], tokens: int, slots: Sequence[int] | np.ndarray, pages: np.ndarray | None
    ) -> "Batch":
        """Build the batch of these lanes, rows and pages; a lane without feed is idle."""
        end = max((feed.position + len(feed.tokens) for feed in feeds if feed is not None), default=0)
        batch = Batch(
            np.zeros((len(feeds), tokens), np.int32),
            np.zeros(len(feeds), np.int32),
            np.zeros(len(feeds), np.int32),
            np.array(slots, np.int32),
            blocks_for(end),
            pages,
        )
        for lane, feed in enumerate(feeds):
            if feed is not None:
                batch.tokens[lane, : len(feed.tokens)] = feed.tokens
                batch.lengths[lane] = len(feed.tokens)
                batch.positions[lane] = feed.position
        return batch


class Chosen(NamedTuple):
    """Request for a report on the distribution of each position.

    Attributes:
        token_ids: with reported log-probabilities and ranks; C may be 0.
        temperature: divides the logits of a lane.
    """

    token_ids: Int32[Any, "lane token chosen"]
    temperature: Float32[Any, "lane"]


class StepInputs(NamedTuple):
    """Inputs of a step `step(params, rows, inputs) -> (outputs, rows)`, None for absent parts.

    Attributes:
        drafts: number of verified drafts at the end of each lane's tokens.
        sampling, sampling_mode: as for `sample_tokens`.
        targets: the token after each token; meaningless at padding.
    """

    batch: Batch
    drafts: Int32[Any, "lane"] | None = None
    sampling: Sampling | None = None
    sampling_mode: Int32[Any, ""] | None = None
    changes: LogitChanges | None = None
    targets: Int32[Any, "lane token"] | None = None
    chosen: Chosen | None = None
    probes: ProbeInputs | None = None

    @property
    def required_sampling(self) -> tuple[Sampling, Int32[Any, ""]]:
        assert self.sampling is not None and self.sampling_mode is not None, "a step that samples has settings"
        return self.sampling, self.sampling_mode


def blocks_for(positions: int) -> np.ndarray:
    """Return `kv_blocks` of a step with lanes up to this position."""
    return np.array(max(-(-positions // KV_BLOCK), 1), np.int32)
