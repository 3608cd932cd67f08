"""Prefixes: a common beginning that is prefilled once and continued many times."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hybridlm.engine.engine import Engine
from hybridlm.engine.reading import QueuedText, Reading
from hybridlm.engine.scheduler import Scheduler
from hybridlm.engine.snapshot_file import save_snapshot
from hybridlm.errors import NumericalError
from hybridlm.requests.sampling_operands import sampling_inputs
from hybridlm.rows.snapshot import Snapshot, nothing_consumed
from hybridlm.steps.generate import SampledTokens
from hybridlm.steps.operands import Batch, StepInputs


@dataclass(frozen=True, eq=False)
class Prefix:
    """The beginning of prompts or texts, prefilled once; `LM.prefix` makes it.

    Its state is the one before the last token: that token is consumed again with each continuation, because the step
    that consumes it predicts the next one.

    Attributes:
        token_ids: tokens of the prefix, at least one.
        snapshot: the state after all of them but the last.
    """

    token_ids: tuple[int, ...]
    snapshot: Snapshot

    def __len__(self) -> int:
        return len(self.token_ids)

    def __repr__(self) -> str:
        return f"Prefix({len(self)} tokens, {self.nbytes / 1e6:.1f} MB)"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to a safetensors file for `LM.load_prefix`: its tokens, its label, and the state.

        Keys and values are written for its own positions only.

        Raises:
            OSError, ValueError: the file cannot be written; an older one is unchanged.
        """
        save_snapshot(Path(path), self.token_ids, self.snapshot)

    @property
    def nbytes(self) -> int:
        """Bytes of its state on the device, freed with the prefix."""
        return self.snapshot.nbytes


@dataclass(eq=False)
class PrefixText(QueuedText):
    """A prefix that is prefilled.

    Attributes:
        outside: the sampler's token for logits that are not numbers.
    """

    outside: int = field(kw_only=True)

    def take(self, outputs: SampledTokens, lane: int, first: int, count: int) -> None:
        """Record a last token without finite logits."""
        if first + count == len(self.tokens) and np.asarray(outputs.token)[lane] >= self.outside:
            self.mark_wrong(first + count - 1)


def compute_prefix(engine: Engine, tokens: tuple[int, ...]) -> Prefix:
    """Prefill all tokens except the last, a chunk per step.

    Raises:
        NumericalError: the logits after them are not numbers.
        IsolationError, AuditError, HloError: the step is refused.
    """
    with engine.decisions.command("prefix", tokens=tokens):
        snapshot = _compute(engine, tokens) if len(tokens) > 1 else nothing_consumed(engine.kind)
        engine.decisions.share(snapshot)
    return Prefix(tokens, snapshot)


def _compute(engine: Engine, tokens: tuple[int, ...]) -> Snapshot:
    def inputs(batch: Batch, lanes: Sequence[Any], feeds: Sequence[Any]) -> StepInputs:
        return sampling_inputs(batch, [None] * len(lanes), engine.vocab_size)

    reading: Reading[PrefixText] = Reading(
        [engine], engine.bucket(1, engine.lanes), inputs, widths=(engine.chunk,), counter="prompt_tokens"
    )
    text, queue = PrefixText(0, tokens, keeps_state=True, outside=engine.vocab_size), Scheduler(engine)
    queue.add_texts(reading, [text])
    try:
        list(queue.run())
    finally:
        queue.close()
    if text.first_wrong is not None:
        raise NumericalError("prefix", text.first_wrong)
    assert text.snapshot is not None
    return text.snapshot
