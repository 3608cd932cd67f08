"""Shapes of compiled programs: their compilation keys."""

from dataclasses import dataclass
from typing import Literal, Self, TypeVar

from hybridlm.rows.parts import PartShape
from hybridlm.sampling.sampling import LogitsProcessor
from hybridlm.steps.hooks import ProbeShape
from hybridlm.steps.operands import StepInputs

StepName = Literal["generate", "verify", "score", "hidden"]


@dataclass(frozen=True)
class Shape:
    """Compilation key of a step.

    Attributes:
        top: reported log-probabilities.
        changes: changed logits per lane (penalties, biases, bans); 0 for a step without.
        masked: with masks of tokens (grammars); such steps also have changes, so that steps are few.
        chosen: chosen ids of each position; None for a step without `Chosen`.
        pages: with null pages; 0 without KV caches.
        blocks: entries of a lane in the page table.
    """

    step: StepName
    lanes: int
    tokens: int
    rows: int
    top: int | None = None
    processor: LogitsProcessor | None = None
    mtp_drafts: int = 0
    changes: int = 0
    masked: bool = False
    chosen: int | None = None
    probes: ProbeShape | None = None
    pages: int = 0
    blocks: int = 0

    @classmethod
    def of(
        cls,
        inputs: StepInputs,
        rows: int,
        pages: int,
        top: int | None = None,
        processor: LogitsProcessor | None = None,
        mtp_drafts: int = 0,
    ) -> Self:
        lanes, tokens = inputs.batch.tokens.shape
        changes, chosen, probes = inputs.changes, inputs.chosen, inputs.probes
        table = inputs.batch.pages
        samples = "verify" if inputs.drafts is not None else "generate"
        return cls(
            samples if inputs.sampling is not None else "hidden" if inputs.targets is None else "score",
            lanes,
            tokens,
            rows,
            top,
            processor,
            mtp_drafts,
            0 if changes is None else changes.tokens.shape[1],
            changes is not None and changes.mask is not None,
            None if chosen is None else chosen.token_ids.shape[2],
            None if probes is None else probes.shape,
            pages,
            0 if table is None else table.shape[1],
        )

    def __str__(self) -> str:
        top = "" if not self.top and (self.top is None or self.step == "score") else f" top={self.top}"
        name = getattr(self.processor, "__qualname__", type(self.processor).__name__)
        mtp_drafts = f" mtp_drafts={self.mtp_drafts}" if self.mtp_drafts else ""
        mtp_drafts += f" changes={self.changes}" if self.changes else ""
        mtp_drafts += " masked" if self.masked else ""
        name = f" processor={name}" if self.processor else ""
        chosen = "" if self.chosen is None else f" chosen={self.chosen}"
        chosen += "" if self.probes is None else f" {self.probes}"
        return f"{self.step} {self.lanes}x{self.tokens} of {self.rows}{top}{mtp_drafts}{chosen}{name}"


@dataclass(frozen=True)
class EditShape:
    """Compilation key of a change of states in `lanes` rows of a pool."""

    lanes: int
    rows: int
    pages: int = 0

    def __str__(self) -> str:
        return f"edit states of {self.lanes} of {self.rows}"


AnyShape = Shape | PartShape | EditShape
S = TypeVar("S", Shape, PartShape, EditShape, AnyShape)
"""Any one kind of shape, or all."""


def lane_bucket(count: int, lanes: int) -> int:
    """Return the compiled lanes for `count` sequences, at most `lanes`.

    These are 1, 2, 4, 8, 12, 16, 24, 32, 48, ...; from 8 on by a half or a third more: idle lanes cost more time than
    another compilation.
    """
    size = 1 << max(count - 1, 0).bit_length()
    smaller = size * 3 // 4
    return min(smaller if count <= smaller and size > 8 else size, lanes)
